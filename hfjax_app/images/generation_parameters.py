"""A picture's generation parameters inside its PNG file: as JSON, and as the Stable Diffusion web UI's text.

The JSON (text chunk `hfjax`) holds everything that is needed to draw the picture again; the text (chunk `parameters`)
is for people and other programs. Either is read, and what other programs write (`foreign_parameters.py`); all of it is
untrusted.
"""

import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hfjax_app import __version__
from hfjax_app.errors import RequestRejected
from hfjax_app.images import foreign_parameters
from hfjax_app.images.foreign_parameters import ForeignParameters, canonical_scheduler, nearest_scheduler, web_ui_text
from hfjax_app.images.interface import ImageFacts
from hfjax_app.images.prompt_weights import check_weights, left_out
from hfjax_app.images.request import MAX_SEED, OPTIONS, Box, CompletedRequest, ImageRequest
from hfjax_app.images.start_picture import MASK_CHARACTERS, Placement, digest, from_text, to_text
from hfjax_app.limits import (
    GENERATION_PARAMETERS_MAX_CHARACTERS,
    GENERATION_PARAMETERS_MAX_NAME_CHARACTERS,
    IMAGE_MAX_CHARACTERS,
)
from hfjax_app.pictures import checked_colour, is_transparent, read_picture
from hfjax_app.validation import checked_text

_JSON, _TEXT = "hfjax", "parameters"
_LIBRARIES = ("jax", "torchax", "torch", "diffusers", "transformers")
_SHA256 = re.compile("[0-9a-f]{64}")
_WEB_UI = {"Euler ancestral": "Euler a"}  # the web UI's names of schedulers that have another name here
# In the JSON besides options.
_OTHERS = {"image": str, "mask": str, "box": str, "model": str, "revision": str, "versions": dict}
_BOX = re.compile(r"(-?\d{1,6}),(-?\d{1,6}),(\d{1,6}),(\d{1,6})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class GenerationParameters:
    """What is needed to draw one picture again.

    Attributes:
        values: of `ImageRequest`'s options by their names; those of a file are not checked. None or missing is what
            makes no difference for this picture, such as the strength without a picture to start from, and what a file
            of another program doesn't say.
        image: SHA-256 of the pixels of the picture to start from; None without one.
        mask: its mask in latents, see `start_picture.py`; in older files the mask's SHA-256. None without one.
        box: what of the picture the mask covers, "left,top,width,height"; None without a mask.
        model: the checkpoint's name.
        revision: the checkpoint's.
        versions: the app's and its libraries', the device's kind, and the networks' dtype; None if unknown.
        left_out: what a file of another program says besides; it is not written into files.
    """

    values: Mapping[str, Any]
    image: str | None = None
    mask: str | None = None
    box: str | None = None
    model: str | None = None
    revision: str | None = None
    versions: dict[str, str] | None = None
    left_out: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, request: CompletedRequest, place: Placement | None, facts: ImageFacts) -> "GenerationParameters":
        """Those of a request's first picture.

        Args:
            request: to the model.
            place: of its drawing in the picture that it started from; None: no part of that stays.
            facts: of the model.
        """
        values: dict[str, Any] = {name: getattr(request, name) for name in OPTIONS}
        values |= {name: None for name, option in OPTIONS.items() if values[name] == option.idle}
        if request.image is None or facts.edits:
            values["strength"] = None
        if request.image is None or not is_transparent(request.image):
            values["background"] = None
        if request.variation_of is None:
            values["variation"] = None
        if place is None:
            values["softness"] = None
        if not facts.loras:
            values["loras"] = None
        model, revision = facts.drawn_by(request.loras)
        return cls(
            values=values,
            image=digest(request.image),
            mask=None if place is None else to_text(place.mask),
            box=None if place is None else ",".join(map(str, place.box)),
            model=model,
            revision=revision,
            versions=facts.versions,
        )

    def of_seed(self, seed: int) -> "GenerationParameters":
        """Those of another picture of the same request."""
        return replace(self, values={**self.values, "seed": seed})

    def request(self, image: Image.Image | None = None, mask: Image.Image | None = None) -> ImageRequest:
        """The request for this picture.

        Raises:
            RequestRejected: one of the values is none that a model takes.
        """
        known = {name: value for name, value in self.values.items() if value is not None}
        return ImageRequest(**known, image=image, mask=mask, box=None if mask is None else self._box())

    def _box(self) -> Box | None:
        if self.box is None:
            return None
        if (found := _BOX.fullmatch(self.box)) is None:
            raise RequestRejected(f"the picture's settings are forged or damaged: box = {self.box[:40]!r}")
        left, top, width, height = map(int, found.groups())
        return left, top, width, height

    def latent_mask(self) -> np.ndarray | None:
        """The mask, bool [height, width] in latents; None where there is none, or only its SHA-256.

        Raises:
            RequestRejected: `mask` is neither a mask nor a SHA-256.
        """
        return None if self.mask is None or _SHA256.fullmatch(self.mask) else from_text(self.mask)

    def text(self) -> str:
        """The parameters in the web UI's form: the prompt, the negative prompt, and a line of the others."""
        values = {**dict.fromkeys(OPTIONS), **self.values}
        near, guidance = values["variation_of"], values["guidance_scale"]
        settings = {
            "Steps": values["steps"],
            "Sampler": _WEB_UI.get(values["scheduler"], values["scheduler"]),
            "CFG scale": None if guidance is None else f"{guidance:g}",
            "Seed": values["seed"] if near is None else near,
            "Variation seed": None if near is None else values["seed"],
            "Variation seed strength": values["variation"],
            "Size": f"{values['width']}x{values['height']}",
            "Model hash": self.revision,
            "Model": self.model,
            **{
                option.label: values[name] + option.shift
                for name, option in OPTIONS.items()
                if option.label and values[name] is not None
            },
            "Version": self.versions and f"hfjax_app {self.versions.get('hfjax_app')}",
        }
        return web_ui_text(values["prompt"], values["negative_prompt"], settings)

    def differences(self, versions: dict[str, str]) -> list[str]:
        """The versions that have changed since the picture was made, such as "jax 0.10.1, now 0.10.2"."""
        made = self.versions or {}
        return [
            f"{name} {made.get(name, 'unknown')}, now {now}" for name, now in versions.items() if made.get(name) != now
        ]


