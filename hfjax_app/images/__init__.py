"""Images: a Stable Diffusion pipeline as three warm programs, one dispatch for each denoising step."""

from hfjax_app.images.generator import ImageGenerator, ImageStep

__all__ = ["ImageGenerator", "ImageStep"]
