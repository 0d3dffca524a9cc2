"""Whether models fit their devices, and what would fit if not: arithmetic on shapes, before anything is loaded.

Counts weights, the KV cache and the copies that programs make of it. Other temporary memory must fit into the margin;
the `plan` command compiles and counts that too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hfjax_app.chat.memory import GIB, MemoryEstimate, largest_fitting
from hfjax_app.chat.plan import ChatPlanner
from hfjax_app.embedded import resolve
from hfjax_app.images.networks import Storage
from hfjax_app.images.plan import ImagePlanner
from hfjax_app.runtime.topology import MARGIN, Chip, Topology, by_cost
from hfjax_app.sentiment.plan import SentimentPlanner
from hfjax_app.settings import Settings

Planner = ChatPlanner | ImagePlanner | SentimentPlanner
_TOLERANCE = 1.1  # a real chip reports slightly less memory than its vendor's figure


def planner_of(
    kind: str,
    model: str,
    *,
    sizes: Sequence[tuple[int, int]] = (),
    dtype: str = "float32",
    image_quantize: str = "none",
    image_text_encoders: str = "device",
    **chat: Any,
) -> Planner:
    """The planner of a "chat", "image" or "sentiment" model.

    Args:
        kind: the tab that uses the model.
        model: an embedded model's name, a folder or a hub id.
        sizes: for an image model, as in ImagePlanner.
        dtype: of a chat model's or an image model's weights.
        image_quantize, image_text_encoders: for an image model, `quantize` and `text_encoders` of its Storage.
        chat: for a chat model, ChatPlanner's other options.

    Raises:
        ModelUnavailable, RequestRejected: from the planners.
    """
    source = resolve(model)
    if kind == "chat":
        return ChatPlanner(source, dtype=dtype, **chat)
    if kind == "sentiment":
        return SentimentPlanner(source)
    storage = Storage(dtype=dtype, quantize=image_quantize, text_encoders=image_text_encoders)
    return ImagePlanner(source, sizes=sizes, storage=storage)


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
        image_quantize=settings.image_quantize,
        image_text_encoders=settings.image_text_encoders,
        keep_bf16=settings.dtype == "auto",
        on_one_cpu=devices == 1 and is_cpu,
    )


def bytes_on_first(planner: Planner, devices: int, memory: int | None) -> int:
    """Bytes on the first device, as far as shapes tell.

    Args:
        planner: of the model.
        devices: the number of devices.
        memory: bytes that each has for arrays; None: unknown.
    """
    if isinstance(planner, ImagePlanner):
        return sum(planner.held(devices, memory).values())
    return planner.estimate(devices).held if isinstance(planner, ChatPlanner) else planner.weights


@dataclass(frozen=True, kw_only=True)
class ChipMemory:
    """A chat model's bytes on each chip.

    Args:
        estimate: computed from shapes.
        resident: arrays that stay (weights, cache, state), with the padding of the chip's layouts.
        decoding: the largest temporary memory of the programs that copy positions of slots to decode them.
        others: the largest temporary memory of the other programs.
    """

    estimate: MemoryEstimate
    resident: int
    decoding: int
    others: int = 0

    @property
    def peak(self) -> int:
        return self.resident + max(self.decoding, self.others)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What would fit where models do not.

    Args:
        int8: whether int8 weights would, on the same chips.
        text_encoders: whether those of an image model would, if their weights lay in the host's memory.
        both: whether both together would, where neither does.
        slots, context: the largest number of slots, or of tokens of context; 0: no number of them fits.
        topology: the cheapest one, with the settings as they are; None: none is known.
        topology_with_int8: the cheapest one with int8 weights, where that is cheaper than all others.
        setting: the name of the setting of int8 weights.
    """

    slots: int
    context: int
    topology: str | None
    int8: bool = False
    text_encoders: bool = False
    both: bool = False
    topology_with_int8: str | None = None
    setting: str = "quantize"

    def __str__(self) -> str:
        ways = []
        if self.int8:
            ways.append(f"{self.setting} = int8")
        if self.text_encoders:
            ways.append("image_text_encoders = host")
        if self.both:
            ways.append(f"{self.setting} = int8 with image_text_encoders = host")
        if self.slots:
            ways.append(f"slots = {self.slots}")
        if self.context:
            ways.append(f"context = {self.context}")
        if self.topology_with_int8:
            ways.append(f"topology {self.topology_with_int8} with {self.setting} = int8")
        if self.topology:
            ways.append(f"topology {self.topology}")
        return " or ".join(ways) or "no topology that is known here; a smaller model would"


def fits(peak: float, topology: Topology) -> bool:
    """Whether `peak` bytes on the fullest chip fit."""
    return topology.usable is None or peak <= topology.usable


