"""What each topology would give an image model, with and without int8, by arithmetic on shapes and published figures.

Temporary memory is covered by the margin only: the compiler knows more. A floor is the lower bound of the denoiser's
time for a picture: to read its weights at each step, and to do its products and convolutions. Text encoders,
autoencoder and collectives are left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hfjax_app.backends.budget import fits
from hfjax_app.chat.memory import GIB
from hfjax_app.images.plan import ImagePlanner
from hfjax_app.planning.outlook import device_seconds
from hfjax_app.runtime.mesh import PAIR, splits_pictures
from hfjax_app.runtime.topology import Topology, by_cost, parse, price_of

SURVEYED = ("v5e:1x1", "v5e:2x2", "v5e:2x4", "v6e:1x1", "v6e:2x2", "v6e:2x4")


@dataclass(frozen=True, kw_only=True)
class PictureOutlook:
    """An image model on one topology.

    Args:
        topology, chips: the topology's name and its number of chips.
        quantize: "none" or "int8".
        parts: bytes of each network's weights on the first device.
        splits: whether the weights are split over all devices; else two hold all of them.
        held: bytes on the first device: the parts, and other models.
        fits: whether they fit.
        seconds: of a picture by the model's card, at best.
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
    per_hour: float | None


def picture_outlooks(planner: ImagePlanner, beside: int, prices: Mapping[str, float]) -> list[PictureOutlook]:
    """All topologies, the cheapest first, each as it is and with int8; arguments as of `outlook.outlooks`.

    Raises:
        ModelUnavailable: the denoiser can't be traced; says why.
    """
    return [
        _outlook(planner, topology, way, beside, price_of(topology, prices))
        for topology in by_cost(prices)
        for way in dict.fromkeys((planner.storage.quantize, "int8"))
    ]


def _outlook(
    planner: ImagePlanner, topology: Topology, quantize: str, beside: int, per_hour: float | None
) -> PictureOutlook:
    parts = planner.held(topology.devices, topology.usable, quantize)
    splits = splits_pictures(topology.devices, sum(planner.parts(1, quantize).values()), topology.usable)
    operations, rows = planner.work
    sharing = topology.devices if splits else min(PAIR, topology.devices) if rows == PAIR else 1
    held = sum(parts.values()) + beside
    return PictureOutlook(
        topology=topology.name,
        chips=topology.chips,
        quantize=quantize,
        parts=parts,
        splits=splits,
        held=held,
        fits=fits(held, topology),
        seconds=planner.steps * device_seconds(topology, parts[planner.denoiser], operations / sharing),
        per_hour=per_hour,
    )


def table(name: str, planner: ImagePlanner) -> Iterator[str]:
    """The rows of `survey_pictures` for one model, one for each way to keep its weights."""
    operations, _ = planner.work
    wide, tall = planner.size
    for way in dict.fromkeys((planner.storage.quantize, "int8")):
        parts = planner.parts(1, way)
        denoiser, autoencoder = parts[planner.denoiser], parts["vae"]
        encoders = sum(parts.values()) - denoiser - autoencoder
        cells = [
            f"{name}, {planner.steps} steps of {wide} x {tall}",
            planner.storage.dtype if way == "none" else way,
            *(f"{size / GIB:.1f}" for size in (denoiser, encoders, autoencoder)),
            f"{operations / 1e12:.1f}",
        ]
        for topology in map(parse, SURVEYED):
            found = _outlook(planner, topology, way, 0, None)
            where = f" ({found.held / GIB:.1f} each)" if found.splits else ""
            cells.append(f"{found.seconds:.2g} s{where}" if found.fits else f"no: {found.held / GIB:.1f}")
        yield f"| {' | '.join(cells)} |"
