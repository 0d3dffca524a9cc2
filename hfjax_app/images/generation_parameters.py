"""A picture's generation parameters inside its PNG file: as JSON, and as the Stable Diffusion web UI's text.

The JSON (text chunk `hfjax`) holds everything that is needed to draw the picture again; the text (chunk `parameters`)
is for people and other programs. Either is read, and what other programs write (`foreign_parameters.py`); all of it is
untrusted. Does not draw: `verification.py` does.
"""

import hashlib
import io
import json
import re
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hfjax_app import __version__
from hfjax_app.errors import RequestRejected
from hfjax_app.images import foreign_parameters, web_ui_text
from hfjax_app.images.foreign_parameters import ForeignParameters
from hfjax_app.images.mask import MASK_CHARACTERS, from_text
from hfjax_app.images.scheduler_names import canonical
from hfjax_app.limits import GENERATION_PARAMETERS_MAX_CHARACTERS, GENERATION_PARAMETERS_MAX_NAME_CHARACTERS
from hfjax_app.pictures.colours import is_transparent
from hfjax_app.pictures.uploads import read_picture

_JSON, _TEXT = "hfjax", "parameters"
_LIBRARIES = ("jax", "torchax", "torch", "diffusers", "transformers")
_SHA256 = re.compile("[0-9a-f]{64}")
_WEB_UI = {"Euler ancestral": "Euler a"}  # the web UI's names of schedulers that have another name here


@dataclass(frozen=True, kw_only=True)
class GenerationParameters:
    """Everything that is needed to draw one picture again. Other fields are as in `ImageGenerator.generate`.

    Steps, guidance scale, seed and scheduler are None where a file of another program doesn't say them.

    Attributes:
        strength: None without a picture to start from.
        image: SHA-256 of the pixels of the picture to start from; None without one.
        mask: its mask in latents, see `mask.py`; in older files the mask's SHA-256. None without one.
        background: the colour of the picture to start from where it is transparent; None where it is not.
        variation_of: the seed that the picture stays near; None: it is of its own seed alone.
        variation: how far from that seed's; None without one.
        model: the checkpoint's name.
        revision: the checkpoint's.
        versions: the app's and its libraries', the device's kind, and the networks' dtype; None if unknown.
        left_out: what a file of another program says besides; it is not written into files.
    """

    prompt: str
    negative_prompt: str
    steps: int | None
    guidance_scale: float | None
    seed: int | None
    width: int
    height: int
    scheduler: str | None
    strength: float | None = None
    image: str | None = None
    mask: str | None = None
    background: str | None = None
    variation_of: int | None = None
    variation: float | None = None
    model: str | None = None
    revision: str | None = None
    versions: dict[str, str] | None = None
    left_out: tuple[str, ...] = field(default=(), compare=False)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `ImageGenerator.generate`, without the picture and the mask."""
        names = ("prompt", "negative_prompt", "steps", "guidance_scale", "seed", "width", "height", "scheduler")
        values = {name: getattr(self, name) for name in (*names, "strength", "background", "variation_of", "variation")}
        return {name: value for name, value in values.items() if value is not None}

    def latent_mask(self) -> np.ndarray | None:
        """The mask, bool [height, width] in latents; None where there is none, or only its SHA-256.

        Raises:
            RequestRejected: `mask` is neither a mask nor a SHA-256.
        """
        return None if self.mask is None or _SHA256.fullmatch(self.mask) else from_text(self.mask)

    def text(self) -> str:
        """The parameters in the web UI's form: the prompt, the negative prompt, and a line of the others."""
        settings = {
            "Steps": self.steps,
            "Sampler": _WEB_UI.get(self.scheduler or "", self.scheduler),
            "CFG scale": None if self.guidance_scale is None else f"{self.guidance_scale:g}",
            "Seed": self.seed if self.variation_of is None else self.variation_of,
            "Variation seed": None if self.variation_of is None else self.seed,
            "Variation seed strength": self.variation,
            "Size": f"{self.width}x{self.height}",
            "Model hash": self.revision,
            "Model": self.model,
            "Denoising strength": self.strength,
            "Version": self.versions and f"hfjax_app {self.versions.get('hfjax_app')}",
        }
        return web_ui_text.write(self.prompt, self.negative_prompt, settings)

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


