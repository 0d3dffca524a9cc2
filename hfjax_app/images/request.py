"""A request for pictures: everything that they depend on, checked where it is made, and how PNG files spell it.

A drawing option is a field of `ImageRequest`. Its `Option` says which values it takes and what it is called in files.
Imports no library that computes, so that a wrong request is refused at once.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.prompt_weights import check_weights
from hfjax_app.limits import IMAGE_MAX_CHARACTERS, IMAGE_MAX_LORAS, IMAGE_MAX_SIDE
from hfjax_app.pictures import WHITE, checked_colour
from hfjax_app.validation import checked_text, quoted

MAX_STEPS = 100
MAX_GUIDANCE = 20.0
SEEDS = 2**64
MAX_SEED = SEEDS - 1
MAX_IMAGES = 4
MAX_CLIP_SKIP = 12  # all layers of Stable Diffusion 1's text encoder
MAX_SOFTNESS = 8.0
MAX_LORA_WEIGHT = 4.0
REGIONS = ("whole", "marked")
VARIATION = 0.3  # of variations of a seed, unless another is asked for: the picture changes, its layout stays


Box: TypeAlias = tuple[int, int, int, int]  # left, top, width, height
_BOX_MOST = 1_000_000  # pixels of each of them; with new edges a picture has fewer
_LORA_NAME = 100  # characters
_SIDES = re.compile(r"\s*(\d{1,4})\s*,\s*(\d{1,4})\s*,\s*(\d{1,4})\s*,\s*(\d{1,4})\s*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is known of a drawing option besides its default.

    Attributes:
        kind: of its value: int, float or str.
        low, high: the limits of a number; None: the model has them, or a function of its own checks the value.
        in_every_file: whether each PNG file says it; others leave it out where it makes no difference.
        idle: the value that changes no picture, which files leave out.
        label: its name in the text of web UIs, where that has the same value; else "".
        shift: what the text of web UIs and other programs add to it.
        names: other programs' names for it, without capitals, spaces and signs.
    """

    kind: type
    low: float | None = None
    high: float | None = None
    in_every_file: bool = False
    idle: object = None
    label: str = ""
    shift: int = 0
    names: tuple[str, ...] = ()

    def checked(self, name: str, value: object) -> Any:
        """The value in its kind.

        Raises:
            RequestRejected: it is no number, or out of range.
        """
        if self.low is None or self.high is None:
            return value
        check = whole_number if self.kind is int else real_number
        return check(name.replace("_", " "), value, self.low, self.high)


