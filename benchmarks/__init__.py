"""Side by side with what a user would pick instead. The last line of each one's output is JSON."""
