"""What the studio and the API use of an image model, whether it runs in this process or in another one.

`generator.py` is the model itself; `serving/remote_models.py` asks one in another process.
"""

import hashlib
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from PIL import Image

from hfjax_app.errors import RequestRejected
from hfjax_app.images.prompt_weights import loras_in
from hfjax_app.images.request import CompletedRequest, ImageRequest, checked_loras, loras_of, random_seed, text_of
from hfjax_app.limits import IMAGE_MAX_SIDE
from hfjax_app.validation import quoted

if TYPE_CHECKING:  # whose parameters are made from the facts below
    from hfjax_app.images.steps import ImageStep, Waiting

SIZE_STEP = 8
MOST_PIXELS = 4  # times the pixels of the checkpoint's own size
STEPS = 20
GUIDANCE_SCALE = 7.5


@dataclass(frozen=True, kw_only=True)
class Recommended:
    """The settings that a model card recommends; diffusers' usual values where it names none.

    Attributes:
        steps: denoising steps.
        guidance_scale: how closely to follow the prompt.
        size: (width, height) in pixels; None: the pipeline's own.
    """

    steps: int = STEPS
    guidance_scale: float = GUIDANCE_SCALE
    size: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Latents:
    """The shape of the noise that a pipeline draws.

    Args:
        shape: at some size.
        height, width: its axes.
        scale: pixels a side for each latent.
    """

    shape: tuple[int, ...]
    height: int
    width: int
    scale: int

    def of(self, size: tuple[int, int]) -> tuple[int, ...]:
        """The shape for a picture of this size, (width, height) in pixels."""
        shape = list(self.shape)
        shape[self.width], shape[self.height] = size[0] // self.scale, size[1] // self.scale
        return tuple(shape)