def whole_number(name: str, value: object, low: float, high: float) -> int:
    """The value as an int.

    Raises:
        RequestRejected: it is not a whole number, or out of range.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        raise RequestRejected(f"{name} = {quoted(value)}: must be a whole number from {low} to {high}")
    return int(value)


def real_number(name: str, value: object, low: float, high: float) -> float:
    """The value as a float.

    Raises:
        RequestRejected: it is not a number, or out of range.
    """
    if not isinstance(value, int | float | np.floating) or isinstance(value, bool) or not low <= value <= high:
        raise RequestRejected(f"{name} = {quoted(value)}: must be a number from {low:g} to {high:g}")
    return float(value)


def sides_of(expand: object) -> tuple[int, int, int, int]:
    """The pixels of new edges left, right, up and down of a picture, from a text such as "64,64,0,0"; "" means none.

    Raises:
        RequestRejected: another text, or more than IMAGE_MAX_SIDE pixels.
    """
    if expand == "":
        return 0, 0, 0, 0
    found = _SIDES.fullmatch(expand) if isinstance(expand, str) else None
    left, right, up, down = map(int, found.groups()) if found else (IMAGE_MAX_SIDE + 1,) * 4
    if max(left, right, up, down) > IMAGE_MAX_SIDE:
        raise RequestRejected(
            f"expand = {quoted(expand)}: must be the pixels left, right, up and down, such as 64,64,0,0, each at most "
            f"{IMAGE_MAX_SIDE}"
        )
    return left, right, up, down


def loras_of(text: object) -> dict[str, float]:
    """The names and weights of LoRAs, from a text such as "style:0.8,other"; without a weight it is 1.

    Raises:
        RequestRejected: another text, or more than IMAGE_MAX_LORAS.
    """
    if not isinstance(text, str):
        raise RequestRejected(f"loras = {quoted(text)}: must be text such as style:0.8,other:0.5")
    found = {}
    checked_text(text, "loras", 2 * _LORA_NAME * IMAGE_MAX_LORAS, may_be_blank=True)
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, weight = part.partition(":")
        try:
            share = float(weight or 1)
        except ValueError:
            raise RequestRejected(f"loras = {quoted(part)}: must be text such as style:0.8,other:0.5") from None
        found[checked_text(name, "name of a LoRA", _LORA_NAME)] = share
    return checked_loras(found)


def checked_loras(loras: Mapping[str, float]) -> dict[str, float]:
    """The LoRAs, with four decimals of their weights.

    Raises:
        RequestRejected: there are more than IMAGE_MAX_LORAS, or a weight is out of range.
    """
    if len(loras) > IMAGE_MAX_LORAS:
        raise RequestRejected(f"{len(loras)} LoRAs: at most {IMAGE_MAX_LORAS}")
    for name, weight in loras.items():
        real_number(f"weight of the LoRA {name}", weight, -MAX_LORA_WEIGHT, MAX_LORA_WEIGHT)
    return {name: round(weight, 4) for name, weight in loras.items()}


def text_of(loras: Mapping[str, float]) -> str:
    """LoRAs as the text that `loras_of` reads."""
    return ",".join(f"{name}:{weight:g}" for name, weight in loras.items())


def _option(default: Any, kind: type, low: float | None = None, high: float | None = None, **known: Any) -> Any:
    return field(default=default, metadata={Option: Option(kind=kind, low=low, high=high, **known)})


@dataclass(frozen=True, eq=False)
class ImageRequest:
    """What to draw. `ImageFacts.completed` puts the model's own values in the places of None.

    Raises:
        RequestRejected: when it is made: the value and the limit. What depends on the model, `completed` checks.

    Attributes:
        prompt: what to draw; "(word:1.3)" weights a word, where the model's text encoders are CLIP's. The text
            encoder's limit cuts it, and the steps' `notice` says so.
        negative_prompt: what to avoid; may be empty.
        steps: denoising steps, 1 to MAX_STEPS or the model's limit; None: as the model card recommends.
        guidance_scale: how closely to follow the prompt, 0 to MAX_GUIDANCE; 1 and less mean no guidance, as in
            diffusers; None: as the model card recommends.
        seed: of the first picture, 0 to MAX_SEED; the others' follow it. None: a random one of 32 bits, which
            JavaScript can represent.
        width, height: in pixels, multiples of 8 or of what the model takes; None: the model's own.
        scheduler: one of the model's; None: the checkpoint's own.
        strength: with `image`: how much of it to replace, 0 to 1; this share of `steps` is made.
        background: with `image`: the colour of what is transparent in it, "#rrggbb"; the steps' `notice` says so.
        softness: with `mask` or `expand`: how wide the seam is between what is drawn and what stays, in latents, 0 to
            MAX_SOFTNESS.
        region: with `mask` or `expand`: "whole": as much of the picture is drawn as has the drawing's shape; "marked":
            only what is painted over, with a margin, and so larger.
        expand: with `image`: the pixels of new edges "left,right,up,down" of it, which are drawn too; "" means none.
        variation_of: a seed: each picture begins with noise between that of this seed and that of its own.
        variation: with `variation_of`: how far from that seed's noise, 0 (its picture) to 1 (the own seed's).
        clip_skip: how many of the text encoder's last layers are left out for the prompt, of Stable Diffusion 1 and 2;
            as in diffusers, the negative prompt is read by all of them. Web UIs count one more.
        loras: the LoRAs that are merged into the weights, such as "style:0.8,other:0.5", of those that the model has;
            "" means none, None those of the settings. "<lora:style:0.8>" in the prompt adds or changes one.
        images: how many pictures, 1 to MAX_IMAGES. Each equals the one that its seed gives alone.
        image: a picture to start from; it is scaled and cut to the size.
        mask: with `image`: white where to draw; the rest of the picture stays, at its resolution. Of its shape.
        box: with `mask`: the mask is as large as the drawing, and covers this part of the picture with its new edges;
            None: the mask covers the picture. Left and top may be negative.
        latents: the noise of the first step itself, unit normal, float [1, channels, height, width].
        model: the one that draws, by its name; None: the first.
    """

    prompt: str = field(
        metadata={Option: Option(kind=str, in_every_file=True, names=("prompt", "positiveprompt", "positive"))}
    )
    _: KW_ONLY
    negative_prompt: str = _option("", str, in_every_file=True, names=("negativeprompt", "negative", "uc"))
    steps: int | None = _option(None, int, 1, MAX_STEPS, in_every_file=True, names=("steps", "numinferencesteps"))
    guidance_scale: float | None = _option(
        None, float, 0, MAX_GUIDANCE, in_every_file=True, names=("cfgscale", "guidancescale", "cfg", "scale")
    )
    seed: int | None = _option(None, int, 0, MAX_SEED, in_every_file=True, names=("seed", "noiseseed"))
    width: int | None = _option(None, int, in_every_file=True, names=("width",))
    height: int | None = _option(None, int, in_every_file=True, names=("height",))
    scheduler: str | None = _option(None, str, in_every_file=True)
    strength: float = _option(
        0.8, float, 0, 1, label="Denoising strength", names=("denoisingstrength", "denoise", "strength")
    )
    background: str = _option(WHITE, str)
    softness: float = _option(1.0, float, 0, MAX_SOFTNESS)
    region: str = _option("whole", str, idle="whole")
    expand: str = _option("", str, idle="")
    variation_of: int | None = _option(None, int, 0, MAX_SEED)
    variation: float = _option(VARIATION, float, 0, 1)
    clip_skip: int = _option(0, int, 0, MAX_CLIP_SKIP, idle=0, label="Clip skip", shift=1, names=("clipskip",))
    loras: str | None = _option(None, str)
    images: int = 1
    image: Image.Image | None = None
    mask: Image.Image | None = None
    box: Box | None = None
    latents: np.ndarray | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        for name, text in (("prompt", self.prompt), ("negative prompt", self.negative_prompt)):
            checked_text(text, name, IMAGE_MAX_CHARACTERS, may_be_blank=name != "prompt")
            check_weights(text)
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in OPTIONS and (value is not None or each.default is not None):
                object.__setattr__(self, each.name, OPTIONS[each.name].checked(each.name, value))
        if self.loras is not None:
            object.__setattr__(self, "loras", text_of(loras_of(self.loras)))
        object.__setattr__(self, "background", checked_colour("background", self.background))
        object.__setattr__(self, "images", whole_number("images", self.images, 1, MAX_IMAGES))
        for name, picture in (("image", self.image), ("mask", self.mask)):
            if picture is not None and not isinstance(picture, Image.Image):
                raise RequestRejected(f"{name}: must be a picture, not {type(picture).__name__}")
        if self.mask is not None and self.image is None:
            raise RequestRejected("mask: there is no picture to draw into; upload one")
        if self.region not in REGIONS:
            raise RequestRejected(f"region = {quoted(self.region)}: must be {' or '.join(REGIONS)}")
        sides = sides_of(self.expand)
        object.__setattr__(self, "expand", ",".join(map(str, sides)) if any(sides) else "")
        if self.expand and self.image is None:
            raise RequestRejected("expand: there is no picture to enlarge; upload one")
        if self.region == "marked" and self.mask is None and not self.expand:
            raise RequestRejected("region = marked: nothing is marked; paint over a part of the picture")
        if self.box is not None:
            self._check_box(self.box)
        if self.latents is not None:
            object.__setattr__(self, "latents", np.array(self.latents, np.float32))
            if not np.isfinite(self.latents).all():
                raise RequestRejected("latents: must be finite")

    def _check_box(self, box: Any) -> None:
        numbers = box if isinstance(box, tuple) and len(box) == 4 else (None,)
        if not all(type(each) is int and abs(each) <= _BOX_MOST for each in numbers) or min(numbers[2:]) < 1:
            raise RequestRejected(f"box = {quoted(box)}: must be left, top, width and height in pixels")
        if self.mask is None:
            raise RequestRejected("box: there is no mask of this part")


@dataclass(frozen=True, kw_only=True, eq=False)
class CompletedRequest(ImageRequest):
    """A request in which nothing is left to the model."""

    steps: int
    guidance_scale: float
    seed: int
    width: int
    height: int
    scheduler: str
    loras: str

    @property
    def seeds(self) -> tuple[int, ...]:
        """A seed for each picture."""
        return tuple((self.seed + i) % SEEDS for i in range(self.images))

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.width, self.height


OPTIONS: dict[str, Option] = {
    each.name: each.metadata[Option] for each in fields(ImageRequest) if Option in each.metadata
}


def random_seed() -> int:
    """One of 32 bits: few digits, so that a person can read it, and JavaScript can represent it."""
    return secrets.randbits(32)
