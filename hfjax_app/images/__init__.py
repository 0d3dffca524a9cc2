"""Images: a diffusers pipeline as warm programs, one dispatch for each denoising step of a picture."""

from hfjax_app.lazy_import import on_demand

__all__ = ["ImageGenerator", "ImageStep", "Picture", "Verdict", "Waiting", "replay"]

__getattr__ = on_demand(
    __name__,
    {
        "generator": ("ImageGenerator",),
        "steps": ("ImageStep", "Picture", "Waiting"),
        "verification": ("Verdict", "replay"),
    },
)
