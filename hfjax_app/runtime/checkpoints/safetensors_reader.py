"""Checkpoints of transformers and diffusers -> JAX arrays: each tensor is read from its file straight to its place.

The model is built without memory for its parameters. Its files are opened one after the other, and what a device holds
of a tensor is all that is read for it, so the host never holds more than about one file. Renamed, split and merged
tensors (old names, experts) follow the library's own rules. Does not download: `hub.py` does.
"""

import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from safetensors import safe_open
from torchax.ops import mappings
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.hub import Checkpoint, explain, fetch, weight_files
from hfjax_app.runtime.checkpoints.int8 import quantize as quantized
from hfjax_app.runtime.checkpoints.int8 import scale_name, sources
from hfjax_app.runtime.cpu.conv_layout import Kernels, kept, stored
from hfjax_app.runtime.mesh import replicated
from hfjax_app.runtime.module import Weights, weights_of
from hfjax_app.runtime.programs import Programs

_BLOCK_NUMBERS = 1 << 20  # of two tensors that are compared

# A tensor's name and shape -> where its array goes.
Placement = Callable[[str, tuple[int, ...]], jax.sharding.Sharding]


def on_one_device(name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding:
    """The placement of a model that one device holds: jax's default one."""
    return jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def read(
    model: torch.nn.Module,
    source: str | os.PathLike[str] | Checkpoint,
    *,
    dtype: torch.dtype | None = None,
    placement: Placement = on_one_device,
    quantize: bool = False,
    narrow: Collection[str] = (),
    kernels: Kernels = MappingProxyType({}),
) -> Weights:
    """A checkpoint's weights and the model's buffers as JAX arrays, by their torch names, tied weights once.

    Shows a progress bar on a terminal: bytes and seconds.

    Args:
        model: of transformers (from `empty_model.py`) or of diffusers; its weights are not looked at.
        source: a folder or a hub id, or the files themselves.
        dtype: of the floating-point parameters; None: the model's, as of everything else.
        placement: where each tensor goes; of a tensor that is split over devices, each part is read for its device.
        quantize: int8 for the weights of linear layers, see `int8.py`.
        narrow: what stays in bfloat16 where the files hold it so, whatever `dtype` says, see `bf16_weights.py`.
        kernels: those that are not kept as torch has them, see `conv_layout.py`.

    Raises:
        ModelUnavailable: in one line: which model, why not, and what would help.
    """
    if not isinstance(source, Checkpoint):
        source = Checkpoint(folder=fetch(source), name=os.fspath(source))
    name = source.name
    int8 = sources(model) if quantize else {}
    try:
        with closing(_Files(weight_files(source.folder, name))) as files:
            return _read(model, name, files, _dtypes(model, dtype), placement, int8, narrow, kernels)
    except ModelUnavailable:
        raise
    except Exception as error:
        raise ModelUnavailable(explain(name, error)) from error


def shapes(
    model: torch.nn.Module,
    *,
    dtype: torch.dtype | None = None,
    placement: Placement = on_one_device,
    quantize: bool = False,
    narrow: Collection[str] = (),
) -> dict[str, jax.ShapeDtypeStruct]:
    """What `read` would return, as shapes with their dtypes and shardings: enough to compile, without a checkpoint.

    Its files are taken to hold bfloat16 for what is `narrow`.
    """
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    dtypes = _dtypes(model, dtype) | dict.fromkeys(narrow, torch.bfloat16)
    int8 = sources(model) if quantize else {}
    found: dict[str, jax.ShapeDtypeStruct] = {}

    def add(name: str, shape: tuple[int, ...], dtype: Any) -> None:
        found[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=placement(name, shape))

    for name, tensor in named.items():
        if name not in int8:
            add(name, tuple(tensor.shape), mappings.t2j_dtype(dtypes[name]))
    for name, source in int8.items():
        shape = tuple(named[source].shape)
        add(name, shape, jnp.int8)
        add(scale_name(name), shape[:1], jnp.float32)
    return found


def weights_for(
    programs: Programs,
    module: torch.nn.Module,
    dtype: Any = None,
    *,
    checkpoint: Checkpoint | None = None,
    kernels: Kernels = MappingProxyType({}),
) -> Weights | dict[str, jax.ShapeDtypeStruct]:
    """A module's weights, all of them on each of the programs' devices; for planned programs their shapes.

    Args:
        programs: that they are for.
        module: its weights on the CPU, if it has any.
        dtype: JAX's; where given, floating-point parameters (not buffers) are cast to it.
        checkpoint: the files of the weights; None: they are the module's own.
        kernels: those that are not kept as torch has them, see `conv_layout.py`.

    Raises:
        ModelUnavailable: from a checkpoint, as `read` does.
    """
    mesh = programs.mesh
    torch_dtype = None if dtype is None else mappings.j2t_dtype(jnp.dtype(dtype))
    placement = on_one_device if mesh is None else lambda name, shape: replicated(mesh)
    if programs.planned:
        return stored(shapes(module, dtype=torch_dtype, placement=placement), kernels)
    if checkpoint is not None:
        return read(module, checkpoint, dtype=torch_dtype, placement=placement, kernels=kernels)
    weights = stored(weights_of(module, dtype), kernels)
    return weights if mesh is None else jax.device_put(weights, replicated(mesh))


@dataclass(kw_only=True)
class _Target:
    """Where tensors of a checkpoint go: one parameter, or what transformers' converter makes of several tensors."""

    converter: WeightConverter | None
    sources: list[tuple[str, str | None]] = field(default_factory=list)  # (key, the converter's pattern)
    copies: list[str] = field(default_factory=list)  # keys of the same weight under its other names


class _Files:
    """The tensors of several safetensors files by their keys; only files in use are open."""

    def __init__(self, paths: list[Path]):
        self._open: dict[Path, Any] = {}
        self.file_of = {key: path for path in paths for key in self._handle(path).keys()}  # noqa: SIM118
        self.close()

    def _handle(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt").__enter__()
        return self._open[path]

    def keep(self, keys: Iterable[str]) -> None:
        """Close the files that hold none of these tensors."""
        self.close(except_for={self.file_of[key] for key in keys})

    def slices(self, key: str) -> Any:
        """A tensor that is read where it is indexed."""
        return self._handle(self.file_of[key]).get_slice(key)

    def close(self, except_for: Collection[Path] = ()) -> None:
        for path in [path for path in self._open if path not in except_for]:
            self._open.pop(path).__exit__(None, None, None)


def _dtypes(model: torch.nn.Module, dtype: torch.dtype | None) -> dict[str, torch.dtype]:
    """Of each parameter's and each buffer's array."""
    found = {name: tensor.dtype for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    cast = [name for name, parameter in model.named_parameters() if dtype is not None and parameter.is_floating_point()]
    return found | dict.fromkeys(cast, dtype)


def _read(
    model: torch.nn.Module,
    name: str,
    files: _Files,
    dtypes: dict[str, torch.dtype],
    placement: Placement,
    int8: Mapping[str, str],
    narrow: Collection[str],
    kernels: Kernels,
) -> Weights:
    parameters, saved = dict(model.named_parameters()), model.state_dict()
    expected = parameters | {key: buffer for key, buffer in model.named_buffers() if key in saved}
    targets = _targets(model, files.file_of)
    weights: Weights = {}

    def size(target: str) -> int:
        return expected[target].numel() * (2 if target in narrow else dtypes[target].itemsize)

    def put(target: str, tensor: Any) -> None:
        shape, dtype = tuple(expected[target].shape), dtypes[target]
        if target in narrow and _is_bfloat16(tensor):
            dtype = torch.bfloat16
        found = tuple(tensor.shape if isinstance(tensor, torch.Tensor) else tensor.get_shape())
        if found != shape:
            raise ModelUnavailable(f"model {name!r}: {target} is {list(found)}, and its config says {list(shape)}")
        made: Weights = {}
        if rounded := [key for key, source in int8.items() if source == target]:
            values, scale = quantized(tensor[:])
            for key in rounded:
                scale_of = scale_name(key)
                made[key] = _placed(values, placement(key, shape))
                made[scale_of] = _placed(scale, placement(scale_of, scale.shape))
        if target not in int8:
            if target in kernels:
                tensor = kept(tensor[:], transformed=kernels[target])
                shape = tuple(tensor.shape)
            made[target] = jax.make_array_from_callback(
                shape, placement(target, shape), lambda index: _numpy(tensor[index], dtype)
            )
        weights.update(jax.block_until_ready(made))  # before the next is read: the host holds one tensor at a time
        bar.update(size(target))

    total = sum(map(size, expected))
    label = f"weights of {Path(name).name}"
    with tqdm(total=total, desc=label, unit="B", unit_scale=True, disable=None) as bar:
        for first, target in sorted(targets.items(), key=lambda item: str(files.file_of[item[1].sources[0][0]])):
            files.keep([*(key for key, _ in target.sources), *target.copies])
            if target.converter is None:
                key = target.sources[0][0]
                for copy in target.copies:
                    if not _same(files.slices(key), files.slices(copy), dtypes[first]):
                        raise ModelUnavailable(
                            f"model {name!r}: its config ties {key} and {copy}, and its files hold different ones; "
                            "if they are right, its config.json should say tie_word_embeddings: false"
                        )
                put(first, files.slices(key))
            else:
                for made, tensor in _converted(model, first, target, files).items():
                    if made in expected:
                        put(made, tensor)
    if missing := sorted(parameters.keys() - weights.keys()):
        kind = type(model).__name__
        raise ModelUnavailable(f"model {name!r} is no trained {kind}: its checkpoint lacks {missing[0]}")
    for key, buffer in model.named_buffers():
        if key not in weights:
            weights[key] = _placed(np.asarray(mappings.t2j(buffer)), placement(key, tuple(buffer.shape)))
    return weights


def _targets(model: torch.nn.Module, keys: Iterable[str]) -> dict[str, _Target]:
    """What each tensor of a checkpoint is in the model; unknown tensors are left out."""
    named = _named_by_transformers if isinstance(model, PreTrainedModel) else _named_by_diffusers
    # A tied weight has several names, and named_parameters() lists the first.
    first_name = {id(parameter): name for name, parameter in model.named_parameters()}
    canonical = {name: first_name[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False)}
    targets: dict[str, _Target] = {}
    for key, name, converter, pattern in named(model, sorted(keys, key=_natural)):
        first = canonical.get(name, name)
        if converter is None and first in targets:
            targets[first].copies.append(key)
            continue
        targets.setdefault(first, _Target(converter=converter)).sources.append((key, pattern))
    return targets


# A checkpoint's key, its name in the model, and where it is one of several sources the converter and its pattern.
_Named = Iterator[tuple[str, str, WeightConverter | None, str | None]]


def _named_by_transformers(model: PreTrainedModel, keys: Iterable[str]) -> _Named:
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    of_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    known = model.state_dict()
    for key in keys:
        renamed, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, known)
        if renamed in known:
            yield key, renamed, None if pattern is None else of_pattern[pattern], pattern
        elif key in known:
            yield key, key, None, None


def _named_by_diffusers(model: torch.nn.Module, keys: Iterable[str]) -> _Named:
    names = {key: key for key in keys}
    model._fix_state_dict_keys_on_load(names)  # what `from_pretrained` calls; it moves values to new keys
    known = model.state_dict()
    for name, key in names.items():
        if name in known:
            yield key, name, None, None


def _converted(model: PreTrainedModel, first: str, target: _Target, files: _Files) -> dict[str, torch.Tensor]:
    """What transformers makes of several tensors, such as one array of all experts, by name."""
    converter = deepcopy(target.converter)
    for key, pattern in target.sources:
        converter.add_tensor(first, key, pattern, lambda key=key: files.slices(key)[:])
    made = converter.convert(first, model=model, config=model.config)
    return {key: tensor[0] if isinstance(tensor, list) else tensor for key, tensor in made.items()}


def _same(one: Any, other: Any, dtype: torch.dtype) -> bool:
    """Whether two tensors of the files are one array in this dtype; reads a block of rows at a time.

    Where they differ transformers unties them. Programs are planned from the config alone, before there are files.
    """
    shape = one.get_shape()
    if other.get_shape() != shape:
        return False
    rows = max(1, _BLOCK_NUMBERS // max(1, math.prod(shape[1:])))
    blocks = [slice(start, start + rows) for start in range(0, shape[0], rows)]
    return all(torch.equal(one[block].to(dtype), other[block].to(dtype)) for block in blocks)


def _is_bfloat16(tensor: Any) -> bool:
    """Of a tensor, or of a slice of a file."""
    return (tensor.dtype if isinstance(tensor, torch.Tensor) else tensor.get_dtype()) in (torch.bfloat16, "BF16")


def _natural(key: str) -> list[Any]:
    """Sorts layer 10 after layer 9: converters take experts in this order."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)]


def _placed(values: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array of which every host, of several, puts in only its own devices' parts; device_put would compare all."""
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _numpy(tensor: torch.Tensor, dtype: torch.dtype) -> np.ndarray:
    """A copy in memory of its own: on CPU jax may keep it as the array, and the file can change any time."""
    tensor = tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
    if dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()
