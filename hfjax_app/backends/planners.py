"""The planner of a model as this app would serve it: by its settings, on these devices."""

from hfjax_app.planning.together import Planner, planner_of
from hfjax_app.settings import Settings


def planner_for(kind: str, model: str, settings: Settings, platform: str, devices: int) -> Planner:
    """The planner of a model.

    Args:
        kind: "chat", "image" or "sentiment".
        model: an embedded model's name, a folder, or a hub id.
        settings: of the app that serves it.
        platform: "cpu", "gpu" or "tpu".
        devices: how many there are.

    Raises:
        ModelUnavailable, RequestRejected: see `planner_of`.
    """
    is_cpu = platform == "cpu"
    usual = "float32" if is_cpu else "bfloat16"
    return planner_of(
        kind,
        model,
        sizes=settings.sizes,
        dtype=usual if settings.dtype == "auto" else settings.dtype,
        slots=settings.slots,
        context=settings.context,
        quantize=settings.quantize,
        speculation=settings.speculation,
        pictures=settings.pictures != "never",
        keep_bf16=settings.dtype == "auto",
        on_one_cpu=devices == 1 and is_cpu,
    )
