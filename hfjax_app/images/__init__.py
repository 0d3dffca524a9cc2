"""Images: a diffusers pipeline as warm programs, one dispatch for each denoising step of a picture."""

from hfjax_app.lazy_import import on_demand

__all__ = ["Comparison", "ImageGenerator", "ImageStep", "Picture", "Waiting", "replay"]

__getattr__ = on_demand(
    __name__,
    {
        "generator": ("ImageGenerator",),
        "steps": ("ImageStep", "Picture", "Waiting"),
        "verification": ("Comparison", "replay"),
    },
)
