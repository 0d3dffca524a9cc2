"""A causal language model as a pure function over one slot of the static cache, and its cache layout.

The model's own forward runs unmodified. Does not compile, batch or sample: model_runner.py does.
"""

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.interpreters import partial_eval
from torchax.ops import mappings
from transformers import PreTrainedModel

from hfjax_app.chat.model.kv_cache import (
    WITH_ROWS,
    KVCache,
    Place,
    fresh_states,
    keep_states,
    layer_specs,
    slot_leaves,
    slot_view,
)
from hfjax_app.chat.model.symbolic_length import SymbolicLength
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime import attention, dtype_policy, set_order
from hfjax_app.runtime.head_packing import UNPACKED, HeadPacking
from hfjax_app.runtime.model_transform import NONE, Group, Transforms
from hfjax_app.runtime.module import Weights, pure_function
from hfjax_app.runtime.shared_inputs import observed
from hfjax_app.runtime.tracing import why_untraceable

# Architectures that trace and yet compute something else on a cache of fixed size.
UNSOUND = {
    "gpt_neo": "its local attention counts the window from the last row, not from the last token",
    "moshi": "its mask does not know the window of its cache",
}


def bare_model(model_class: type[PreTrainedModel], config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The architecture without weights (on the meta device), with our attention where its code can take another.

    Older architectures have an attention of their own; they keep it, and get the additive masks that it expects.
    """
    set_order.install(model_class)  # some put their layers' types in order when they are made
    implementation = attention.register() if _mentions(model_class, "ALL_ATTENTION_FUNCTIONS") else "eager"
    with torch.device("meta"):
        model = model_class._from_config(copy.deepcopy(config), attn_implementation=implementation, dtype=dtype).eval()
    dtype_policy.keep(model, dtype)
    return model


def _mentions(model_class: type[PreTrainedModel], name: str) -> bool:
    """Whether an architecture's code uses one of transformers' registries. No attribute of the class says so."""
    return name in inspect.getsource(inspect.getmodule(model_class))


class Decoder:
    """One architecture, traced: `forward`, and the cache layout `specs`.

    Args:
        model_class, config, dtype: what to build, without weights.
        context: tokens a slot holds.
        chunk: the largest number of tokens written at once.
        transforms: what is done to the model and its weights, see `runtime/transforms.py`.
        packing: where heads lie side by side in the cache, see `runtime/head_packing.py`.

    Raises:
        ModelUnavailable: in one line, why this architecture can't run; found by tracing, without weights.
    """

    def __init__(
        self,
        model_class: type[PreTrainedModel],
        config: Any,
        dtype: torch.dtype,
        *,
        context: int,
        chunk: int,
        transforms: Transforms = NONE,
        packing: HeadPacking = UNPACKED,
    ):
        self.context = context
        self._made_of = (model_class, config, dtype)
        self._options = {"transforms": transforms, "packing": packing}
        try:
            if config.model_type in UNSOUND:
                raise NotImplementedError(UNSOUND[config.model_type])
            self._model = bare_model(model_class, config, dtype)
            parameters = inspect.signature(self._model.forward).parameters
            self._cache_option = "past_key_values" if "past_key_values" in parameters else "cache_params"
            self._takes = {name for name in ("position_ids", "logits_to_keep") if name in parameters}
            # Programs for other numbers of slots run the same forward: jax keeps its trace, most of Python's work.
            forward = pure_function(self._model, self._call)
            self._forward_torch = jax.jit(forward, static_argnums=7, inline=True)  # `rows` is a number
            groups = self._trace(chunk, packing)
        except Exception as error:
            why = why_untraceable(error)
            raise ModelUnavailable(f"{model_class.__name__} can't run on the static cache: {why}") from error
        transforms.adapt(self._model, groups)

    def _trace(self, chunk: int, packing: HeadPacking) -> list[Group]:
        """Read off the cache layout and trace one token's forward: without a mask, or else with one that masks nothing.

        Some architectures make a mask of ones where there is none, for which they need the length as a number.

        Returns:
            The linear layers that read the same input.
        """
        failures: list[Exception] = []
        for self._takes_mask in (False, True):
            try:
                with self._experts_on_meta(), observed(self._model) as groups:
                    layout = (self.context, chunk, packing)
                    self.specs = layer_specs(self._model, *layout, self._cache_option, self._inputs())
                scalar = jax.ShapeDtypeStruct((), jnp.int32)
                one = jax.ShapeDtypeStruct((1,), jnp.int32)
                arguments = (one, self.slot_shape, scalar, scalar, one)
                self._logits, _ = jax.eval_shape(self._write, self.weights_shape, *arguments)
                self.continues = self._continues_from_a_state()
                return groups
            except Exception as error:
                failures.append(error)
        raise failures[0]

    def _continues_from_a_state(self) -> bool:
        """Whether the model reads the states that it was given when it gets several tokens.

        Some code (transformers' Mamba) takes several tokens for a conversation's beginning and ignores them.
        """
        states = [{name: leaf for name, leaf in layer.items() if name not in WITH_ROWS} for layer in self.slot_shape]
        if not jax.tree.leaves(states):
            return True
        scalar, two = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)

        def write(states: KVCache, rest: Any) -> Any:
            weights, tokens, cache, *others = rest
            cache = [layer | state for layer, state in zip(cache, states, strict=True)]
            return self._forward_torch(weights, tokens, cache, *others)

        rest = (self.weights_shape, two, self.slot_shape, scalar, scalar, two)
        jaxpr = jax.make_jaxpr(write)(states, rest).jaxpr
        _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        return all(used[: len(jax.tree.leaves(states))])

    @contextmanager
    def _experts_on_meta(self) -> Iterator[None]:
        """Torch's grouped matrix product has no meta kernel for float32; the batched one gives the same shapes."""
        if not _mentions(type(self._model), "use_experts_implementation"):
            yield
            return
        usual = self._model.get_experts_implementation()
        self._model.set_experts_implementation("batched_mm")
        try:
            yield
        finally:
            self._model.set_experts_implementation(usual)

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer keeps a state."""
        return any(spec.is_recurrent for spec in self.specs)

    @property
    def slot_shape(self) -> Any:
        """Shapes and dtypes of one slot's cache."""
        return [{leaf.name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in s.leaves} for s in self.specs]

    def resized(self, *, context: int, chunk: int) -> "Decoder":
        """The same architecture with a cache of another size."""
        return Decoder(*self._made_of, context=context, chunk=chunk, **self._options)

    @property
    def weights_shape(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the weights that `forward` takes."""
        named = dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        return {
            name: jax.ShapeDtypeStruct(tuple(tensor.shape), mappings.t2j_dtype(tensor.dtype))
            for name, tensor in named.items()
        }

    def forward(
        self,
        weights: Weights,
        tokens: jax.Array,
        cache: KVCache,
        position: jax.Array,
        valid: jax.Array,
        keep: jax.Array | None = None,
        place: tuple[jax.Array, int] | None = None,
    ) -> tuple[jax.Array, KVCache]:
        """Write tokens of one slot and predict what follows the last, or each of several.

        Args:
            weights: of `weights_shape`.
            tokens: int32 [n], for positions `position` ... position + n - 1.
            cache: the slot's, without slot axis; with a place, leaves with rows are those of all slots.
            position: int32 scalar.
            valid: int32 scalar: the first `valid` tokens are real, the rest is padding. Writes of padding are dropped;
                a recurrent state would go over it, so there the model runs on pieces that add up to `valid`.
            keep: int32 [k], indices of the tokens after which to predict; None: after the last real one.
            place: the slot, int32 scalar, and how many of its first rows a query may look at.

        Returns:
            Logits [k, vocabulary], or [vocabulary] after the last real token, and the new cache.
        """
        cache = fresh_states(cache, position)
        after = jnp.maximum(valid - 1, 0)[None] if keep is None else keep
        write = self._write if tokens.shape[0] == 1 or not self.is_recurrent else self._write_in_pieces
        logits, cache = write(weights, tokens, cache, position, valid, after, place)
        return logits[0] if keep is None else logits, cache

    def _write(
        self,
        weights: Weights,
        tokens: jax.Array,
        cache: KVCache,
        position: jax.Array,
        valid: jax.Array,
        after: jax.Array,
        place: tuple[jax.Array, int] | None = None,
    ) -> tuple[jax.Array, KVCache]:
        """One call of the model: logits [k, vocabulary] after the tokens at the indices `after` [k], and the cache."""
        slot, rows = (None, None) if place is None else place
        logits, new = self._forward_torch(weights, tokens, cache, position, valid, after, slot, rows)
        return logits, keep_states(valid > 0, new, cache)

    def _write_in_pieces(
        self,
        weights: Weights,
        tokens: jax.Array,
        cache: KVCache,
        position: jax.Array,
        valid: jax.Array,
        after: jax.Array,
        place: tuple[jax.Array, int] | None = None,
    ) -> tuple[jax.Array, KVCache]:
        """As `_write`, but no token that a layer sees is padding."""

        def write_piece(size: int, carry: Any) -> Any:
            done, logits, cache = carry
            piece = jax.lax.dynamic_slice_in_dim(tokens, done, size)
            index = jnp.clip(after - done, 0, size - 1)
            new, cache = self._write(weights, piece, cache, position + done, jnp.int32(size), index, place)
            return done + size, jnp.where((index == after - done)[:, None], new, logits), cache

        def fits(size: int, carry: Any) -> jax.Array:
            return valid - carry[0] >= size

        carry = (jnp.int32(0), jnp.zeros((after.shape[0], *self._logits.shape[1:]), self._logits.dtype), cache)
        for size in piece_sizes(tokens.shape[0]) if self.continues else (1,):
            carry = jax.lax.while_loop(partial(fits, size), partial(write_piece, size), carry)
        return carry[1:]

    def _call(
        self,
        model: PreTrainedModel,
        tokens: torch.Tensor,
        leaves: list[dict[str, torch.Tensor]],
        position: torch.Tensor,
        valid: torch.Tensor,
        keep: torch.Tensor,
        slot: torch.Tensor | None = None,
        rows: int | None = None,
    ) -> Any:
        """The model's own forward on one slot; logits of the tokens at the indices `keep`, and the leaves."""
        length = SymbolicLength(position, low=0, high=self.context - 1)
        place = None if slot is None else Place(slot=slot, rows=rows)
        cache = slot_view(self.specs, leaves, length, valid, place)
        positions = torch.arange(tokens.shape[0], device=tokens.device, dtype=torch.int32) + position
        options = {"position_ids": positions[None], "logits_to_keep": keep}
        options = {name: value for name, value in options.items() if name in self._takes}
        logits = model(tokens[None], **{self._cache_option: cache}, **self._inputs(tokens.device), **options).logits[0]
        if "logits_to_keep" not in self._takes:
            logits = logits[keep]
        return logits, slot_leaves(self.specs, cache)

    def _inputs(self, device: Any = "meta") -> dict[str, Any]:
        """What every call of the model gets besides tokens and cache."""
        mask = torch.ones((1, self.context), dtype=torch.int32, device=device) if self._takes_mask else None
        return {"use_cache": True} | ({} if mask is None else {"attention_mask": mask})


def piece_sizes(count: int) -> tuple[int, ...]:
    """count, count / 4, count / 16, ... and 1: any number of tokens up to count is a few pieces of these sizes."""
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append(max(sizes[-1] // 4, 1))
    return tuple(sizes)
