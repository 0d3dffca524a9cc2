"""Code that only makes XLA faster on a CPU. A reader who works on TPUs can skip it."""
