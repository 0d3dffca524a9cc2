"""LoRA for image models: their files, read by diffusers' own loader as the factors of changes of weights.

Other kinds of adapters (LoHa, LoKr, DoRA), which diffusers can't merge exactly, are refused. `merged_weights.py`
merges, for each picture.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import safe_open

from hfjax_app.errors import ModelUnavailable, first_line
from hfjax_app.runtime.checkpoints.load_errors import explain, git_lfs_pointers, needs_git_lfs
from hfjax_app.runtime.seams.diffusers import parts_with_lora

_FILE = "pytorch_lora_weights.safetensors"  # diffusers' usual name
_ADAPTER = "lora"
# The end of one key of each layer, by format: kohya's, peft's, and diffusers' of 2023 and before.
_DOWN = re.compile(r"(lora_down|lora_A|lora\.down|_lora\.down|lora_linear_layer\.down)\.weight$")
_MOST_NAMED = 8
_OTHER_KINDS = {"hada_": "LoHa", "lokr_": "LoKr", "dora_scale": "DoRA", "lora_magnitude": "DoRA", "oft_": "OFT"}


@dataclass(frozen=True, kw_only=True)
class Lora:
    """One LoRA that may be chosen.

    Args:
        source: a file, a folder with one, or on the hub "owner/name" or "owner/name/file.safetensors".
        weight: factor of its change of the weights, in pictures for which nothing is chosen; 0: it is not in these.
    """

    source: str
    weight: float = 0.0

    @property
    def name(self) -> str:
        """By which it is chosen: the last part of its source, without signs of the grammar of prompts."""
        return re.sub(r"[:,<>]", "_", Path(self.source).name.removesuffix(".safetensors")).strip()

    def file(self) -> Path:
        """The file, downloaded as needed.

        Raises:
            ModelUnavailable: there is none; says why.
        """
        path = Path(self.source)
        if path.is_dir():
            return path / self._only([file.name for file in path.glob("*.safetensors")])
        if path.is_file():
            return path
        owner, _, rest = self.source.partition("/")
        name, _, file = rest.partition("/")
        try:
            return Path(hf_hub_download(f"{owner}/{name}", file or self._only(_files_on_hub(f"{owner}/{name}"))))
        except ModelUnavailable:
            raise
        except Exception as error:
            raise ModelUnavailable(f"LoRA: {explain(self.source, error, weights=False)}") from error

    def _only(self, files: Sequence[str]) -> str:
        """The one of these files that is the LoRA: the only one, or that of the usual name."""
        if _FILE in files:
            return _FILE
        if len(files) == 1:
            return files[0]
        kind = "folder " if Path(self.source).is_dir() else ""
        if not files:
            raise ModelUnavailable(f"LoRA {kind}{self.source!r} has 0 safetensors files: only safetensors are loaded")
        more = [f"{len(files) - _MOST_NAMED} more"] if len(files) > _MOST_NAMED else []
        raise ModelUnavailable(
            f"LoRA {kind}{self.source!r} has {len(files)} safetensors files: name one of them, as {self.source}/FILE: "
            f"{', '.join([*sorted(files)[:_MOST_NAMED], *more])}"
        )


def _files_on_hub(repository: str) -> list[str]:
    """The safetensors files of a repository; of those in the cache where the hub can't be reached."""
    try:
        names = HfApi().list_repo_files(repository)
    except HfHubHTTPError:
        raise
    except Exception:  # any error of the HTTP library without a network
        folder = Path(snapshot_download(repository, local_files_only=True))
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    return [name for name in names if name.endswith(".safetensors")]


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """A LoRA's change of one weight: `up` times `down`, in the weight's shape.

    Attributes:
        up: float32 [outputs, rank].
        down: float32 [rank, rest].
        shape: of the weight in torch.
    """

    up: np.ndarray
    down: np.ndarray
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class LoraFactors:
    """What a LoRA changes.

    Attributes:
        name: of the LoRA.
        weight: as in `Lora`.
        digest: SHA-256 of its file.
        parts: by the pipeline's networks and the names of their parameters.
    """

    name: str
    weight: float
    digest: bytes
    parts: Mapping[str, Mapping[str, Factors]]


