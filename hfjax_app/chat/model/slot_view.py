"""One slot of the key-value cache as the cache that a model's forward takes: transformers' layers over our arrays.

Everything is computed from positions; nothing is counted in Python. kv_cache.py has what a slot holds, and how
tokens are written.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torchax import interop
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
    StaticLayer,
)

from hfjax_app.chat.model.kv_cache import WITH_POSITIONS, LayerSpec, offsets, write
from hfjax_app.runtime import attention, head_packing
from hfjax_app.runtime.seams.torchax import torch_dtype


class SymbolicLength:
    """The number of tokens already in a slot, for models that use it in Python: a traced integer with known bounds.

    Arithmetic with Python ints keeps the bounds. A comparison such as the one in `max(0, 1 - length)` gives a Python
    bool where all lengths within the bounds give the same answer. Torch operations receive the tensor.

    Args:
        tensor: int32 scalar.
        low, high: the smallest and the largest possible value.
    """

    def __init__(self, tensor: torch.Tensor, low: int, high: int):
        self.tensor, self.low, self.high = tensor, low, high

    def __add__(self, other: Any) -> Any:
        if isinstance(other, int):
            return SymbolicLength(self.tensor + other, self.low + other, self.high + other)
        return self.tensor + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return SymbolicLength(-self.tensor, -self.high, -self.low) + other

    def __gt__(self, other: Any) -> Any:
        return self._compare(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(operator.ge, other)

    def __lt__(self, other: Any) -> Any:
        return self._compare(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(operator.le, other)

    def _compare(self, compare: Callable[[Any, Any], Any], other: Any) -> Any:
        """A Python bool where both bounds give the same answer, since all values between do too; otherwise traced."""
        if isinstance(other, int) and compare(self.low, other) == compare(self.high, other):
            return compare(self.low, other)
        return compare(self.tensor, other)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        plain = [arg.tensor if isinstance(arg, SymbolicLength) else arg for arg in args]
        return function(
            *plain, **{k: v.tensor if isinstance(v, SymbolicLength) else v for k, v in (kwargs or {}).items()}
        )


@dataclass(frozen=True, kw_only=True)
class SlotRange:
    """The part of all slots' cache that a forward uses: the first `length` positions of slot `slot` (int32 scalar)."""

    slot: torch.Tensor
    length: int


class _Attention(StaticLayer):
    """One slot's attention layer, as transformers' models use it: `update` writes tokens and returns the whole slot.

    Derived from StaticLayer, because StaticSlidingWindowLayer counts in Python ints, which go stale under jit.

    Args:
        spec: of the layer.
        leaves: torch views of the slot's arrays, without the slot axis; with a place, of all slots' arrays.
        past: number of tokens written before, which is the position of the first new one.
        valid: int32 scalar, how many new tokens are real; writes of the others are dropped.
        place: which slot, and how many of its positions a query may attend to; None: `leaves` are one slot's.
    """

    def __init__(
        self,
        spec: LayerSpec,
        leaves: dict[str, torch.Tensor],
        past: SymbolicLength,
        valid: torch.Tensor,
        place: SlotRange | None,
    ):
        self.leaves, self.place, self.heads_per_row = leaves, place, spec.heads_per_row
        self.wraps = spec.rollback < spec.positions
        self.keys, self.values = self._visible("keys"), self._visible("values")
        self.indexer_keys = self._visible("indexer")[0] if "indexer" in leaves else None
        self.indexer_position_ids = None
        self.past, self.cumulative_length, self.position = past, past.tensor, past.tensor
        self.valid = valid
        self.max_cache_len = self.keys.shape[2]
        self.is_sliding, self.sliding_window = spec.window is not None, spec.window
        self.is_initialized = self.is_indexer_initialized = True

    def _visible(self, name: str) -> torch.Tensor:
        """What a query may attend to, [1, heads, length, dim]."""
        leaf = self.leaves[name]
        if self.place is None:
            part = leaf[None]
        else:
            part = attention.first_positions(leaf, self.place.slot, min(self.place.length, leaf.shape[2]))
        return part if name == "indexer" else attention.unpacked(part, self.heads_per_row)

    def _put(self, name: str, new: torch.Tensor) -> torch.Tensor:
        """Write [heads, tokens, dim] into a leaf."""
        slot = None if self.place is None else self.place.slot
        new = new if name == "indexer" else head_packing.packed(new, self.heads_per_row)
        put = partial(write, wraps=self.wraps)
        self.leaves[name] = interop.call_jax(put, self.leaves[name], new, self.position, self.valid, slot)
        return self._visible(name)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        self.keys, self.values = self._put("keys", key_states[0]), self._put("values", value_states[0])
        return self.keys, self.values

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        self.indexer_keys = self._put("indexer", indexer_key_states)[0]
        return self.indexer_keys

    def get_mask_sizes(self, query_length: int) -> tuple[int, Any]:
        """The cache length, and the offset from an index of the cache to the position that it holds.

        transformers adds the offset to an arange of the length; in a ring it is a tensor [length]. An index that was
        never written gets a position that no query sees.
        """
        if not self.is_sliding:
            return self.max_cache_len, 0
        return self.max_cache_len, interop.call_jax(offsets, self.max_cache_len, self.position, self.valid)

    def get_seq_length(self) -> SymbolicLength:  # type: ignore[override]  # the models also take a traced length
        return self.past


