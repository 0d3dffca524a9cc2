"""Generation parameters as other programs write them: what their names mean here, and what can't be taken over.

Reads the text of web UIs (AUTOMATIC1111, Forge, civitai), ComfyUI's graphs, and the JSON of Fooocus, InvokeAI, SwarmUI
and NovelAI. Everything is untrusted. Writes the text of web UIs.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image

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
        for parsed in (_from_json, _from_web_ui):
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
    if _is_graph(value):
        return _from_graph(value)
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
    if field in OPTIONS and OPTIONS[field].kind is not str:
        number = _number(text, whole=OPTIONS[field].kind is int)
        return {field: None if number is None else number - OPTIONS[field].shift}
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


# --- the text of web UIs

_NEGATIVE = "Negative prompt:"
# A parameter begins after a comma: without this, the search would begin at each letter of a long word.
_PARAMETER = re.compile(r'(?:^|(?<=,))\s*([A-Za-z][\w /-]*):\s*("(?:\\.|[^\\"])*"|[^,]*)(?:,|$)')
_FEWEST = 3  # parameters in a line that is not a part of the prompt
# A prompt's own line that would be read as the beginning of the negative prompt has one more space in the text.
_LIKE_NEGATIVE = re.compile(f"^( *)(?={_NEGATIVE})", re.MULTILINE)


def web_ui_text(prompt: str, negative_prompt: str, parameters: Mapping[str, object]) -> str:
    """The text of web UIs: the prompt, the negative prompt, a line of the others but those that are None."""
    lines = [_LIKE_NEGATIVE.sub(r" \1", prompt)]
    if negative_prompt:
        lines.append(f"{_NEGATIVE} {negative_prompt}")
    named = (f"{name}: {_quoted(str(value))}" for name, value in parameters.items() if value is not None)
    lines.append(", ".join(named))
    return "\n".join(lines)


def _from_web_ui(text: str) -> dict[str, str] | None:
    """The parameters by their names in the text, with "Prompt" and "Negative prompt"; None where it has no such line.

    Lines below that of the parameters are parameters too.
    """
    lines = text.strip("\r\n ").splitlines()
    found = {}
    for at in reversed(range(len(lines))):
        found = dict(_PARAMETER.findall(lines[at].strip()))
        if len(found) >= _FEWEST:
            break
    else:
        return None
    more = dict(pair for line in lines[at + 1 :] for pair in [line.partition(":")[::2]] if pair[0].strip())
    begins = next((row for row in range(at) if lines[row].startswith(_NEGATIVE)), at)
    prompt = "\n".join(lines[:begins])
    negative = "\n".join(lines[begins:at]).removeprefix(_NEGATIVE)
    values = {name: _unquoted(value.strip()) for name, value in (found | more).items()}
    prompts = {"Prompt": _LIKE_NEGATIVE.sub(lambda spaces: spaces[1][1:], prompt), _NEGATIVE[:-1]: negative}
    return {name: value.strip() for name, value in prompts.items()} | values


def _quoted(value: str) -> str:
    """The value, in quotes where it would end the parameter, as in the web UI."""
    return json.dumps(value, ensure_ascii=False) if set(value) & set(',:\n"') else value


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value


# --- ComfyUI's graphs

_SAMPLING = ("seed", "noise_seed", "steps", "cfg", "sampler_name", "scheduler", "denoise")
_TEXTS = ("text", "text_g", "clip_l", "t5xxl", "prompt", "string", "value")
_FILES = {"ckpt_name": "Model", "unet_name": "Model", "lora_name": "LoRA", "control_net_name": "ControlNet"}
# Nodes whose work is done here too, or that only show or save; by the beginning of their class's name.
_UNDERSTOOD = (
    *("KSampler", "SamplerCustom", "RandomNoise", "BasicScheduler", "BasicGuider", "CFGGuider", "EmptyLatent"),
    *("EmptySD3Latent", "CLIPTextEncode", "CLIPLoader", "DualCLIPLoader", "TripleCLIPLoader", "CheckpointLoader"),
    *("UNETLoader", "VAELoader", "VAEDecode", "SaveImage", "PreviewImage", "Primitive", "Note", "Reroute"),
    "LoraLoader",
)

_Nodes = Mapping[str, Mapping[str, Any]]


def _is_graph(value: object) -> bool:
    """Whether a JSON value is such a graph: nodes by their numbers."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(node, dict) and isinstance(node.get("class_type"), str) and isinstance(node.get("inputs"), dict)
            for node in value.values()
        )
    )


def _from_graph(nodes: _Nodes) -> dict[str, object] | None:
    """The parameters by the nodes' names for them, with "Prompt" and "Negative prompt"; None where nothing samples.

    Of the nodes that lead to the picture the first sampling counts: its seed, steps and so on, the texts behind its two
    conditionings, and the size of its latents.
    """
    ends = [key for key, node in nodes.items() if node["class_type"].startswith(("SaveImage", "PreviewImage"))]
    order = list(_upstream(nodes, ends or list(nodes)))
    samplers = [key for key in order if "steps" in nodes[key]["inputs"]]
    if not samplers:
        return None
    first = samplers[-1]  # the farthest from the picture: later ones refine it
    # of some nodes' samplers the steps, the seed and the prompts are in nodes of their own
    around = next((key for key in reversed(order) if first in _links(nodes[key])), first)
    reached = list(_upstream(nodes, [around]))
    found: dict[str, object] = {}
    for key in [first, *reached]:
        for name, value in nodes[key]["inputs"].items():
            if name in _SAMPLING and isinstance(value, str | int | float):
                found.setdefault(name, value)
            if name in ("positive", "conditioning"):
                found.setdefault("Prompt", _nearest_text(nodes, value))
            if name == "negative":
                found.setdefault("Negative prompt", _nearest_text(nodes, value))
            if name in ("width", "height") and "Latent" in nodes[key]["class_type"] and isinstance(value, int):
                found.setdefault(name, value)
            if name in _FILES and isinstance(value, str):
                label = _FILES[name]
                found[label] = f"{found[label]}; {value}" if label in found and label != "Model" else value
    if len(samplers) > 1:
        found["Nodes that sample"] = len(samplers)
    others = {nodes[key]["class_type"] for key in order} - {""}
    if unknown := sorted(name for name in others if not name.startswith(_UNDERSTOOD)):
        found["Nodes"] = "; ".join(unknown)
    return found