def read_loras(pipeline: Any, loras: Sequence[Lora]) -> list[LoraFactors]:
    """The factors of LoRAs for a torch pipeline. It is the same afterwards; its weights need no values.

    Raises:
        ModelUnavailable: one of them is another kind of adapter, or doesn't fit the model; says why.
    """
    if loras and not hasattr(pipeline, "load_lora_weights"):
        raise ModelUnavailable(f"{type(pipeline).__name__} takes no LoRA")
    names = [lora.name for lora in loras]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ModelUnavailable(f"two LoRAs have the name {twice[0]!r}, by which they are chosen: rename a file")
    return [_read(pipeline, lora) for lora in loras]


def _read(pipeline: Any, lora: Lora) -> LoraFactors:
    file = lora.file()
    try:
        with safe_open(file, framework="pt") as content:
            keys = list(content.keys())
    except Exception as error:
        if pointers := git_lfs_pointers(file):
            raise ModelUnavailable(f"LoRA: {needs_git_lfs(lora.source, pointers)}") from error
        raise ModelUnavailable(f"LoRA {lora.source!r} can't be read: {first_line(error)}") from error
    if kinds := {kind for mark, kind in _OTHER_KINDS.items() if any(mark in key for key in keys)}:
        raise ModelUnavailable(f"LoRA {lora.source!r} is a {kinds.pop()}, which can't be merged: take a plain LoRA")
    converted: list[int] = []
    convert = pipeline.lora_state_dict

    def counting(*args: Any, **kwargs: Any) -> Any:
        found = convert(*args, **kwargs)
        converted.append(_layers(found[0] if isinstance(found, tuple) else found))
        return found

    pipeline.lora_state_dict = counting
    try:
        pipeline.load_lora_weights(
            str(file.parent), weight_name=file.name, adapter_name=_ADAPTER, use_safetensors=True, local_files_only=True
        )
        parts = {name: _factors(getattr(pipeline, name)) for name in parts_with_lora(pipeline)}
    except Exception as error:
        raise _unfit(lora, pipeline, first_line(error)) from error
    finally:
        del pipeline.lora_state_dict
        pipeline.unload_lora_weights()
    loaded, layers = sum(map(len, parts.values())), max(_layers(keys), *converted)
    if loaded != layers or not loaded:  # diffusers only logs what it passes over
        raise _unfit(lora, pipeline, f"{loaded} of its {layers} layers are in the model")
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").digest()
    return LoraFactors(name=lora.name, weight=lora.weight, digest=digest, parts=parts)


def _layers(keys: Iterable[str]) -> int:
    return sum(_DOWN.search(key) is not None for key in keys)


def _factors(part: torch.nn.Module) -> dict[str, Factors]:
    """Of the layers of a network that have the adapter."""
    found = {}
    for name, module in part.named_modules():
        if _ADAPTER not in getattr(module, "lora_A", ()):
            continue
        layer: Any = module
        up, down = (factor[_ADAPTER].weight.detach().float().numpy() for factor in (layer.lora_B, layer.lora_A))
        found[f"{name}.weight"] = Factors(
            up=up.reshape(len(up), -1) * np.float32(layer.scaling[_ADAPTER]),
            down=down.reshape(len(down), -1),
            shape=tuple(layer.get_base_layer().weight.shape),
        )
    return found


def _unfit(lora: Lora, pipeline: Any, why: str) -> ModelUnavailable:
    kind = type(pipeline).__name__
    return ModelUnavailable(
        f"LoRA {lora.source!r} doesn't fit this {kind}: {why}; take one that was made for this model"
    )