class _Recurrent(LinearAttentionLayer):
    """One slot's recurrent layer, as transformers' models use it. It always has a previous state, zero at first."""

    def __init__(self, leaves: dict[str, torch.Tensor]):
        indices = {int(name.removeprefix(kind)) for kind in ("conv", "recurrent") for name in leaves if kind in name}
        LinearAttentionLayer.__init__(self, number_of_states=len(indices))
        self.record_past = True  # the code path that passes every update to the cache, for one token as for many
        for i in indices:
            conv, recurrent = leaves.get(f"conv{i}"), leaves.get(f"recurrent{i}")
            self.conv_states[i] = None if conv is None else conv[None]
            self.conv_kernel_size[i] = None if conv is None else conv.shape[-1]
            self.recurrent_states[i] = None if recurrent is None else recurrent[None]
            self.is_conv_states_initialized[i] = conv is not None
            self.is_recurrent_states_initialized[i] = recurrent is not None
            self.has_previous_state[i] = True

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> torch.Tensor:
        before, size = self.conv_states[state_idx], self.conv_kernel_size[state_idx]
        assert before is not None
        assert size is not None
        whole = torch.cat([before, conv_states], dim=-1)
        self.conv_states[state_idx] = whole[..., -size:]
        return whole

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any) -> torch.Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


# transformers' own hybrid layer inherits from the same classes, whose annotations contradict each other.
class _Hybrid(_Recurrent, _Attention, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc, override]
    """Attention and a state in one layer. Because of the last base, Cache.is_linear counts it as attention."""

    def __init__(self, spec: LayerSpec, leaves: dict[str, torch.Tensor], *others: Any):
        _Recurrent.__init__(self, {name: leaf for name, leaf in leaves.items() if name not in WITH_POSITIONS})
        _Attention.__init__(self, spec, leaves, *others)


def slot_view(
    specs: tuple[LayerSpec, ...],
    leaves: list[dict[str, torch.Tensor]],
    past: SymbolicLength,
    valid: torch.Tensor,
    place: SlotRange | None = None,
) -> Cache:
    """One slot's leaves (torch views) as the cache that a model's forward takes; read it back with `slot_leaves`.

    With a place, leaves with positions are those of all slots, and states are those of its slot.
    """
    layers: list[Any] = []
    for spec, layer in zip(specs, leaves, strict=True):
        if spec.is_attention and spec.is_recurrent:
            layers.append(_Hybrid(spec, layer, past, valid, place))
        elif spec.is_attention:
            layers.append(_Attention(spec, layer, past, valid, place))
        elif spec.is_recurrent:
            layers.append(_Recurrent(layer))
        else:
            layers.append(DummyLayer())
    return Cache(layers=layers)


def slot_leaves(specs: tuple[LayerSpec, ...], cache: Cache) -> list[dict[str, torch.Tensor]]:
    """The slot's leaves after a forward, with the names and dtypes of `specs`."""

    def read(layer: Any, name: str) -> torch.Tensor:
        leaf: torch.Tensor
        if name in WITH_POSITIONS:
            leaf = layer.leaves[name]
        else:
            kind = name.rstrip("0123456789")
            leaf = getattr(layer, f"{kind}_states")[int(name.removeprefix(kind))][0]
        return leaf

    return [
        {leaf.name: read(layer, leaf.name).to(torch_dtype(leaf.dtype)) for leaf in spec.leaves}
        for spec, layer in zip(specs, cache.layers, strict=True)
    ]