def digest(picture: Image.Image | None) -> str | None:
    """SHA-256 of a picture's size and pixels (with alpha, if some is transparent), in hexadecimal; None for None."""
    if picture is None:
        return None
    colour = picture.convert("RGBA" if is_transparent(picture) else "RGB")
    return hashlib.sha256(f"{colour.size}".encode() + colour.tobytes()).hexdigest()


def to_png(picture: Image.Image, parameters: GenerationParameters) -> bytes:
    """The picture as a PNG file with its parameters inside."""
    info = PngInfo()
    info.add_itxt(_TEXT, parameters.text())
    values = asdict(parameters)
    del values["left_out"]
    info.add_itxt(_JSON, json.dumps(values, ensure_ascii=False))
    file = io.BytesIO()
    picture.save(file, "PNG", pnginfo=info)
    return file.getvalue()


def read_png(data: object) -> tuple[Image.Image, GenerationParameters]:
    """A picture and the generation parameters inside its file: PNG, or JPEG and WebP of other programs.

    Types, names and the mask are checked; `ImageGenerator.generate` checks the other values.

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


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("prompt", "negative_prompt", "scheduler"), (str,)),
    **dict.fromkeys(("steps", "seed", "width", "height"), (int,)),
    "guidance_scale": (int, float),
    **dict.fromkeys(("strength", "variation"), (int, float, type(None))),
    "variation_of": (int, type(None)),
    **dict.fromkeys(("image", "mask", "background", "model", "revision"), (str, type(None))),
    "versions": (dict, type(None)),
}


def _with_printable_names(parameters: GenerationParameters) -> GenerationParameters:
    """The parameters, if their names can stand in a line of a message: short and printable.

    Raises:
        RequestRejected: a name can't.
    """
    versions = parameters.versions or {}
    named = {"model": parameters.model, "revision": parameters.revision, "scheduler": parameters.scheduler}
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
    for name in ("background", "variation_of", "variation"):  # files of version 0.1 have none of these
        values.setdefault(name, None)
    names = {field.name for field in fields(GenerationParameters)} - {"left_out"}
    if wrong := sorted(names.symmetric_difference(values)):
        raise RequestRejected(f"the picture's settings are forged or damaged: {wrong[0][:40]!r} is missing or unknown")
    for name, value in values.items():
        if type(value) not in _TYPES[name]:
            raise RequestRejected(f"the picture's settings are forged or damaged: {name} = {str(value)[:40]!r}")
    versions = values["versions"]
    if versions is not None and not all(isinstance(part, str) for pair in versions.items() for part in pair):
        raise RequestRejected("the picture's settings are forged or damaged: versions must be text")
    if len(text) - len(values["mask"] or "") > GENERATION_PARAMETERS_MAX_CHARACTERS:
        raise RequestRejected(f"the picture's settings are forged or damaged: they are {len(text):,} characters long")
    parameters = GenerationParameters(**values)
    parameters.latent_mask()
    return parameters


def _from_foreign(found: ForeignParameters, size: tuple[int, int]) -> GenerationParameters:
    """Another program's values; a size that it doesn't say is the picture's."""
    named = ("steps", "guidance_scale", "seed", "strength", "model", "revision")
    scheduler = found.values.get("scheduler")
    return GenerationParameters(
        prompt=found.values.get("prompt", ""),
        negative_prompt=found.values.get("negative_prompt", ""),
        width=found.values.get("width", size[0]),
        height=found.values.get("height", size[1]),
        scheduler=None if scheduler is None else canonical(scheduler),
        **{name: found.values.get(name) for name in named},
        left_out=found.left_out,
    )