def _links(node: Mapping[str, Any]) -> list[str]:
    return [str(value[0]) for value in node["inputs"].values() if isinstance(value, list) and value]


def _upstream(nodes: _Nodes, ends: list[str]) -> Iterator[str]:
    """These nodes and those that they read from, the nearest first; each once."""
    queue, seen = [key for key in ends if key in nodes], set(ends)
    while queue:
        following: list[str] = []
        for key in queue:
            yield key
            for link in _links(nodes[key]):
                if link in nodes and link not in seen:
                    seen.add(link)
                    following.append(link)
        queue = following


def _nearest_text(nodes: _Nodes, link: object) -> str:
    """The text nearest to a conditioning."""
    if not isinstance(link, list) or not link:
        return ""
    for key in _upstream(nodes, [str(link[0])]):
        for name in _TEXTS:
            value = nodes[key]["inputs"].get(name)
            if isinstance(value, str):
                return value
    return ""


# --- schedulers

_KARRAS = " Karras"
_SAME_SCHEDULER = {
    "ddim": "DDIM",
    "euler": "Euler",
    "euler a": "Euler ancestral",
    "euler ancestral": "Euler ancestral",
    "heun": "Heun",
    "dpm++ 2m": "DPM++ 2M",
    "dpm++ 2m sde": "DPM++ 2M SDE",
    "dpm++ sde": "DPM++ SDE",
    "unipc": "UniPC",
    "uni pc": "UniPC",
    "uni pc bh2": "UniPC",
    "lcm": "LCM",
    "plms": "PNDMScheduler",
    "pndm": "PNDMScheduler",
    "pndmscheduler": "PNDMScheduler",
    "tcd": "TCDScheduler",
    "tcdscheduler": "TCDScheduler",
}
# The nearest of those that have formulas of their own, and of those that a model is not offered.
_LIKE_SCHEDULER = {
    "Heun": "Euler",
    "DPM++ SDE": "DPM++ 2M SDE",
    "DPM++ 2M SDE": "Euler ancestral",
    "DPM++ 2M": "Euler",
    "UniPC": "DPM++ 2M",
    "PNDMScheduler": "DDIM",
    "dpm++ 3m sde": "DPM++ 2M SDE",
    "dpm++ 2m sde heun": "DPM++ 2M SDE",
    "dpm++ 2s a": "DPM++ SDE",
    "dpm++ 2s ancestral": "DPM++ SDE",
    "dpm2": "Heun",
    "dpm 2": "Heun",
    "kdpm 2": "Heun",
    "dpm2 a": "Euler ancestral",
    "dpm 2 ancestral": "Euler ancestral",
    "kdpm 2 a": "Euler ancestral",
    "ddpm": "Euler ancestral",
    "lms": "Euler",
    "restart": "Euler",
    "deis": "DPM++ 2M",
    "ipndm": "DPM++ 2M",
    "dpm fast": "DPM++ 2M",
    "dpm adaptive": "DPM++ 2M",
    "TCDScheduler": "LCM",
}
# Endings that name how the noise falls. Only Karras' is another one here.
_NOISE_SCHEDULE = re.compile(
    r" (karras|k|normal|simple|automatic|exponential|polyexponential|sgm uniform|ddim uniform|uniform|ddim|beta|turbo|"
    r"linear quadratic|kl optimal|align your steps|ays|native)$"
)
_USUAL = {"", "karras", "k", "normal", "simple", "automatic", "native"}


def canonical_scheduler(name: str) -> str:
    """The name here for another program's, or the same text where none has its formulas."""
    base, schedule = _without_schedule(name)
    if base not in _SAME_SCHEDULER or schedule not in _USUAL:
        return name
    return _SAME_SCHEDULER[base] + (_KARRAS if _is_karras(base, schedule) else "")


def nearest_scheduler(name: str, offered: Sequence[str]) -> str:
    """The most alike of the offered names.

    Args:
        name: any program's.
        offered: a model's, its own scheduler first, which stands for what nothing is like.
    """
    if name in offered:
        return name
    base, schedule = _without_schedule(name)
    karras = _is_karras(base, schedule)
    like: str | None = _SAME_SCHEDULER.get(base, base)
    while like is not None:
        for candidate in (like + _KARRAS, like) if karras else (like, like + _KARRAS):
            if candidate in offered:
                return candidate
        like = _LIKE_SCHEDULER.get(like)
    return offered[0]


def _without_schedule(name: str) -> tuple[str, str]:
    """A name without its noise schedule, and this, both in one way of writing."""
    plain = re.sub(r"[\s_-]+", " ", name.lower()).strip().replace("dpmpp", "dpm++").removeprefix("k ")
    plain = re.sub(r" (gpu|cfg\+\+|cfg pp)\b", "", plain)
    found = _NOISE_SCHEDULE.search(plain)
    return (plain[: found.start()], found[1]) if found else (plain, "")


def _is_karras(base: str, schedule: str) -> bool:
    """Whether a scheduler has Karras' noise; the web UI's DPM++ samplers have it unless told otherwise."""
    return schedule in ("karras", "k") or (schedule == "automatic" and base.startswith("dpm++"))
