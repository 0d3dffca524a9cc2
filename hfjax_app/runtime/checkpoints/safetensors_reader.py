"""Checkpoints of transformers and diffusers -> JAX arrays: each tensor is read from its file directly to its device.

The model is built without memory for its parameters. Files are opened one after the other, and each device reads only
its part of a tensor, so the host holds at most about one file. Renamed, split and merged tensors (old names, experts)
follow the library's own rules. `hub.py` downloads.
"""

import math
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from safetensors import safe_open
from tqdm import tqdm
from transformers import PreTrainedModel

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints import quantized
from hfjax_app.runtime.checkpoints.hub import Checkpoint, fetch
from hfjax_app.runtime.checkpoints.load_errors import explain
from hfjax_app.runtime.checkpoints.lora import Adapter
from hfjax_app.runtime.checkpoints.text_part import own_names
from hfjax_app.runtime.checkpoints.weight_files import weight_files
from hfjax_app.runtime.dtype_policy import Cast
from hfjax_app.runtime.model_transform import LazyTensor, Transforms
from hfjax_app.runtime.module import Weights
from hfjax_app.runtime.seams.diffusers import rename_old_keys
from hfjax_app.runtime.seams.torchax import array_of
from hfjax_app.runtime.seams.transformers import renamed

_BLOCK_NUMBERS = 1 << 20  # of the parts in which two tensors are compared

# safetensors' names of dtypes.
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

# A tensor's name and shape -> the sharding of its array.
Placement = Callable[[str, tuple[int, ...]], jax.sharding.Sharding]


