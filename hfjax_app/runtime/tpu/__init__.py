"""What exists only for TPUs: hosts of a slice, and layouts that its compiler wants."""
