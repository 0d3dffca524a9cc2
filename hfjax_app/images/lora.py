"""LoRA for image models: read by diffusers' own loader, and merged into the weights before anything is compiled.

Does not cover other kinds of adapters (LoHa, LoKr, DoRA), which diffusers can't merge exactly, and changes no adapter
while a model is served.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors.torch import load_file

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
    """One LoRA and its share.

    Args:
        source: a file, a folder with one, or on the hub "owner/name" or "owner/name/file.safetensors".
        weight: factor of its change of the weights.
    """

    source: str
    weight: float = 1.0

    @property
    def name(self) -> str:
        return f"{Path(self.source).stem} ({self.weight:g})"

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


def merge(pipeline: Any, loras: Sequence[Lora]) -> None:
    """Merge LoRAs into the weights of a torch pipeline.

    Raises:
        ModelUnavailable: one of them is another kind of adapter, or doesn't fit the model; says why.
    """
    if loras and not hasattr(pipeline, "load_lora_weights"):
        raise ModelUnavailable(f"{type(pipeline).__name__} takes no LoRA")
    for lora in loras:  # one after the other: their changes add up
        try:
            state = load_file(lora.file())
        except ModelUnavailable:
            raise
        except Exception as error:
            if pointers := git_lfs_pointers(lora.file()):
                raise ModelUnavailable(f"LoRA: {needs_git_lfs(lora.source, pointers)}") from error
            raise ModelUnavailable(f"LoRA {lora.source!r} can't be read: {first_line(error)}") from error
        if kinds := {kind for mark, kind in _OTHER_KINDS.items() if any(mark in key for key in state)}:
            raise ModelUnavailable(f"LoRA {lora.source!r} is a {kinds.pop()}, which can't be merged: take a plain LoRA")
        layers = sum(_DOWN.search(key) is not None for key in state)
        try:
            pipeline.load_lora_weights(state, adapter_name=_ADAPTER)
        except Exception as error:
            raise _unfit(lora, pipeline, first_line(error)) from error
        loaded = _layers(pipeline)
        if loaded != layers or not loaded:  # diffusers only logs what it passes over
            raise _unfit(lora, pipeline, f"{loaded} of its {layers} layers are in the model")
        pipeline.set_adapters([_ADAPTER], [lora.weight])
        pipeline.fuse_lora(components=parts_with_lora(pipeline))
        pipeline.unload_lora_weights()


def revision_with(revision: str, loras: Sequence[Lora]) -> str:
    """The revision of a model with LoRAs: 12 hexadecimal digits of a hash of both."""
    digest = hashlib.sha256(revision.encode())
    for lora in loras:
        with lora.file().open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest() + os.fsencode(f"{lora.weight:g}"))
    return digest.hexdigest()[:12] if loras else revision


def _layers(pipeline: Any) -> int:
    """The layers of a pipeline that have the adapter."""
    modules = (module for name in parts_with_lora(pipeline) for module in getattr(pipeline, name).modules())
    return sum(_ADAPTER in getattr(module, "lora_A", ()) for module in modules)


def _unfit(lora: Lora, pipeline: Any, why: str) -> ModelUnavailable:
    kind = type(pipeline).__name__
    return ModelUnavailable(
        f"LoRA {lora.source!r} doesn't fit this {kind}: {why}; take one that was made for this model"
    )
