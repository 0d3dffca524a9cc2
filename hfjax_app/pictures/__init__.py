"""Pictures from outside, for every part of the app that takes them."""
