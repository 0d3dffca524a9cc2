"""Hugging Face PyTorch models served from JAX: chat, sentiment and text-to-image in a browser."""

__version__ = "0.2.0.dev0"
