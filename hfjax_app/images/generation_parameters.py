"""A picture's generation parameters inside its PNG file: as JSON, and as the Stable Diffusion web UI's text.

The JSON (text chunk `hfjax`) holds everything that is needed to draw the picture again; the text (chunk `parameters`)
is for people and other programs. Either is read, and both are untrusted. Does not draw: `verification.py` does.
"""

import hashlib
import io
import json
import re
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hfjax_app import __version__
from hfjax_app.errors import RequestRejected
from hfjax_app.images.mask import MASK_CHARACTERS, from_text
from hfjax_app.images.uploads import read_picture
from hfjax_app.limits import GENERATION_PARAMETERS_MAX_CHARACTERS, GENERATION_PARAMETERS_MAX_NAME_CHARACTERS

_JSON, _TEXT = "hfjax", "parameters"
_LIBRARIES = ("jax", "torchax", "torch", "diffusers", "transformers")
_SHA256 = re.compile("[0-9a-f]{64}")
# The web UI's names of schedulers that have another name here.
_WEB_UI = {"Euler a": "Euler ancestral"}
# A parameter begins after a comma: without this, the search would begin at each letter of a long word.
_PARAMETER = re.compile(r'(?:^|(?<=,))\s*([A-Za-z][\w /-]*):\s*("(?:\\.|[^\\"])*"|[^,]*)(?:,|$)')


@dataclass(frozen=True, kw_only=True)
class GenerationParameters:
    """Everything that is needed to draw one picture again. Other fields are as in `ImageGenerator.generate`.

    Attributes:
        strength: None without a picture to start from.
        image: SHA-256 of the pixels of the picture to start from; None without one.
        mask: its mask in latents, see `mask.py`; in older files the mask's SHA-256. None without one.
        model: the checkpoint's name.
        revision: the checkpoint's.
        versions: the app's and its libraries', the device's kind, and the networks' dtype; None if unknown.
    """

    prompt: str
    negative_prompt: str
    steps: int
    guidance_scale: float
    seed: int
    width: int
    height: int
    scheduler: str
    strength: float | None = None
    image: str | None = None
    mask: str | None = None
    model: str | None = None
    revision: str | None = None
    versions: dict[str, str] | None = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of `ImageGenerator.generate`, without the picture and the mask."""
        names = ("prompt", "negative_prompt", "steps", "guidance_scale", "seed", "width", "height", "scheduler")
        strength = {} if self.strength is None else {"strength": self.strength}
        return {name: getattr(self, name) for name in names} | strength

    def latent_mask(self) -> np.ndarray | None:
        """The mask, bool [height, width] in latents; None where there is none, or only its SHA-256.

        Raises:
            RequestRejected: `mask` is neither a mask nor a SHA-256.
        """
        return None if self.mask is None or _SHA256.fullmatch(self.mask) else from_text(self.mask)

    def text(self) -> str:
        """The parameters in the web UI's form: the prompt, the negative prompt, and a line of the others."""
        names = {name: web_ui_name for web_ui_name, name in _WEB_UI.items()}
        settings = {
            "Steps": self.steps,
            "Sampler": names.get(self.scheduler, self.scheduler),
            "CFG scale": f"{self.guidance_scale:g}",
            "Seed": self.seed,
            "Size": f"{self.width}x{self.height}",
            "Model hash": self.revision,
            "Model": self.model and _quoted(self.model),
            "Denoising strength": self.strength,
            "Version": self.versions and f"hfjax_app {self.versions.get('hfjax_app')}",
        }
        lines = [self.prompt]
        if self.negative_prompt:
            lines.append(f"Negative prompt: {self.negative_prompt}")
        lines.append(", ".join(f"{name}: {value}" for name, value in settings.items() if value is not None))
        return "\n".join(lines)

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
    """SHA-256 of a picture's size and pixels, in hexadecimal; None for None."""
    if picture is None:
        return None
    colour = picture.convert("RGB")
    return hashlib.sha256(f"{colour.size}".encode() + colour.tobytes()).hexdigest()


def to_png(picture: Image.Image, parameters: GenerationParameters) -> bytes:
    """The picture as a PNG file with its parameters inside."""
    info = PngInfo()
    info.add_itxt(_TEXT, parameters.text())
    info.add_itxt(_JSON, json.dumps(asdict(parameters), ensure_ascii=False))
    file = io.BytesIO()
    picture.save(file, "PNG", pnginfo=info)
    return file.getvalue()


def read_png(data: object) -> tuple[Image.Image, GenerationParameters]:
    """A picture and the generation parameters inside its PNG file.

    Types, names and the mask are checked; `ImageGenerator.generate` checks the other values.

    Raises:
        RequestRejected: not a picture, no parameters inside, or damaged ones.
    """
    picture = read_picture(data, "picture")
    found = picture.info.get(_JSON)
    if isinstance(found, str) and len(found) <= GENERATION_PARAMETERS_MAX_CHARACTERS + MASK_CHARACTERS:
        return picture, _with_printable_names(_from_json(found))
    text = picture.info.get(_TEXT)
    if isinstance(text, str) and len(text) <= GENERATION_PARAMETERS_MAX_CHARACTERS:
        return picture, _with_printable_names(_from_text(text))
    raise RequestRejected("the picture has no settings inside: only PNG files that came from here or a web UI have")


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("prompt", "negative_prompt", "scheduler"), (str,)),
    **dict.fromkeys(("steps", "seed", "width", "height"), (int,)),
    "guidance_scale": (int, float),
    "strength": (int, float, type(None)),
    **dict.fromkeys(("image", "mask", "model", "revision"), (str, type(None))),
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
    names = {field.name for field in fields(GenerationParameters)}
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


def _from_text(text: str) -> GenerationParameters:
    """Parse the web UI's text. The last line holds the parameters; the prompts come before it."""
    *lines, last = text.strip().split("\n")
    found = {name: value.strip() for name, value in _PARAMETER.findall(last)}
    prompt, _, negative = "\n".join(lines).partition("Negative prompt:")
    try:
        width, height = found["Size"].split("x")
        sampler = found["Sampler"]
        strength = found.get("Denoising strength")
        return GenerationParameters(
            prompt=prompt.strip(),
            negative_prompt=negative.strip(),
            steps=int(found["Steps"]),
            guidance_scale=float(found["CFG scale"]),
            seed=int(found["Seed"]),
            width=int(width),
            height=int(height),
            scheduler=_WEB_UI.get(sampler, sampler),
            strength=None if strength is None else float(strength),
            model=found.get("Model"),
            revision=found.get("Model hash"),
        )
    except (KeyError, ValueError):
        raise RequestRejected(
            "the picture's settings can't be read: their last line must hold Steps, Sampler, CFG scale, Seed and Size"
        ) from None


def _quoted(value: str) -> str:
    """The value, in quotes where it would end the parameter, as in the web UI."""
    return json.dumps(value, ensure_ascii=False) if set(value) & set(',:\n"') else value
