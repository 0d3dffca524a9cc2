"""Whether the models of an app fit its devices together, or one more beside them: arithmetic on shapes, before anything
is loaded.

Counts weights, the KV cache and the copies that programs make of it. Does not cover other temporary memory, which must
fit into the margin: the `plan` command compiles and counts that too.
"""

from collections.abc import Mapping
from typing import Any

from hfjax_app.planning.fit import fits
from hfjax_app.planning.report import GIB
from hfjax_app.planning.together import Planner, advice_for, bytes_on_first, planner_of
from hfjax_app.planning.topology import MARGIN, Chip, Topology


def refusals(models: Mapping[str, str], *, devices: int, memory: int, **options: Any) -> dict[str, str]:
    """The models that do not fit beside those before them, each with the reason in one line.

    Models whose config can't be read, or that can't run, are left out: they fail when they are loaded.

    Args:
        models: the model of each of "chat", "image" and "sentiment", the most important one first.
        devices: the number of this machine's devices. The chat model is split over all of them, the image model is
            replicated on the first two, the sentiment model is on the first.
        memory: bytes that each device has for arrays.
        options: as in `planner_of`.
    """
    chip = Chip(hbm=memory, bandwidth=0.0)
    here = Topology(name=f"{devices} devices", devices=devices, chip=chip)
    planners: dict[str, Planner] = {}
    needed: dict[str, int] = {}  # bytes on the first device
    refused: dict[str, str] = {}
    for kind, model in models.items():
        try:
            planner = planner_of(kind, model, **options)
            size = bytes_on_first(planner, devices)
        except Exception:  # also errors of libraries: the other models must still be loaded
            continue
        if fits(size + sum(needed.values()), here):
            planners[kind], needed[kind] = planner, size
            continue
        others = "".join(
            f", beside the {other} model {models[other]!r} ({needed[other] / GIB:.1f} GiB)" for other in needed
        )
        beside = sum(other for name, other in {**needed, kind: size}.items() if name != "chat")
        advice = advice_for(planner if kind == "chat" else planners.get("chat"), here, beside)
        refused[kind] = (
            f"{kind} model {model!r} does not fit: it needs {size / GIB:.1f} GiB on a device that can take "
            f"{chip.usable / GIB:.1f} GiB (margin {MARGIN:.0%}){others}; would fit: {advice}"
        )
    return refused


def no_room(kind: str, name: str, size: int, free: int | None) -> str | None:
    """Why a model can't be loaded beside those that serve, in one line; None where it can.

    Args:
        kind: "chat", "sentiment" or "images".
        name: the model's name.
        size: bytes that it needs on the first device, see `bytes_on_first`.
        free: bytes that the fullest device has left; None: unknown.
    """
    if free is None or size <= free * (1 - MARGIN):
        return None
    smaller = "unload another model, or choose a smaller one"
    if kind == "chat":
        smaller += ", HFJAX_QUANTIZE=int8, fewer HFJAX_SLOTS or a shorter HFJAX_CONTEXT"
    return (
        f"{kind} model {name!r} does not fit beside the others: it needs {in_bytes(size)}, and {in_bytes(free)} are "
        f"free (margin {MARGIN:.0%}): {smaller}"
    )


def in_bytes(size: int) -> str:
    """A size for a message."""
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.0f} MiB"
