"""Images: a diffusers pipeline as warm programs, one dispatch for each denoising step of a picture."""

from typing import TYPE_CHECKING

from hfjax_app.lazy_import import on_demand

if TYPE_CHECKING:  # for type checkers, which can't follow `__getattr__`
    from hfjax_app.images.generator import ImageGenerator
    from hfjax_app.images.request import ImageRequest
    from hfjax_app.images.steps import ImageStep, Picture, Waiting
    from hfjax_app.images.verification import Comparison, replay

__all__ = ["Comparison", "ImageGenerator", "ImageRequest", "ImageStep", "Picture", "Waiting", "replay"]

__getattr__ = on_demand(
    __name__,
    {
        "generator": ("ImageGenerator",),
        "request": ("ImageRequest",),
        "steps": ("ImageStep", "Picture", "Waiting"),
        "verification": ("Comparison", "replay"),
    },
)
