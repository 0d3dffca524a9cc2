"""LoRA adapters: folders that hold a change of another model's weights, added to each tensor while it is read.

The sum is that of peft's `merge_and_unload`.
"""

import json
import math
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.load_errors import explain
from hfjax_app.runtime.checkpoints.text_part import own_names
from hfjax_app.runtime.model_transform import LazyTensor

CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KIND = "LORA"
_ROOT = "base_model.model."  # before peft's names
_FACTOR = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.weight)?$")
# Options that change more than the sum of two products.
_OTHERS = (
    "alora_invocation_tokens",
    "layer_replication",
    "lora_bias",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)


class Adapter:
    """A LoRA adapter.

    Args:
        name: the adapter as the user named it.
        config: of its adapter_config.json, of plain LoRA.
        tensors: of its file.

    Attributes:
        base: the model that it changes, a folder or a hub id.
    """

    def __init__(self, name: str, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]):
        self.name, self._config = name, config
        self.base = _base_name(config)
        self._factors: dict[str, dict[str, torch.Tensor]] = {}
        self._whole: dict[str, torch.Tensor] = {}
        for key, tensor in tensors.items():
            own = key.removeprefix(_ROOT).replace(".base_layer.", ".")  # a layer's own weight beside its change
            if found := _FACTOR.match(own):
                layer, embedding, letter = found.groups()
                self._factors.setdefault(f"{layer}.weight", {})[f"{embedding or ''}{letter}"] = tensor
            else:
                self._whole[own] = tensor

    def changes(self, known: Collection[str], base_model: str) -> dict[str, str]:
        """The names of what it changes, by the names of a model's parameters.

        Args:
            known: names of the parameters, of the text part where the adapter was trained on a multimodal model.
            base_model: the name of the base model among them, such as "model".

        Raises:
            ModelUnavailable: it changes what the model does not have.
        """
        found: dict[str, str] = {}
        changed = {**self._factors, **self._whole}
        longest_first = sorted(known, key=len, reverse=True)
        of_text_part = {own: name for own, name in own_names(changed, known, base_model) if name in known}
        for own in changed:
            target = next((name for name in longest_first if _ends_with(own, name)), of_text_part.get(own))
            if target is None:
                raise ModelUnavailable(f"adapter {self.name!r} changes {own}, which {self.base!r} does not have")
            found[target] = own
        return found

    def merged(self, own: str, tensor: LazyTensor | None, shape: tuple[int, ...]) -> LazyTensor | None:
        """A tensor of the base with the adapter's change.

        Args:
            own: the adapter's name of it.
            tensor: the base's; None: it has none, as of the head of a classifier.
            shape: of the model's parameter.

        Returns:
            None where neither has the whole tensor.

        Raises:
            ModelUnavailable: the shapes differ.
        """
        if own not in self._whole and tensor is None:
            return None
        base = self._whole[own] if own in self._whole else tensor[:]  # type: ignore[index]  # it is one of them
        change = self._change(own, base.dtype) if own in self._factors else torch.zeros((), dtype=base.dtype)
        for made in (base, change):
            if made.ndim and tuple(made.shape) != shape:
                shapes = f"{list(made.shape)}, and {self.base!r} has {list(shape)}"
                raise ModelUnavailable(f"adapter {self.name!r}: its {own} is {shapes}; is it another base?")
        return LazyTensor.of((base + change).to(base.dtype))

    def labels(self, shapes: Mapping[str, tuple[int, ...]], count: int) -> int:
        """How many labels the adapter's own head has, of a classifier that has `count` without it.

        Args:
            shapes: of the classifier's parameters.
            count: the number that its configuration says, or transformers' own.
        """
        for own, tensor in self._whole.items():
            shape = next((shapes[name] for name in sorted(shapes, key=len, reverse=True) if _ends_with(own, name)), ())
            if shape and shape[0] == count and tuple(tensor.shape[1:]) == shape[1:]:
                return int(tensor.shape[0])
        return count

    def _change(self, own: str, dtype: torch.dtype) -> torch.Tensor:
        """What is added to a weight of this dtype, rounded as peft rounds it: that of an embedding once more."""
        factors = self._factors[own]
        scale = self._scale(own.removesuffix(".weight"))
        is_embedding = "embedding_A" in factors
        a, b = (factors[f"embedding_{letter}" if is_embedding else letter] for letter in "AB")
        change = b.float().flatten(1) @ a.float().flatten(1) * scale
        if is_embedding:
            return change.T.to(a.dtype).to(dtype)
        return (change.T if self._config.get("fan_in_fan_out") else change).to(a.dtype)

    def _scale(self, layer: str) -> float:
        """What peft multiplies a layer's product by."""
        ranks, alphas = self._config.get("rank_pattern") or {}, self._config.get("alpha_pattern") or {}
        pattern = next((key for key in (*ranks, *alphas) if re.match(rf"(.*\.)?({key})$", layer)), layer)
        rank = ranks.get(pattern, self._config.get("r", 8))
        alpha = alphas.get(pattern, self._config.get("lora_alpha", 8))
        return float(alpha / math.sqrt(rank) if self._config.get("use_rslora") else alpha / rank)


