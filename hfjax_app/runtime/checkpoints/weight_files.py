"""The files that hold the weights in a checkpoint's folder: transformers' and diffusers' names, indexes and variants.

`hub.py` downloads them, and `safetensors_reader.py` reads them.
"""

import json
import re
from pathlib import Path

from hfjax_app.errors import ModelUnavailable

STEMS = ("model", "diffusion_pytorch_model")  # of the names of weight files: transformers' and diffusers'
HALF = ".fp16"  # the variant, in the names of files, that is used if there are no others; then any variant is
_WEIGHTS = re.compile(rf"(?:{'|'.join(STEMS)})(\.[\w-]+?)?(?:-\d+-of-\d+)?\.safetensors")
_INDEX = re.compile(rf"(?:{'|'.join(STEMS)})\.safetensors\.index(\.[\w-]+)?\.json")
_OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"}


def weight_files(folder: Path, name: str) -> list[Path]:
    """The safetensors files of a checkpoint folder: one file, those of its index, or all parts.

    Files of a variant are taken if there are no others: float16 first, then bfloat16 or whatever is there.

    Args:
        folder: as `fetch` returns it.
        name: the model's name as the user gave it, for the message.

    Raises:
        ModelUnavailable: there are none, or some of them are missing.
    """
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    matches = [found for file in names if (found := _WEIGHTS.fullmatch(file) or _INDEX.fullmatch(file))]
    for variant in sorted({found[1] or "" for found in matches}, key=lambda found: (found != "", found != HALF, found)):
        for stem in STEMS:
            if (single := folder / f"{stem}{variant}.safetensors").exists():
                return [single]
            if (index := folder / f"{stem}.safetensors.index{variant}.json").exists():
                return _indexed(index, folder, name)
            if parts := sorted(folder.glob(f"{stem}{variant}-*-of-*.safetensors")):
                return _numbered(parts, name)
    raise ModelUnavailable(no_weights(name, folder))


def _numbered(parts: list[Path], name: str) -> list[Path]:
    """The parts of weights whose index is missing, if all are there: `model-00001-of-00002.safetensors` and so on."""
    count = int(parts[0].stem.rpartition("-")[2])
    if len(parts) != count:
        raise _in_part(name, count - len(parts), count, f"one of {parts[0].name}'s kind")
    return parts


def _indexed(index: Path, folder: Path, name: str) -> list[Path]:
    """The files of an index."""
    try:
        names = sorted({str(file) for file in json.loads(index.read_text())["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelUnavailable(f"model {name!r}: {index.name} is no index of safetensors files") from error
    if outside := [file for file in names if Path(file).name != file or not file.endswith(".safetensors")]:
        raise ModelUnavailable(f"model {name!r}: {index.name} names {outside[0]!r}, no safetensors file of it")
    if missing := [file for file in names if not (folder / file).exists()]:
        raise _in_part(name, len(missing), len(names), missing[0])
    return [folder / file for file in names]


def _in_part(name: str, missing: int, count: int, one: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"model {name!r} is here in part: {missing} of {count} weight files are missing, such as {one}; download the "
        "rest (with a network, and HF_HUB_OFFLINE unset)"
    )


def no_weights(name: str, folder: Path) -> str:
    """The message for a folder without weight files that can be read."""
    others = {path.suffix for path in folder.rglob("*") if path.is_file()} & _OTHER_WEIGHTS
    kind = "model folder" if Path(name).is_dir() else "model"
    if others:
        return f"{kind} {name!r} has weights, but none as safetensors: only safetensors files are loaded"
    if next(folder.glob("*.safetensors"), None):
        return f"{kind} {name!r}: its safetensors files need their index ({STEMS[0]}.safetensors.index.json)"
    return f"{kind} {name!r} has no weights (*.safetensors)"
