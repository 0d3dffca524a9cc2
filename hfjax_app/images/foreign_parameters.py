"""Generation parameters of other programs' pictures: what their names mean here, and what can't be taken over.

Reads the text of web UIs (AUTOMATIC1111, Forge, civitai), ComfyUI's graphs, and the JSON of Fooocus, InvokeAI, SwarmUI
and NovelAI. Everything is untrusted. Does not fit values to a model: `reuse.py` does.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image

from hfjax_app.images import comfy_graph, web_ui_text
from hfjax_app.images.request import OPTIONS
from hfjax_app.limits import FOREIGN_PARAMETERS_MAX_CHARACTERS

# Other programs' names, without capitals, spaces and signs. A name that is missing here is listed as left out.
_NAMES = {
    **{name: option.names for name, option in OPTIONS.items()},
    "size": ("size", "resolution"),
    "sampler": ("sampler", "samplername"),
    "schedule": ("scheduletype", "scheduler", "noiseschedule"),
    "model": ("model", "basemodel", "modelname"),
    "revision": ("modelhash", "basemodelhash"),
}
_FIELDS = {name: field for field, names in _NAMES.items() for name in names}
# What tells of the file or the program, or repeats another value, and changes no picture.
_SILENT = {
    *("version", "createdby", "metadatascheme", "appversion", "software", "source", "hashes", "rawprompt", "user"),
    *("rawnegativeprompt", "fullprompt", "fullnegativeprompt", "generationmode", "imagesbatchsize", "rngdevice"),
}
_LORA = re.compile(r"<(?:lora|lyco|hypernet):([^<>]*)>")
_MOST_LEFT_OUT, _MOST_SHOWN = 20, 60  # of names, and characters of a value


@dataclass(frozen=True, kw_only=True)
class ForeignParameters:
    """What another program's picture says.

    Attributes:
        values: by the names of options, "model" and "revision"; what is not said, or is no number, is missing.
            `scheduler` is the other program's name, with the noise schedule behind it: "DPM++ 2M Karras".
        left_out: what can't be taken over, as "name: value".
    """

    values: dict[str, Any]
    left_out: tuple[str, ...]


def read(picture: Image.Image) -> ForeignParameters | None:
    """The parameters in a picture's file; None where there are none."""
    for text in _texts(picture):
        if len(text) > FOREIGN_PARAMETERS_MAX_CHARACTERS:
            continue
        for parsed in (_from_json, web_ui_text.read):
            named = parsed(text)
            if named and (found := _taken_over(named)).values:
                return found
    return None


def _texts(picture: Image.Image) -> Iterator[str]:
    """What programs write into the text chunks of a PNG file, or the EXIF fields of a JPEG or WebP file."""
    for name in ("parameters", "prompt", "Comment", "invokeai_metadata", "sd-metadata"):
        if isinstance(text := picture.info.get(name), str):
            yield text
    try:
        exif = picture.getexif()
        comment = exif.get_ifd(0x8769).get(0x9286)  # UserComment: eight bytes name its encoding
    except Exception:  # Pillow's reader of EXIF raises many kinds of errors on damaged data
        return
    if isinstance(comment, bytes):
        encodings = ("utf-16-be", "utf-16-le") if comment.startswith(b"UNICODE\0") else ("utf-8",)
        for encoding in encodings:
            yield comment[8:].decode(encoding, "replace")
    elif isinstance(comment, str):
        yield comment
    for value in exif.values():
        if isinstance(value, str) and value.lower().startswith("prompt:"):  # ComfyUI in a WebP file
            yield value[len("prompt:") :]


def _from_json(text: str) -> Mapping[str, object] | None:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if comfy_graph.is_graph(value):
        return comfy_graph.read(value)
    if isinstance(value, dict) and isinstance(inner := value.get("sui_image_params"), dict):
        return inner
    return value if isinstance(value, dict) else None


def _taken_over(named: Mapping[str, object]) -> ForeignParameters:
    values: dict[str, Any] = {}
    left_out: list[str] = []
    known = {_plain(name): value for name, value in named.items()}
    for name, value in named.items():
        key = _plain(name)
        field = "sampler" if key == "scheduler" and not {"sampler", "samplername"} & known.keys() else _FIELDS.get(key)
        if key in _SILENT or value is None or value == "":
            continue
        if field is None:
            left_out.append(_noted(name, value))
            continue
        for part, parsed in _parsed(field, value).items():
            if parsed is None:
                left_out.append(_noted(name, value))
            else:
                values.setdefault(part, parsed)
    schedule = values.pop("schedule", None)
    if "sampler" in values:
        values["scheduler"] = f"{values.pop('sampler')} {schedule or ''}".strip()
    elif schedule:
        left_out.append(_noted("Schedule type", schedule))
    if "strength" in values and any(key.startswith("hires") for key in known):
        # of a second pass, and not of a start from a picture
        left_out.append(_noted("Denoising strength", values.pop("strength")))
    for field in ("prompt", "negative_prompt"):
        if field in values:
            left_out += [f"LoRA {lora[:_MOST_SHOWN]}" for lora in _LORA.findall(values[field])]
            values[field] = _LORA.sub("", values[field]).strip()
    if len(left_out) > _MOST_LEFT_OUT:
        left_out[_MOST_LEFT_OUT:] = [f"{len(left_out) - _MOST_LEFT_OUT} more"]
    return ForeignParameters(values=values, left_out=tuple(left_out))


def _parsed(field: str, value: object) -> dict[str, Any]:
    """Values by field; None for one that is none."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if field == "size":
        sides = re.findall(r"\d{1,6}", text)
        whole = len(sides) == 2
        return {"width": int(sides[0]), "height": int(sides[1])} if whole else {"size": None}
    if field in OPTIONS and (kind := OPTIONS[field].kind) is not str:
        return {field: _number(text, whole=kind is int)}
    if isinstance(value, dict):  # InvokeAI's models
        text = str(value.get("name") or value.get("model_name") or text)
    if field in ("model", "revision", "sampler", "schedule"):
        text = " ".join(text.split())[:_MOST_SHOWN]
        return {field: text if text.isprintable() else None}
    return {field: text}


def _number(text: str, *, whole: bool) -> int | float | None:
    """The text as a number. 20 digits are enough for a seed."""
    with suppress(ValueError):
        if whole and len(text) <= 20:
            return int(text)
    with suppress(ValueError):
        number = float(text)
        if math.isfinite(number) and (not whole or number.is_integer()):
            return int(number) if whole else number
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _noted(name: str, value: object) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(f"{name.strip()}: {shown}".split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= 2 * _MOST_SHOWN else f"{line[: 2 * _MOST_SHOWN]} …"