def advise(
    memory: ChipMemory,
    topology: Topology,
    slots: int,
    context: int,
    estimate_on: Callable[[int, str], MemoryEstimate],
    *,
    beside: int = 0,
    quantize: str = "none",
    prices: Mapping[str, float] = MappingProxyType({}),
) -> Advice:
    """What would fit, by arithmetic on the compiled figures.

    The cache and the copies of its positions depend on slots and context; the rest is constant.

    Args:
        memory: the compiled figures for these slots and this context.
        topology: the chips that are too small.
        slots, context, quantize: as requested.
        estimate_on: the estimate for each device, by number of devices and quantisation.
        beside: bytes of the other models on the first chip, in every topology.
        prices: dollars of a chip for an hour, by its name.
    """
    estimate = memory.estimate
    padding = memory.resident / max(1, estimate.weights + estimate.cache)  # from the chip's layouts
    more = max(0, memory.decoding - estimate.copied * padding)  # temporary memory besides the copies

    def peak(estimate: MemoryEstimate, slots: int, context: int) -> float:
        copied = estimate.slot.copied(slots, context) * padding
        held = (estimate.weights + estimate.slot.cache(slots, context)) * padding
        return held + max(memory.others, copied + more) + beside

    def peak_with(quantize: str) -> Callable[[int], float]:
        return lambda devices: peak(estimate_on(devices, quantize), slots, context)

    fewer, shorter = largest_fitting(slots, context, lambda *size: fits(peak(estimate, *size), topology))
    as_asked = larger(topology, peak_with(quantize), prices)
    if quantize != "none":
        return Advice(slots=fewer, context=shorter, topology=as_asked)
    with_int8 = larger(topology, peak_with("int8"), prices)
    return Advice(
        int8=fits(peak_with("int8")(topology.devices), topology),
        slots=fewer,
        context=shorter,
        topology_with_int8=None if with_int8 == as_asked else with_int8,
        topology=as_asked,
    )


def larger(
    topology: Topology, peak: Callable[[int], float], prices: Mapping[str, float] = MappingProxyType({})
) -> str | None:
    """The cheapest topology with more memory, in all or on each chip, that is large enough.

    Args:
        topology: the one that is too small.
        peak: bytes on the fullest device, by number of devices.
        prices: dollars of a chip for an hour, by its name.
    """
    assert topology.usable is not None  # a CPU has no limit here
    each, whole = _TOLERANCE * topology.usable, _TOLERANCE * topology.usable * topology.devices
    for other in by_cost(prices):
        assert other.usable is not None
        more = other.usable > each or other.usable * other.devices > whole
        if more and fits(peak(other.devices), other):
            return other.name
    return None


def _advice_for_pictures(planner: ImagePlanner, topology: Topology, beside: int, prices: Mapping[str, float]) -> Advice:
    """As `advice_for`. A model whose parts fit their devices fits, whether it is split or whole there."""
    own = sum(planner.held(topology.devices, topology.usable).values())
    kept = planner.storage

    def peak_with(**changed: Any) -> Callable[[int], float]:
        storage = replace(kept, **changed)
        return lambda devices: beside - own + sum(planner.parts(devices, storage).values())

    def would(**changed: str) -> bool:
        is_new = all(getattr(kept, name) != value for name, value in changed.items())
        return is_new and fits(peak_with(**changed)(topology.devices), topology)

    as_asked = larger(topology, peak_with(), prices)
    int8, host = would(quantize="int8"), would(text_encoders="host")
    with_int8 = as_asked if kept.quantize != "none" else larger(topology, peak_with(quantize="int8"), prices)
    return Advice(
        slots=0,
        context=0,
        int8=int8,
        text_encoders=host,
        both=not int8 and not host and would(quantize="int8", text_encoders="host"),
        topology_with_int8=None if with_int8 == as_asked else with_int8,
        topology=as_asked,
        setting="image_quantize",
    )


def advice_for(
    planner: Planner | None,
    topology: Topology,
    beside: int,
    prices: Mapping[str, float] = MappingProxyType({}),
    memory: ChipMemory | None = None,
) -> Advice:
    """What would fit.

    Args:
        planner: the chat model's, or without one the image model's, if there is one.
        topology: the chips that are too small.
        beside: bytes of the other models on the first device.
        prices: as in `advise`.
        memory: the compiler's figures of the chat model; None: those of its shapes.
    """
    if isinstance(planner, ImagePlanner):
        return _advice_for_pictures(planner, topology, beside, prices)
    if not isinstance(planner, ChatPlanner):
        return Advice(slots=0, context=0, topology=larger(topology, lambda devices: beside, prices))
    if memory is None:
        estimate = planner.estimate(topology.devices)
        memory = ChipMemory(estimate=estimate, resident=estimate.weights + estimate.cache, decoding=estimate.copied)
    size = (planner.options.slots, planner.options.context, planner.estimate)
    return advise(memory, topology, *size, beside=beside, quantize=planner.options.quantize, prices=prices)


def refusals(models: Mapping[str, str], *, devices: int, memory: int, **options: Any) -> dict[str, str]:
    """The models that do not fit beside those before them, each with the reason in one line.

    Models whose config can't be read, or that can't run, are left out: they fail when they are loaded.

    Args:
        models: the model of each of "chat", "image" and "sentiment", the most important one first.
        devices: the number of this machine's devices. The chat model is split over all of them, the image model is
            whole on each or split over all, the sentiment model is on the first.
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
            size = bytes_on_first(planner, devices, chip.usable)
        except Exception:  # also errors of libraries: the other models must still be loaded
            continue
        if fits(size + sum(needed.values()), here):
            planners[kind], needed[kind] = planner, size
            continue
        others = "".join(
            f", beside the {other} model {models[other]!r} ({needed[other] / GIB:.1f} GiB)" for other in needed
        )
        beside = sum(other for name, other in {**needed, kind: size}.items() if name != "chat")
        known = {**planners, kind: planner}
        advice = advice_for(known.get("chat", known.get("image")), here, beside)
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
