"""Images: a diffusers pipeline as warm programs, one dispatch for each denoising step of a picture."""

from hfjax_app.images.generator import ImageGenerator
from hfjax_app.images.replay import Verdict, replay
from hfjax_app.images.steps import ImageStep, Picture, Waiting

__all__ = ["ImageGenerator", "ImageStep", "Picture", "Verdict", "Waiting", "replay"]
