"""Comparisons with the alternatives that a user has. The last line of each benchmark's output is JSON."""
