"""The embedded image model: scenes drawn by code, a small Stable Diffusion trained on them, and its held-out score."""
