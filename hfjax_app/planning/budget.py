"""Whether the models that an app is to serve fit its devices together: arithmetic on shapes, before anything is loaded.

Counts weights, the KV cache and what programs copy of it; what else they need while they run must find room in the
margin. `plan` compiles and knows that too.
"""

from collections.abc import Mapping
from typing import Any

from hfjax_app.chat.plan import ChatPlanner
from hfjax_app.planning.fit import Advice, ChipMemory, advise, fits, larger
from hfjax_app.planning.report import GIB
from hfjax_app.planning.together import Planner, planner_of
from hfjax_app.planning.topology import MARGIN, Chip, Topology


def refusals(models: Mapping[str, str], *, devices: int, memory: int, **options: Any) -> dict[str, str]:
    """Why models can't be served beside those before them, one line for each that can't.

    Models whose config can't be read, or that can't run, are left out: they fail for themselves when they are loaded.

    Args:
        models: for each of "chat", "image" and "sentiment" its model, the one that matters most first.
        devices: of this machine. The chat model is split over all of them, the image model lies whole on the first two,
            the sentiment model on the first.
        memory: bytes that each device has for arrays.
        options: as `planner_of` takes them.
    """
    chip = Chip(hbm=memory, bandwidth=0.0)
    here = Topology(name=f"{devices} devices", devices=devices, chip=chip)
    planners: dict[str, Planner] = {}
    needs: dict[str, int] = {}
    refused: dict[str, str] = {}
    for kind, model in models.items():
        try:
            planner = planner_of(kind, model, **options)
            need = _need(planner, devices)
        except Exception:  # also a library's: it must not keep the other models from being loaded
            continue
        if fits(need + sum(needs.values()), here):
            planners[kind], needs[kind] = planner, need
            continue
        others = "".join(
            f", beside the {other} model {models[other]!r} ({needs[other] / GIB:.1f} GiB)" for other in needs
        )
        advice = _advice(planner if kind == "chat" else planners.get("chat"), here, need + sum(needs.values()))
        refused[kind] = (
            f"{kind} model {model!r} does not fit: it needs {need / GIB:.1f} GiB on a device that can take "
            f"{chip.usable / GIB:.1f} GiB (margin {MARGIN:.0%}){others}; would fit: {advice}"
        )
    return refused


def _need(planner: Planner, devices: int) -> int:
    """Bytes on the first of so many devices."""
    if not isinstance(planner, ChatPlanner):
        return planner.weights
    return planner.estimate(devices).held


def _advice(chat: Planner | None, here: Topology, peak: int) -> Advice:
    """What would fit where `peak` bytes on the first device are too many."""
    if not isinstance(chat, ChatPlanner):
        return Advice(slots=0, context=0, topology=larger(here, lambda devices: peak))
    estimate = chat.estimate(here.devices)
    footprint = ChipMemory(estimate=estimate, resident=estimate.weights + estimate.cache, decoding=estimate.copied)
    return advise(footprint, here, chat.slots, chat.context, chat.estimate, beside=peak - estimate.held)