def on_one_device(name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding:
    """The placement of a model on one device: jax's default device."""
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def read(
    model: torch.nn.Module,
    source: str | os.PathLike[str] | Checkpoint,
    *,
    transforms: Transforms | None = None,
    placement: Placement = on_one_device,
    adapter: Adapter | None = None,
) -> Weights:
    """A checkpoint's weights and the model's buffers as JAX arrays, tied weights once.

    Shows a progress bar on a terminal: bytes of the files and seconds.

    Args:
        model: of transformers (from `empty_model.py`) or of diffusers, before any transform; its weights are not read.
        source: a folder, a hub id, or a Checkpoint.
        transforms: applied to each tensor; None: a cast to the model's dtype.
        placement: the sharding of each array; a tensor that is split over devices and that no transform changes is read
            part by part.
        adapter: merged into the tensors that it changes.

    Raises:
        ModelUnavailable: one line with the model, the reason, and the remedy.
    """
    if not isinstance(source, Checkpoint):
        source = Checkpoint(folder=fetch(source), name=os.fspath(source))
    name = source.name
    transforms = Transforms(Cast(model)) if transforms is None else transforms
    try:
        with closing(_Files(weight_files(source.folder, name), _block_of(model))) as files:
            return _read(model, name, files, transforms, placement, adapter)
    except ModelUnavailable:
        raise
    except Exception as error:
        raise ModelUnavailable(explain(name, error)) from error


def _block_of(model: torch.nn.Module) -> list[int] | None:
    """Rows and columns of a quantised weight that share a scale."""
    quantization = getattr(getattr(model, "config", None), "quantization_config", None)
    block: list[int] | None = quantization.get("weight_block_size") if isinstance(quantization, dict) else None
    return block


def _read(
    model: torch.nn.Module,
    name: str,
    files: "_Files",
    transforms: Transforms,
    placement: Placement,
    adapter: Adapter | None,
) -> Weights:
    parameters, saved = dict(model.named_parameters()), model.state_dict()
    expected = parameters | {key: buffer for key, buffer in model.named_buffers() if key in saved}
    targets = _targets(model, files.file_of)
    used = {key for target in targets.values() for key in (*(key for key, _ in target.sources), *target.copies)}
    if kind := quantized.unreadable(files.file_of.keys() - used):
        raise ModelUnavailable(f"model {name!r} is quantised ({kind}): take its unquantised original")
    canonical = _canonical(model)
    changes: dict[str, str] = {}
    if adapter is not None:
        prefix = getattr(model, "base_model_prefix", "")
        changes = {canonical[at]: own for at, own in adapter.changes(canonical, prefix).items()}
    weights: Weights = {}
    found: set[str] = set()

    def put(target: str, tensor: LazyTensor | None) -> None:
        shape = tuple(expected[target].shape)
        if adapter is not None and target in changes:
            tensor = adapter.merged(changes[target], tensor, shape)
        if tensor is None:
            return
        if tensor.shape != shape:
            raise ModelUnavailable(
                f"model {name!r}: {target} is {list(tensor.shape)}, and its config says {list(shape)}"
            )
        held = transforms.store(target, tensor)
        made = {key: _placed(value, placement(key, value.shape)) for key, value in held.items()}
        weights.update(jax.block_until_ready(made))  # before the next read: the host holds one tensor at a time
        found.add(target)

    total = sum(files.tensor(key).saved_bytes for target in targets.values() for key, _ in target.sources)
    label = f"weights of {Path(name).name}"
    with tqdm(total=total, desc=label, unit="B", unit_scale=True, disable=None) as bar:
        for first, target in sorted(targets.items(), key=lambda item: str(files.file_of[item[1].sources[0][0]])):
            files.keep([*(key for key, _ in target.sources), *target.copies])
            if target.converter is None:
                key = target.sources[0][0]
                for copy in target.copies:
                    if not _same(files.tensor(key), files.tensor(copy), expected[first].dtype):
                        raise ModelUnavailable(
                            f"model {name!r}: its config ties {key} and {copy}, and its files hold different ones; "
                            "if they are right, its config.json should say tie_word_embeddings: false"
                        )
                put(first, files.tensor(key))
            else:
                for made, tensor in _converted(model, first, target, files).items():
                    if made in expected:
                        put(made, LazyTensor.of(tensor))
            bar.update(sum(files.tensor(key).saved_bytes for key, _ in target.sources))
    for key in parameters.keys() - found:  # a head that only the adapter has
        put(key, None)
    if missing := sorted(parameters.keys() - found):
        kind = type(model).__name__
        raise ModelUnavailable(f"model {name!r} is no trained {kind}: its checkpoint lacks {missing[0]}")
    for key, buffer in model.named_buffers():
        if key not in found:
            values = np.asarray(array_of(buffer))  # int64, torch's default, becomes int32
            place = placement(key, values.shape)
            weights[key] = jax.make_array_from_callback(values.shape, place, values.__getitem__)
    return weights


@dataclass(kw_only=True)
class _Target:
    """The target of tensors of a checkpoint: one parameter, or the results of transformers' converter."""

    converter: Any
    sources: list[tuple[str, str | None]] = field(default_factory=list)  # (key, the converter's pattern)
    copies: list[str] = field(default_factory=list)  # keys of the same weight under other names


class _Files:
    """The tensors of several files by their keys, quantised ones as bfloat16. Only files in use are open."""

    def __init__(self, paths: list[Path], block: Sequence[int] | None = None):
        self._open: dict[Path, Any] = {}
        self._block = block
        self._path_of = {key: path for path in paths for key in self._handle(path).keys()}  # noqa: SIM118
        self.file_of = {name: self._path_of[key] for name, key in quantized.names(self._path_of).items()}
        self.close()

    def _handle(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt").__enter__()
        return self._open[path]

    def keep(self, keys: Iterable[str]) -> None:
        """Close the files that contain none of these tensors."""
        self.close(except_for={self.file_of[key] for key in keys})

    def tensor(self, key: str) -> LazyTensor:
        return quantized.tensor(key, self._path_of, self._saved, self._block)

    def _saved(self, key: str) -> LazyTensor:
        part = self._handle(self._path_of[key]).get_slice(key)
        return LazyTensor(part, part.get_shape(), _DTYPES[part.get_dtype()])

    def close(self, except_for: Collection[Path] = ()) -> None:
        for path in [path for path in self._open if path not in except_for]:
            self._open.pop(path).__exit__(None, None, None)


def _targets(model: torch.nn.Module, keys: Iterable[str]) -> dict[str, _Target]:
    """The target of each tensor of a checkpoint, by name in the model; unknown tensors are left out."""
    ordered = sorted(keys, key=_natural)
    if isinstance(model, PreTrainedModel):
        named = _named_by_transformers(model, ordered)
    else:
        named = _named_by_diffusers(model, ordered)
    canonical = _canonical(model)
    targets: dict[str, _Target] = {}
    for key, name, converter, pattern in named:
        first = canonical.get(name, name)
        if converter is None and first in targets:
            targets[first].copies.append(key)
            continue
        targets.setdefault(first, _Target(converter=converter)).sources.append((key, pattern))
    return targets


def _canonical(model: torch.nn.Module) -> dict[str, str]:
    """The first name of each parameter by all its names: a tied weight has several."""
    first_name = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name: first_name[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False)}


# A checkpoint's key, its name in the model, and, for one of several sources, the converter and its pattern.
_Named = Iterator[tuple[str, str, Any, str | None]]


def _named_by_transformers(model: PreTrainedModel, keys: Sequence[str]) -> _Named:
    """Also the keys of a checkpoint of which the model is the text part."""
    known, parameters = model.state_dict(), dict(model.named_parameters())
    named = renamed(model, ((key, key) for key in keys), known)
    if parameters.keys() <= {name for _, name, converter, _ in named if converter is None}:
        return iter(named)
    part = renamed(model, own_names(keys, parameters, model.base_model_prefix), known)
    return iter(part if len(part) > len(named) else named)


def _named_by_diffusers(model: torch.nn.Module, keys: Iterable[str]) -> _Named:
    names = OrderedDict((key, key) for key in keys)
    rename_old_keys(model, names)
    known = model.state_dict()
    for name, key in names.items():
        if name in known:
            yield key, name, None, None


def _converted(model: torch.nn.Module, first: str, target: _Target, files: _Files) -> dict[str, torch.Tensor]:
    """The result of transformers' converter for several tensors, such as one array of all experts, by name."""
    converter = deepcopy(target.converter)
    assert converter is not None
    for key, pattern in target.sources:
        assert pattern is not None  # a source of a converter has one

        def tensor(key: str = key) -> torch.Tensor:
            return files.tensor(key)[:]

        converter.add_tensor(first, key, pattern, tensor)  # it takes a callable too
    made = converter.convert(first, model=model, config=model.config)
    return {key: tensor[0] if isinstance(tensor, list) else tensor for key, tensor in made.items()}


def _same(one: LazyTensor, other: LazyTensor, dtype: torch.dtype) -> bool:
    """Whether two tensors of the files are equal in this dtype; reads a block of rows at a time.

    transformers unties different ones. Here programs are planned from the config alone, without the files.
    """
    shape = one.shape
    if other.shape != shape:
        return False
    rows = max(1, _BLOCK_NUMBERS // max(1, math.prod(shape[1:])))
    blocks = [slice(start, start + rows) for start in range(0, shape[0], rows)]
    return all(torch.equal(one[block].to(dtype), other[block].to(dtype)) for block in blocks)


def _natural(key: str) -> list[Any]:
    """A sort key with layer 10 after layer 9: converters need experts in this order."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)]


def _placed(tensor: LazyTensor, sharding: jax.sharding.Sharding) -> jax.Array:
    """The array on its devices. Each host of a slice reads its own parts only; device_put would compare all hosts'."""
    return jax.make_array_from_callback(tensor.shape, sharding, lambda index: _numpy(tensor.copied(index)))


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    """A view of the same memory, which jax may use as the array on a CPU."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()
