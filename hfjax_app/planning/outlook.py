"""What each topology would give a chat or an image model, with and without int8, by arithmetic on shapes and published
figures.

A chip's layouts may pad, and temporary memory is covered by the margin only: the compiler knows more. A floor is the
lower bound of a step's time, to read its bytes and to do its arithmetic: what a device can't do faster. Collectives,
attention's own products and the cost of a call are left out. A picture's floor is to read the denoiser's weights at
each step, and to do its products and convolutions; text encoders and autoencoder are left out.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from hfjax_app.backends.budget import fits
from hfjax_app.chat.memory import GIB
from hfjax_app.chat.model.buckets import SlotMemory
from hfjax_app.chat.plan import ChatPlanner, WeightUse
from hfjax_app.images.plan import ImagePlanner
from hfjax_app.runtime.mesh import picture_parts
from hfjax_app.runtime.topology import HOST_LINK, Topology, by_cost, parse, price_of

PROMPT = 1000  # tokens, whose first answer token is timed
MOST_SLOTS, LONGEST_CONTEXT = 256, 1 << 20  # that the settings allow
_STEP = 64  # tokens between the contexts that are tried


@dataclass(frozen=True, kw_only=True)
class Floor:
    """The lower bound of a decoding step, in which each of so many slots gets a token."""

    bytes_read: int
    seconds: float
    slots: int

    @property
    def per_user(self) -> float:
        """Tokens per second."""
        return 1 / self.seconds

    @property
    def in_all(self) -> float:
        return self.slots * self.per_user


def decode_floor(
    use: WeightUse, cache: SlotMemory, topology: Topology, *, slots: int, length: int, context: int
) -> Floor:
    """The floor of a step of so many slots that hold `length` tokens each.

    Args:
        use, cache: the model's, on each device of the topology.
        topology: of chips; a CPU's figures are unknown.
        slots, length: of the step.
        context: of the cache, in tokens.
    """
    read = use.read(slots) + cache.filled(slots, length, context)
    seconds = device_seconds(topology, read, 2 * slots * (use.products + use.output))
    return Floor(bytes_read=read, seconds=seconds, slots=slots)


def prefill_floor(use: WeightUse, topology: Topology, tokens: int) -> float:
    """Seconds until the first token after a prompt of so many."""
    return device_seconds(topology, use.read(tokens), 2 * (tokens * use.products + use.output))


def device_seconds(topology: Topology, read: int, operations: float) -> float:
    """The time of a device for the slower one of both."""
    chip = topology.chip
    assert chip is not None
    return chip.devices * max(read / chip.bandwidth, operations / chip.flops)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A chat model on one topology.

    Args:
        topology, chips: the topology's name and its number of chips.
        quantize: "none" or "int8".
        weights: bytes on each device.
        held: bytes on the first device: weights, cache, copies of the cache, other models.
        fits: whether the slots and the context that were asked for fit.
        slots: the most that fit with this context; 0: none.
        context: the longest that fits with these slots; 0: none.
        heads_copied: the key-value heads of a cache that every device holds whole; None: it is split.
        one_user: tokens per second of a single conversation that fills half of the context.
        half_full, full: tokens per second of all slots together, each filled so far.
        first_token: seconds until the first token after a prompt of PROMPT tokens.
        download: bytes of the checkpoint's weights.
        per_hour: dollars; None without a price.
        per_million: dollars for a million tokens of half full slots; None without a price or if they don't fit.
    """

    topology: str
    chips: int
    quantize: str
    weights: int
    held: int
    fits: bool
    slots: int
    context: int
    heads_copied: int | None
    one_user: float
    half_full: float
    full: float
    first_token: float
    download: int
    per_hour: float | None
    per_million: float | None


def outlooks(chat: ChatPlanner, beside: int, prices: Mapping[str, float]) -> list[Outlook]:
    """All topologies, the cheapest first, each as it is and with int8.

    Args:
        chat: gives the model, the slots and the context.
        beside: bytes of the other models on the first device.
        prices: dollars of a chip for an hour, by its name.
    """
    ways = dict.fromkeys((chat.options.quantize, "int8"))
    return [
        _outlook(chat, topology, way, beside, price_of(topology, prices))
        for topology in by_cost(prices)
        for way in ways
    ]


