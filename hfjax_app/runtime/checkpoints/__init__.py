"""Checkpoints of transformers and diffusers: download, read tensor by tensor, quantise."""
