"""Checkpoints that exist in few bits only, as bfloat16: fp8 with a scale for each block, and mxfp4.

Each tensor is turned when it is read. Other kinds are refused, by `empty_model.py` where the configuration says so, or
by the names of tensors.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from hfjax_app.runtime.model_transform import LazyTensor

READABLE = ("fp8", "mxfp4")  # values of `quant_method`
_SCALE, _BLOCKS, _EXPONENTS = "_scale_inv", "_blocks", "_scales"
_ROWS = 1 << 12  # of a matrix that are float32 at a time
# The ends of names of tensors that stand beside weights in few bits, and whose these are.
_OTHERS = {
    "float8 with scales, as ComfyUI has it": r"(scaled_fp8|comfy_quant|scale_weight|scale_input|weight_scale)",
    "bitsandbytes": r"(absmax|quant_map|quant_state\.\w+)",
    "GPTQ, AWQ or SVDQuant": r"(qweight|qzeros|wscales)",
}

# A key of the files -> its tensor.
Reader = Callable[[str], LazyTensor]


class _Made:
    """A tensor that is computed when it is first indexed."""

    def __init__(self, make: Callable[[], torch.Tensor]):
        self._make = make
        self._made: torch.Tensor | None = None

    def __getitem__(self, index: Any) -> torch.Tensor:
        if self._made is None:
            self._made = self._make()
        return self._made[index]


def unreadable(keys: Iterable[str]) -> str | None:
    """What the names of tensors that no layer has say of weights in few bits, with one of them; None: nothing."""
    kinds = {key: kind for key in keys for kind, end in _OTHERS.items() if re.search(rf"(^|\.){end}$", key)}
    key = min(kinds, default=None)
    return None if key is None else f"{kinds[key]}: {key}"


def names(keys: Collection[str]) -> dict[str, str]:
    """The tensors that the keys of a checkpoint stand for, each with the key that holds most of it."""
    packed = {key.removesuffix(_BLOCKS): key for key in keys if key.endswith(_BLOCKS)}
    packed = {name: key for name, key in packed.items() if name + _EXPONENTS in keys}
    parts = {*packed.values(), *(name + _EXPONENTS for name in packed)}
    scales = {key + _SCALE for key in keys}
    return {key: key for key in keys if key not in parts and key not in scales} | packed


def tensor(name: str, keys: Collection[str], read: Reader, block: Sequence[int] | None) -> LazyTensor:
    """One of these tensors.

    Args:
        name: of `names`.
        keys: of the checkpoint.
        read: reads a tensor of the files.
        block: rows and columns that share a scale; None: as many as divide the tensor evenly.
    """
    if name + _BLOCKS in keys and name not in keys:
        blocks, exponents = read(name + _BLOCKS), read(name + _EXPONENTS)
        *experts, rows, groups, size = blocks.shape
        shape = (*experts, groups * size * 2, rows)
        return LazyTensor(_Made(lambda: convert_moe_packed_tensors(blocks[:], exponents[:])), shape, torch.bfloat16)
    if name + _SCALE in keys:
        values, scale = read(name), read(name + _SCALE)
        return LazyTensor(_Made(lambda: _scaled(values[...], scale[...], block)), values.shape, torch.bfloat16)
    return read(name)


def _scaled(values: torch.Tensor, scale: torch.Tensor, block: Sequence[int] | None) -> torch.Tensor:
    """A matrix [rows, columns] times a scale for each block of it [blocks, blocks]; the last blocks may be cut."""
    rows, columns = values.shape
    scale = scale.float().reshape(1, 1) if scale.numel() == 1 else scale.float()
    if block is None or scale.numel() == 1:
        block = (-(-rows // scale.shape[0]), -(-columns // scale.shape[1]))
    down, across = block
    made = torch.empty(rows, columns, dtype=torch.bfloat16)
    step = max(1, _ROWS // down) * down
    for start in range(0, rows, step):
        part = values[start : start + step].float()
        factor = scale[start // down : -(-(start + step) // down)]
        factor = factor.repeat_interleave(down, 0)[: part.shape[0]].repeat_interleave(across, 1)[:, :columns]
        made[start : start + step] = part * factor
    return made