def _outlook(chat: ChatPlanner, topology: Topology, quantize: str, beside: int, per_hour: float | None) -> Outlook:
    memory, use = chat.estimate(topology.devices, quantize), chat.use(topology.devices, quantize)
    slots, context, cache = chat.options.slots, chat.options.context, memory.slot

    def enough(slots: int, context: int) -> bool:
        return fits(memory.weights + beside + cache.held(slots, context), topology)

    longest = min(chat.positions or LONGEST_CONTEXT, LONGEST_CONTEXT) // _STEP
    floor = partial(decode_floor, use, cache, topology, context=context)
    half = floor(slots=slots, length=context // 2).in_all
    does_fit = enough(slots, context)
    return Outlook(
        topology=topology.name,
        chips=topology.chips,
        quantize=quantize,
        weights=memory.weights,
        held=memory.held + beside,
        fits=does_fit,
        slots=_most(lambda count: enough(count, context), MOST_SLOTS),
        context=_STEP * _most(lambda steps: enough(slots, _STEP * steps), longest),
        heads_copied=chat.heads_copied(topology.devices),
        one_user=floor(slots=1, length=context // 2).in_all,
        half_full=half,
        full=floor(slots=slots, length=context).in_all,
        first_token=prefill_floor(use, topology, min(PROMPT, context)),
        download=chat.download,
        per_hour=per_hour,
        per_million=per_hour / (3600 * half) * 1e6 if per_hour and does_fit else None,
    )


def _most(enough: Callable[[int], bool], limit: int) -> int:
    """The largest number from 1 to `limit` for which there is enough, where there is for all smaller ones; 0: none."""
    least, most = 0, limit
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if enough(middle) else (least, middle - 1)
    return least


SURVEYED = ("v5e:1x1", "v5e:2x2", "v5e:2x4", "v6e:1x1", "v6e:2x2", "v6e:2x4")


@dataclass(frozen=True, kw_only=True)
class PictureOutlook:
    """An image model on one topology.

    Args:
        topology, chips: the topology's name and its number of chips.
        quantize: "none" or "int8".
        parts: bytes of each network's weights on the first device.
        splits: whether the weights are split over all devices; else each that draws holds all of them.
        held: bytes on the first device: the parts, and other models.
        fits: whether they fit.
        seconds: of a picture by the model's card, at best.
        prompt_seconds: for a new prompt's text encoders to go through the first device, at the host link's speed; 0
            where they stay there.
        per_hour: dollars; None without a price.
    """

    topology: str
    chips: int
    quantize: str
    parts: Mapping[str, int]
    splits: bool
    held: int
    fits: bool
    seconds: float
    prompt_seconds: float
    per_hour: float | None


def picture_outlooks(planner: ImagePlanner, beside: int, prices: Mapping[str, float]) -> list[PictureOutlook]:
    """All topologies, the cheapest first, each as it is and with int8; arguments as of `outlook.outlooks`.

    Raises:
        ModelUnavailable: the denoiser can't be traced; says why.
    """
    return [
        _picture_outlook(planner, topology, way, beside, price_of(topology, prices))
        for topology in by_cost(prices)
        for way in dict.fromkeys((planner.storage.quantize, "int8"))
    ]


def _picture_outlook(
    planner: ImagePlanner, topology: Topology, quantize: str, beside: int, per_hour: float | None
) -> PictureOutlook:
    storage = replace(planner.storage, quantize=quantize)
    parts = planner.held(topology.devices, topology.usable, storage)
    sharing = picture_parts(topology.devices, sum(planner.parts(1, storage).values()), topology.usable)
    splits = sharing[-1] > 1
    held = sum(parts.values()) + beside
    return PictureOutlook(
        topology=topology.name,
        chips=topology.chips,
        quantize=quantize,
        parts=parts,
        splits=splits,
        held=held,
        fits=fits(held, topology),
        seconds=planner.steps * device_seconds(topology, parts[planner.denoiser], planner.work / math.prod(sharing)),
        prompt_seconds=planner.sent(storage) / (topology.devices if splits else 1) / HOST_LINK,
        per_hour=per_hour,
    )


def table(name: str, planner: ImagePlanner) -> Iterator[str]:
    """The rows of `survey_pictures` for one model, one for each way to keep its weights."""
    wide, tall = planner.size
    for way in dict.fromkeys((planner.storage.quantize, "int8")):
        parts = planner.parts(1, replace(planner.storage, quantize=way, text_encoders="device"))
        denoiser, autoencoder = parts[planner.denoiser], parts["vae"]
        encoders = sum(parts.values()) - denoiser - autoencoder
        cells = [
            f"{name}, {planner.steps} steps of {wide} x {tall}",
            planner.storage.dtype if way == "none" else way,
            *(f"{size / GIB:.1f}" for size in (denoiser, encoders, autoencoder)),
            f"{planner.work / 1e12:.1f}",
        ]
        for topology in map(parse, SURVEYED):
            found = _picture_outlook(planner, topology, way, 0, None)
            where = f" ({found.held / GIB:.1f} each)" if found.splits else ""
            cells.append(f"{found.seconds:.2g} s{where}" if found.fits else f"no: {found.held / GIB:.1f}")
        yield f"| {' | '.join(cells)} |"