def current_versions(device: str, dtype: str) -> dict[str, str]:
    """What a picture's pixels depend on besides its parameters: the app, libraries, the device, the networks' dtype."""
    libraries = {name: version(name) for name in _LIBRARIES}
    return {"hfjax_app": __version__, **libraries, "device": device, "dtype": dtype}


def to_png(picture: Image.Image, parameters: GenerationParameters) -> bytes:
    """The picture as a PNG file with its parameters inside."""
    info = PngInfo()
    info.add_itxt(_TEXT, parameters.text())
    values = {**dict.fromkeys(OPTIONS), **parameters.values, **{name: getattr(parameters, name) for name in _OTHERS}}
    info.add_itxt(_JSON, json.dumps(values, ensure_ascii=False))
    file = io.BytesIO()
    picture.save(file, "PNG", pnginfo=info)
    return file.getvalue()


def read_png(data: object) -> tuple[Image.Image, GenerationParameters]:
    """A picture and the generation parameters inside its file: PNG, or JPEG and WebP of other programs.

    Types, names and the mask are checked; `GenerationParameters.request` checks the other values.

    Raises:
        RequestRejected: not a picture, no parameters inside, or damaged ones.
    """
    picture = read_picture(data, "picture")
    found = picture.info.get(_JSON)
    if isinstance(found, str) and len(found) <= GENERATION_PARAMETERS_MAX_CHARACTERS + MASK_CHARACTERS:
        return picture, _with_printable_names(_from_json(found))
    foreign = foreign_parameters.read(picture)
    if foreign is not None:
        return picture, _with_printable_names(_from_foreign(foreign, picture.size))
    if _TEXT in picture.info:
        raise RequestRejected(
            "the picture's settings can't be read: their last line must hold Steps, Sampler, CFG scale, Seed and Size"
        )
    raise RequestRejected(
        "the picture has no settings inside: only files that came from here, a Stable Diffusion web UI, ComfyUI, "
        "Fooocus, InvokeAI, SwarmUI or NovelAI have"
    )


def _with_printable_names(parameters: GenerationParameters) -> GenerationParameters:
    """The parameters, if their names can stand in a line of a message: short and printable.

    Raises:
        RequestRejected: a name can't.
    """
    versions = parameters.versions or {}
    named = {
        "model": parameters.model,
        "revision": parameters.revision,
        "scheduler": parameters.values.get("scheduler"),
    }
    for name, value in (*named.items(), *(("versions", part) for pair in versions.items() for part in pair)):
        if value is not None and not (value.isprintable() and len(value) <= GENERATION_PARAMETERS_MAX_NAME_CHARACTERS):
            raise RequestRejected(f"the picture's settings are forged or damaged: {name} = {value[:40]!a}")
    return parameters


