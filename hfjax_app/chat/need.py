"""What a chat model needs of each device, by arithmetic on shapes, and the refusal where a device hasn't got it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from transformers import PreTrainedModel

from hfjax_app.chat.kv_cache import WITH_ROWS
from hfjax_app.chat.model_runner import ModelRunner
from hfjax_app.errors import ModelUnavailable

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes on each device.

    Args:
        weights: with buffers.
        cache: of all slots.
        per_slot_token: what one more token of context costs one slot, in layers that keep all tokens.
        read: of the weights, for one decoding step: all but an embedding that is only looked up.
    """

    weights: int
    cache: int
    per_slot_token: int
    read: int


def need_of(runner: ModelRunner, model: PreTrainedModel) -> Need:
    """The need of a runner, whose weights may be shapes.

    Args:
        runner: its weights have shardings.
        model: with the names that the weights have.
    """
    cache = runner.cache_shape
    growing = [
        leaf
        for spec, layer in zip(runner.decoder.specs, cache, strict=True)
        for name, leaf in layer.items()
        if name in WITH_ROWS and spec.window is None
    ]
    weights = sum(map(_held, runner.weights.values()))
    return Need(
        weights=weights,
        cache=sum(map(_held, jax.tree.leaves(cache))),
        per_slot_token=sum(map(_held, growing)) // (runner.slots * runner.context),
        read=weights - sum(_held(runner.weights[name]) for name in _only_looked_up(model, runner.weights)),
    )


def check_memory(name: str, need: Need, *, memory: int | None, slots: int, context: int) -> None:
    """Refuse a model that its devices can't hold, before anything of it is loaded.

    Args:
        name: what the user called the model.
        memory: bytes that each device has; None where nobody knows.
        slots, context: what `need` is for.

    Raises:
        ModelUnavailable: what it needs, what there is, and what would fit.
    """
    if memory is None or need.weights + need.cache <= memory:
        return
    room = memory - need.weights
    fitting = max(0, room * slots // need.cache)
    tokens = context - (need.cache - room) // max(1, slots * need.per_slot_token) - 1
    ways = [f"slots = {fitting}"] if fitting else []
    ways += [f"context = {tokens}"] if need.per_slot_token and tokens >= 64 else []
    ways += ["quantize = int8", "more devices", "a smaller model"]
    raise ModelUnavailable(
        f"chat model {name!r} needs {need.weights / GIB:.1f} GiB for weights and {need.cache / GIB:.1f} GiB for "
        f"{slots} slots of {context} tokens on each device, which has {memory / GIB:.1f} GiB; what may fit: "
        + ", ".join(ways)
    )


def _only_looked_up(model: PreTrainedModel, weights: Mapping[str, Any]) -> list[str]:
    """The input embedding, unless the output layer reads the same array; int8 gives a tied one an array of its own."""
    names = {module: f"{name}.weight" for name, module in model.named_modules()}
    embedding, output = names.get(model.get_input_embeddings()), names.get(model.get_output_embeddings())
    return [embedding] if {embedding, output} <= weights.keys() else []


def _held(array: jax.ShapeDtypeStruct) -> int:
    """Bytes of an array on each device."""
    shape = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
    return prod(shape) * jnp.dtype(array.dtype).itemsize