def _ends_with(own: str, name: str) -> bool:
    """Whether one of the names ends with the other."""
    return own == name or own.endswith(f".{name}") or name.endswith(f".{own}")


def base_of(source: str | os.PathLike[str]) -> str | None:
    """The model that an adapter changes; None for a model.

    Raises:
        ModelUnavailable: there is no such source, another kind of adapter, or the base is not here.
    """
    settings = _settings(fetch(source, weights=False))
    return None if settings is None else _base(os.fspath(source), settings)


def base_and_adapter(source: str | os.PathLike[str]) -> tuple[str | os.PathLike[str], Adapter | None]:
    """The model to load: the source itself, or, if it is an adapter, its base, and the adapter.

    Raises:
        ModelUnavailable: another kind of adapter, it can't be read, or its base is not here.
    """
    name = os.fspath(source)
    settings = _settings(fetch(source, weights=False))
    if settings is None:
        return source, None
    base = _base(name, settings)
    try:
        return base, Adapter(name, settings, load_file(_weights(source, name)))
    except ModelUnavailable:
        raise
    except Exception as error:
        raise ModelUnavailable(f"adapter {name!r}: {explain(name, error, weights=False)}") from error


def _base(name: str, settings: Mapping[str, Any]) -> str:
    """The base that the configuration of a plain LoRA adapter names, after a look whether it is here."""
    base, kind = _base_name(settings), settings.get("peft_type")
    options = [option for option in _OTHERS if settings.get(option)]
    if kind != _KIND or options:
        what = f"of the kind {kind}" if kind != _KIND else f"a LoRA adapter with {options[0]}"
        raise ModelUnavailable(
            f"model {name!r} is an adapter {what} for {base!r}, and only plain LoRA is merged while it is read: merge "
            "it with peft's merge_and_unload, and save the result"
        )
    needs = f"model {name!r} is an adapter, which needs its base (base_model_name_or_path in its {CONFIG})"
    if not base:
        raise ModelUnavailable(f"{needs}: it names none")
    try:
        fetch(base, weights=False)
    except ModelUnavailable as error:
        raise ModelUnavailable(f"{needs}: {error}") from error
    return base


def _base_name(settings: Mapping[str, Any]) -> str:
    return str(settings.get("base_model_name_or_path") or "")


def _settings(folder: Path) -> dict[str, Any] | None:
    """An adapter's configuration; None for a model, which may have one beside its own."""
    if not (folder / CONFIG).exists():
        return None
    if (folder / "config.json").exists() and not _is_adapter_alone(folder):
        return None
    try:
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = {}
    return settings if isinstance(settings, dict) else {}


def _is_adapter_alone(folder: Path) -> bool:
    """Whether the folder's only weights are the adapter's; the config beside it then says what its labels are."""
    return [path.name for path in folder.glob("*.safetensors")] == [_WEIGHTS]


def _weights(source: str | os.PathLike[str], name: str) -> Path:
    path = fetch(source) / _WEIGHTS
    if not path.exists():
        raise ModelUnavailable(f"adapter {name!r} has no {_WEIGHTS}: only safetensors files are loaded")
    return path