def _from_json(text: str) -> GenerationParameters:
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise RequestRejected("the picture's settings are damaged: they are no JSON") from None
    if not isinstance(values, dict):
        raise RequestRejected("the picture's settings are damaged: they are no JSON object")
    values = {name: None for name, option in OPTIONS.items() if not option.in_every_file} | {"box": None} | values
    if wrong := sorted({*OPTIONS, *_OTHERS}.symmetric_difference(values)):
        raise RequestRejected(f"the picture's settings are forged or damaged: {wrong[0][:40]!r} is missing or unknown")
    for name, value in values.items():
        if type(value) not in _types(name):
            raise RequestRejected(f"the picture's settings are forged or damaged: {name} = {str(value)[:40]!r}")
    versions = values["versions"]
    if versions is not None and not all(isinstance(part, str) for pair in versions.items() for part in pair):
        raise RequestRejected("the picture's settings are forged or damaged: versions must be text")
    if len(text) - len(values["mask"] or "") > GENERATION_PARAMETERS_MAX_CHARACTERS:
        raise RequestRejected(f"the picture's settings are forged or damaged: they are {len(text):,} characters long")
    others = {name: values.pop(name) for name in _OTHERS}
    parameters = GenerationParameters(values=values, **others)
    parameters.latent_mask()
    return parameters


def _types(name: str) -> tuple[type, ...]:
    """Those of a value in the JSON."""
    if name in _OTHERS:
        return (_OTHERS[name], type(None))
    option = OPTIONS[name]
    kinds = (int, float) if option.kind is float else (option.kind,)
    return kinds if option.in_every_file else (*kinds, type(None))


def _from_foreign(found: ForeignParameters, size: tuple[int, int]) -> GenerationParameters:
    """Another program's values; a size that it doesn't say is the picture's."""
    values = {"prompt": "", "negative_prompt": "", "width": size[0], "height": size[1]} | found.values
    model, revision = (values.pop(name, None) for name in ("model", "revision"))
    if "scheduler" in values:
        values["scheduler"] = canonical_scheduler(str(values["scheduler"]))
    return GenerationParameters(
        values=values,
        model=None if model is None else str(model),
        revision=None if revision is None else str(revision),
        left_out=found.left_out,
    )


def fitted(parameters: GenerationParameters, facts: ImageFacts) -> GenerationParameters:
    """The parameters as a model takes them; `left_out` says what is not as in the file."""
    notes = list(parameters.left_out)
    values = dict(parameters.values)
    for name, option in OPTIONS.items():
        value, called = values.get(name), name.replace("_", " ")
        if value is None or option.low is None or option.high is None:
            continue
        if option.high == MAX_SEED:  # a seed that is near draws another picture
            if not option.low <= value <= option.high:
                notes.append(f"{called} {value}")
                values[name] = None
            continue
        values[name] = _within(called, value, (option.low, facts.most.get(name, option.high)), notes)
    if values.get("background") is not None:
        values["background"] = checked_colour("background", values["background"])
    for name in ("prompt", "negative_prompt"):
        called = name.replace("_", " ")
        values[name] = _text(called, values[name], notes)
        try:
            check_weights(values[name])
            lines = left_out(values[name], takes_weights=facts.takes_weights, loras=facts.loras)
            notes += [f"{called}: {line}" for line in lines]
        except RequestRejected as error:
            notes.append(str(error))
    if values["negative_prompt"] and not facts.takes_negative_prompt:
        notes.append("negative prompt: this model takes none")
        values["negative_prompt"] = ""
    width, height = values["width"], values["height"]
    size = facts.sizes.nearest(width, height)
    if size != (width, height):
        notes.append(f"size {width} x {height}: here {size[0]} x {size[1]}")
    values["width"], values["height"] = size
    if (scheduler := values.get("scheduler")) is not None:
        values["scheduler"] = nearest_scheduler(scheduler, facts.schedulers)
        if values["scheduler"] != scheduler:
            notes.append(f"scheduler {scheduler}: here {values['scheduler']}")
    loras = ""
    try:
        loras = facts.chosen(values.get("loras"), values["prompt"])
    except RequestRejected as error:
        notes.append(str(error))
    values["loras"] = loras if facts.loras else None
    if parameters.model and parameters.revision not in (facts.revision, facts.drawn_by(loras)[1]):
        notes.append(f"model {parameters.model}")
    return replace(parameters, values=values, left_out=tuple(notes))


def _within(name: str, value: float, limits: tuple[float, float], notes: list[str]) -> float | None:
    low, high = limits
    kept = None if math.isnan(value) else min(max(value, low), high)
    if kept != value:
        notes.append(f"{name} {value:g}: {'no number' if kept is None else f'here {kept:g}'}")
    return kept


def _text(name: str, text: str, notes: list[str]) -> str:
    kept = text[:IMAGE_MAX_CHARACTERS]
    if kept != text:
        notes.append(f"the {name} behind its first {IMAGE_MAX_CHARACTERS:,} characters")
    try:
        return checked_text(kept, name, IMAGE_MAX_CHARACTERS, may_be_blank=True)
    except RequestRejected as error:
        notes.append(str(error))
        return ""