@dataclass(frozen=True, kw_only=True)
class PromptLength:
    """How long a prompt is for a model's text encoder; where it has several, for the one that reads most.

    Attributes:
        tokens: of the prompt, without those at its begin and end.
        room: tokens that are read at once.
        pieces: that the prompt is read in.
        is_cut: whether its end is not read.
    """

    tokens: int
    room: int
    pieces: int
    is_cut: bool


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The limits on a picture's size.

    Args:
        own: (width, height) in pixels of the pictures that the checkpoint was trained for.
        patch: pixels a side of the denoiser's smallest unit.
    """

    own: tuple[int, int]
    patch: int

    def checked(self, width: object, height: object) -> tuple[int, int]:
        """(width, height); None stands for the checkpoint's own.

        Raises:
            RequestRejected: not a whole number, not a multiple of the model's unit, too small or too large.
        """
        sides = dict(zip(("width", "height"), self.own, strict=True))
        least = min(32, *self.own)
        for name, value in {"width": width, "height": height}.items():
            if value is None:
                continue
            if type(value) is not int or not least <= value <= IMAGE_MAX_SIDE or value % SIZE_STEP:
                raise RequestRejected(
                    f"{name} = {value!r}: must be a multiple of {SIZE_STEP} from {least} to {IMAGE_MAX_SIDE}"
                )
            sides[name] = value
        wide, tall = sides.values()
        if wide * tall > self._most_pixels:
            raise RequestRejected(f"size = {wide} x {tall}: at most {self._most_pixels:,} pixels with this model")
        if wide % self.patch or tall % self.patch:
            raise RequestRejected(f"size = {wide} x {tall}: must be multiples of {self.patch} with this model")
        return wide, tall

    def nearest(self, width: int, height: int) -> tuple[int, int]:
        """The size nearest to this one, of about its shape, that `checked` takes."""
        unit = math.lcm(SIZE_STEP, self.patch)
        least, sides = -(-min(32, *self.own) // unit) * unit, (max(width, 1), max(height, 1))
        factor = min(1.0, IMAGE_MAX_SIDE / max(sides), math.sqrt(self._most_pixels / math.prod(sides)))
        wide, tall = (max(least, round(side * factor / unit) * unit) for side in sides)
        while wide * tall > self._most_pixels:  # by rounding, or by the smallest side of a long picture
            wide, tall = (wide - unit, tall) if wide > tall else (wide, tall - unit)
        return wide, tall

    @property
    def _most_pixels(self) -> int:
        return MOST_PIXELS * math.prod(self.own)


@dataclass(frozen=True, kw_only=True)
class LoraFacts:
    """A LoRA that may be chosen.

    Attributes:
        weight: in pictures for which nothing is chosen; 0: it is not in these.
        digest: SHA-256 of its file.
    """

    weight: float
    digest: bytes


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """What a model is and takes, the same for all of its replicas.

    Attributes:
        name: the checkpoint's, or None.
        revision: the checkpoint's, or None.
        versions: of everything else that a picture's pixels depend on.
        recommended: the steps and guidance scale of its model card.
        sizes: the limits on a picture's size.
        latents: the shape of the noise.
        schedulers: the names of those that may be chosen, the checkpoint's own first.
        most: the model's own limits on options, by their names, where they are below the usual ones.
        takes_negative_prompt: whether it takes a negative prompt.
        takes_weights: whether weights of words, "(word:1.3)", are read; else they are text.
        takes_guidance: whether the guidance scale changes pictures.
        takes_picture: whether it can start from a picture.
        edits: whether the prompt says what to change in that picture, and the drawing begins with noise.
        needs_picture: whether it draws nothing without that.
        loras: that may be chosen, by their names.
    """

    name: str | None
    revision: str | None
    versions: dict[str, str]
    recommended: Recommended
    sizes: Sizes
    latents: Latents
    schedulers: tuple[str, ...]
    most: Mapping[str, int]
    takes_negative_prompt: bool
    takes_weights: bool
    takes_guidance: bool = True
    takes_picture: bool = True
    edits: bool = False
    needs_picture: bool = False
    loras: Mapping[str, LoraFacts] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels of the pictures that the model was trained for."""
        return self.sizes.own

    @property
    def scale(self) -> int:
        """Pixels a side for each latent."""
        return self.latents.scale

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """The shape of the noise of a picture of `size`."""
        return self.latents.of(self.size)

    def chosen(self, loras: str | None, prompt: str) -> str:
        """The LoRAs of a picture, as in `ImageRequest`, in the order of the settings.

        Args:
            loras: those of a request.
            prompt: may name some. Where the model has none at all, these are passed over.

        Raises:
            RequestRejected: the model has no such LoRA; names those that it has.
        """
        own = {name: lora.weight for name, lora in self.loras.items() if lora.weight}
        asked = own if loras is None else loras_of(loras)
        if self.loras:
            asked = checked_loras(asked | loras_in(prompt))
        if unknown := [name for name in asked if name not in self.loras]:
            known = f"must be one of {', '.join(self.loras)}" if self.loras else "this model has none; leave it out"
            raise RequestRejected(f"LoRA {quoted(unknown[0])}: {known}")
        return text_of({name: asked[name] for name in self.loras if asked.get(name)})

    def drawn_by(self, loras: str) -> tuple[str | None, str | None]:
        """(name, revision) of the model with LoRAs, as `chosen` gives them."""
        found = loras_of(loras)
        if not found or self.revision is None:
            return self.name, self.revision
        digest = hashlib.sha256(self.revision.encode())
        for name, weight in found.items():
            digest.update(self.loras[name].digest + f"{weight:g}".encode())
        named = " + ".join([self.name or "", *(f"{name} ({weight:g})" for name, weight in found.items())])
        return named, digest.hexdigest()[:12]

    def trial(self, **options: Any) -> ImageRequest:
        """A request that the model takes, with a blank picture where it needs one."""
        image = Image.new("RGB", self.size) if self.needs_picture else None
        return ImageRequest("ready", image=image, **options)

    def completed(self, request: ImageRequest) -> CompletedRequest:
        """The request with the model's own values, and a random seed, in the places of None.

        Raises:
            RequestRejected: the model can't draw it: the value and the limit. Schedulers check their names and steps
                and strengths themselves, see `Samplers.schedule`.
        """
        if request.image is not None and not self.takes_picture:
            raise RequestRejected("picture to start from: this model takes none; leave it out")
        if request.image is None and self.needs_picture:
            raise RequestRejected("picture to start from: this model changes one by the prompt, and needs it")
        if self.edits and (request.mask is not None or request.expand):
            raise RequestRejected("mask, expand: this model changes a picture by the prompt alone; leave them out")
        if request.negative_prompt.strip() and not self.takes_negative_prompt:
            raise RequestRejected("negative prompt: this model takes none; leave it empty")
        for name, most in self.most.items():
            if (value := getattr(request, name)) is not None and value > most:
                limit = f"at most {most} with this model" if most else "this model takes none"
                raise RequestRejected(f"{name.replace('_', ' ')} = {value}: {limit}")
        width, height = self.sizes.checked(request.width, request.height)
        known = {each.name: getattr(request, each.name) for each in fields(request)}
        own: dict[str, Any] = {
            "steps": self.recommended.steps,
            "guidance_scale": self.recommended.guidance_scale,
            "seed": random_seed(),
            "scheduler": self.schedulers[0],
        }
        own = {name: value for name, value in own.items() if known[name] is None}
        own["loras"] = self.chosen(request.loras, request.prompt)
        if request.latents is not None and request.latents.shape != (shape := self.latents.of((width, height))):
            raise RequestRejected(f"latents of shape {request.latents.shape}: must be of shape {shape}")
        return CompletedRequest(**known | own | {"width": width, "height": height})


class ImageModel(Protocol):
    """An image model; `ImageGenerator` documents the members."""

    @property
    def facts(self) -> ImageFacts: ...

    @property
    def offered_sizes(self) -> tuple[tuple[int, int], ...]: ...

    @property
    def steps(self) -> int: ...

    @property
    def steps_per_s(self) -> float | None: ...

    def length(self, prompt: str) -> PromptLength: ...

    def generate(
        self, request: ImageRequest, *, previews: bool = True, client: str = ""
    ) -> "Generator[ImageStep | Waiting, None, None]": ...
