"""What exists only because XLA on a CPU needs it to be fast. A reader who works on a TPU can leave it out."""
