"""Code for TPUs only: the hosts of a slice, and barriers for its compiler."""
