"""A causal language model as a pure function over one slot of the static cache, and its cache layout.

The model's own forward runs unmodified.
"""

import copy
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask, sliding_window_overlay

from hfjax_app.chat.model.kv_cache import WITH_POSITIONS, KVCache, fresh_states, keep_states, layer_specs
from hfjax_app.chat.model.rotary import choose_frequencies
from hfjax_app.chat.model.slot_view import SlotRange, SymbolicLength, slot_leaves, slot_view
from hfjax_app.chat.vision.picture import PLACEHOLDER
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime import attention, dtype_policy, experts
from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.head_packing import UNPACKED, HeadPacking
from hfjax_app.runtime.model_transform import NONE, Group, Transforms
from hfjax_app.runtime.module import Weights, pure_function
from hfjax_app.runtime.seams.jax import used_inputs
from hfjax_app.runtime.seams.torchax import jax_dtype
from hfjax_app.runtime.seams.transformers import built, mentions, order_sets
from hfjax_app.runtime.tracing import why_untraceable

# Architectures that are refused, most because they can be traced, but give other results on a cache of fixed size.
WRONG_ON_STATIC_CACHE = {
    "gpt_neo": "its local attention counts the window from the end of the cache, not from the last token",
    "mllama_text_model": "it reads pictures by cross attention, which has a cache of its own",
    "moshi": "its mask does not know the window of its cache",
}
_FACTS = "decoder"  # the name of TracedFacts in a bundle


class TracedFacts(NamedTuple):
    """What a trace of one token's forward tells about an architecture, kept in the bundle of its programs so that later
    starts need no trace.

    Attributes:
        needs_mask: whether it gets a mask that masks nothing, because without one it makes its own.
        continues: whether it uses its previous states when it gets several tokens.
    """

    needs_mask: bool
    continues: bool

    @classmethod
    def of(cls, bundle: Bundle | None) -> "TracedFacts | None":
        """The facts in a bundle; None where there are none."""
        found = None if bundle is None else bundle.facts.get(_FACTS)
        if not isinstance(found, list) or [type(value) for value in found] != [bool] * len(cls._fields):
            return None
        return cls(*found)

    def keep(self, bundle: Bundle | None) -> None:
        """Keep the facts in a bundle, if there is one that doesn't have them."""
        if bundle is not None and self.of(bundle) != self:
            bundle.keep_facts(bundle.facts | {_FACTS: list(self)})


class ShownPicture(NamedTuple):
    """A whole picture, as a decoder takes it in the place of tokens: arrays of jax, or tensors that stand for them."""

    tokens: Any  # int32 [n], ids of tokens, and PLACEHOLDER for each embedding
    embeddings: Any  # [embeddings, hidden]
    deep: tuple[Any, ...] = ()  # [embeddings, hidden] each, added to the outputs of the first layers
    positions: Any = None  # int32 [axes, n], for models with positions of their own


class Architecture(NamedTuple):
    """A model without its weights."""

    model_class: type[PreTrainedModel]
    config: Any
    dtype: torch.dtype


def bare_model(architecture: Architecture) -> PreTrainedModel:
    """The architecture without weights (on the meta device), with our attention where its code takes a registered one.

    Older architectures have their own attention code. They keep it, and get the additive masks that it expects.
    """
    model_class, config, dtype = architecture
    order_sets(model_class)  # some sort their layers' types when they are made
    implementation = attention.register() if mentions(model_class, "ALL_ATTENTION_FUNCTIONS") else "eager"
    with torch.device("meta"):
        model = built(model_class, copy.deepcopy(config), attn_implementation=implementation, dtype=dtype)
    model.eval()
    dtype_policy.keep(model, dtype)
    return model


# A forward's parameter that takes the cache: of every class from transformers 5.24 on; before that of most classes, and
# of those whose layers keep a state.
_CACHE_OPTIONS = ("cache", "past_key_values", "cache_params")


class Decoder:
    """One architecture, traced: `forward`, and the cache layout `specs`.

    Args:
        architecture: built without weights.
        context: tokens a slot holds.
        chunk: the largest number of tokens written at once.
        transforms: changes to the model and its weights, see `runtime/transforms.py`.
        packing: how heads share rows of the cache, see `runtime/head_packing.py`.
        both_ways: the types of layers in which a picture's tokens see each other both ways, see `both_ways`.
        traced: of an earlier trace of this architecture, which is not repeated; None: there was none.

    Attributes:
        traced: the facts, for the next time.
        frequencies: buffers of rotary embeddings that depend on the context, by name.
        experts_per_token: how many experts a token uses, by the name of the module that holds them.

    Raises:
        ModelUnavailable: in one line, why this architecture can't run; found by tracing, without weights.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        context: int,
        chunk: int,
        transforms: Transforms = NONE,
        packing: HeadPacking = UNPACKED,
        both_ways: tuple[str, ...] = (),
        traced: TracedFacts | None = None,
    ):
        self.context, self._both_ways = context, both_ways
        self._architecture = architecture
        self._transforms, self._packing = transforms, packing
        try:
            if (known := WRONG_ON_STATIC_CACHE.get(architecture.config.model_type)) is not None:
                raise NotImplementedError(known)
            self._model = bare_model(architecture)
            self.frequencies = choose_frequencies(self._model, context)
            parameters = inspect.signature(self._model.forward).parameters
            self._cache_option = next((name for name in _CACHE_OPTIONS if name in parameters), _CACHE_OPTIONS[0])
            self._accepts = {name for name in ("position_ids", "logits_to_keep") if name in parameters}
            # Programs for other numbers of slots reuse jax's trace of this forward, which is most of the Python time.
            forward = pure_function(self._model, self._call)
            self._forward_torch = jax.jit(forward, static_argnums=7, inline=True)  # 7: `length`, an int
            if traced is None:
                groups = self._trace(chunk, packing)
            else:
                self.traced = traced
                groups = self._lay_out(chunk, packing)
        except Exception as error:
            why = why_untraceable(error)
            name = architecture.model_class.__name__
            raise ModelUnavailable(
                f"{name} can't run on the static cache: {why}; docs/models.md lists what runs"
            ) from error
        transforms.adapt(self._model, groups)
        if experts.experts_of(self._model):  # with the same shapes they may be computed otherwise from here on
            self._forward_torch = jax.jit(forward, static_argnums=7, inline=True)

    def _trace(self, chunk: int, packing: HeadPacking) -> list[Group]:
        """Find the cache layout and trace one token's forward: first without a mask, then with one that masks nothing.

        Without a mask, some architectures make one themselves, for which they need the length as a Python int.

        Returns:
            The linear layers that read the same input.
        """
        failures: list[Exception] = []
        for needs_mask in (False, True):
            try:
                self.traced = TracedFacts(needs_mask=needs_mask, continues=True)
                groups = self._lay_out(chunk, packing)
                scalar = jax.ShapeDtypeStruct((), jnp.int32)
                one = jax.ShapeDtypeStruct((1,), jnp.int32)
                jax.eval_shape(self._write, self.weights_shape, one, self.slot_shape, scalar, scalar, one)
                self.traced = TracedFacts(needs_mask=needs_mask, continues=self._continues_from_a_state())
                return groups
            except Exception as error:
                failures.append(error)
        raise failures[0]

    def _lay_out(self, chunk: int, packing: HeadPacking) -> list[Group]:
        """Find the cache layout, by a run on the meta device; the result is as `_trace`'s."""
        with self._experts_on_meta(), observed(self._model) as groups, experts.used(self._model) as found:
            layout = (self.context, chunk, packing)
            self.specs = layer_specs(self._model, *layout, self._cache_option, self._inputs())
        self.experts_per_token = found
        return groups

    def _continues_from_a_state(self) -> bool:
        """Whether the model uses its previous states when it gets several tokens.

        Some code (transformers' Mamba) treats several tokens as the start of a conversation and ignores the states.
        """
        states = [
            {name: leaf for name, leaf in layer.items() if name not in WITH_POSITIONS} for layer in self.slot_shape
        ]
        if not jax.tree.leaves(states):
            return True
        scalar, two = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)

        def write(states: KVCache, rest: Any) -> Any:
            weights, tokens, cache, *others = rest
            cache = [layer | state for layer, state in zip(cache, states, strict=True)]
            return self._forward_torch(weights, tokens, cache, *others)

        rest = (self.weights_shape, two, self.slot_shape, (scalar, None), scalar, two)
        jaxpr = jax.make_jaxpr(write)(states, rest).jaxpr
        return all(used_inputs(jaxpr)[: len(jax.tree.leaves(states))])

    @cached_property
    def weights_read(self) -> set[str]:
        """The names of the weights that a token's forward reads: none of a wrapper's vision tower."""
        scalar, one = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
        weights = self.weights_shape
        jaxpr = jax.make_jaxpr(self._write)(weights, one, self.slot_shape, scalar, scalar, one).jaxpr
        return {name for name, is_used in zip(sorted(weights), used_inputs(jaxpr), strict=False) if is_used}

    @contextmanager
    def _experts_on_meta(self) -> Iterator[None]:
        """Use batched matrix products: torch's grouped one has no meta kernel for float32. The shapes are the same."""
        if not mentions(type(self._model), "use_experts_implementation"):
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
        """Whether any layer has a state."""
        return any(spec.is_recurrent for spec in self.specs)

    @property
    def slot_shape(self) -> Any:
        """Shapes and dtypes of one slot's cache."""
        return [{leaf.name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in s.leaves} for s in self.specs]

    def resized(self, *, context: int, chunk: int) -> "Decoder":
        """The same architecture with a cache of another size."""
        return Decoder(
            self._architecture,
            context=context,
            chunk=chunk,
            transforms=self._transforms,
            packing=self._packing,
            traced=self.traced,
        )

    @property
    def weights_shape(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the weights that `forward` takes."""
        named = dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        return {
            name: jax.ShapeDtypeStruct(tuple(tensor.shape), jax_dtype(tensor.dtype)) for name, tensor in named.items()
        }

    def forward(
        self,
        weights: Weights,
        tokens: jax.Array | ShownPicture,
        cache: KVCache,
        position: jax.Array,
        valid: jax.Array,
        keep: jax.Array | None = None,
        place: tuple[jax.Array, int] | None = None,
        shift: jax.Array | None = None,
    ) -> tuple[jax.Array, KVCache]:
        """Write tokens of one slot and predict the token after the last one, or after each of several.

        Args:
            weights: of `weights_shape`.
            tokens: int32 [n], for positions `position` ... position + n - 1; or one whole picture in their place.
            cache: the slot's, without slot axis; with a place, leaves with positions are those of all slots.
            position: int32 scalar.
            valid: int32 scalar: the first `valid` tokens are real, the rest is padding. Writes of padding are dropped.
                Padding would change a recurrent state, so recurrent models run on pieces that add up to `valid`.
            keep: int32 [k], indices of the tokens after which to predict; None: after the last real one.
            place: the slot, int32 scalar, and how many of its first positions a query may attend to.
            shift: int32 scalar, what the model's own positions of these tokens are beyond those in the cache, because
                it counts pictures otherwise; None: nothing.

        Returns:
            Logits [k, vocabulary], or [vocabulary] after the last real token, and the new cache.
        """
        cache = fresh_states(cache, position)
        after = jnp.maximum(valid - 1, 0)[None] if keep is None else keep
        if isinstance(tokens, ShownPicture) or tokens.shape[0] == 1 or not self.is_recurrent:
            logits, cache = self._write(weights, tokens, cache, position, valid, after, place, shift)
        else:
            logits, cache = self._write_in_pieces(weights, tokens, cache, position, valid, after, place, shift)
        return logits[0] if keep is None else logits, cache

    def _write(
        self,
        weights: Weights,
        tokens: jax.Array | ShownPicture,
        cache: KVCache,
        position: jax.Array,
        valid: jax.Array,
        after: jax.Array,
        place: tuple[jax.Array, int] | None = None,
        shift: jax.Array | None = None,
    ) -> tuple[jax.Array, KVCache]:
        """One call of the model: logits [k, vocabulary] after the tokens at the indices `after` [k], and the cache."""
        slot, length = (None, None) if place is None else place
        logits, new = self._forward_torch(weights, tokens, cache, (position, shift), valid, after, slot, length)
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
        shift: jax.Array | None = None,
    ) -> tuple[jax.Array, KVCache]:
        """As `_write`, in pieces without padding."""

        def write_piece(size: int, carry: Any) -> Any:
            done, logits, cache = carry
            piece = jax.lax.dynamic_slice_in_dim(tokens, done, size)
            index = jnp.clip(after - done, 0, size - 1)
            new, cache = self._write(weights, piece, cache, position + done, jnp.int32(size), index, place, shift)
            return done + size, jnp.where((index == after - done)[:, None], new, logits), cache

        def fits(size: int, carry: Any) -> jax.Array:
            fitting: jax.Array = valid - carry[0] >= size
            return fitting

        first = (weights, tokens[:1], cache, position, valid, after)
        logits, _ = jax.eval_shape(partial(self._write, place=place), *first)  # a place's length is no array
        carry = (jnp.int32(0), jnp.zeros(logits.shape, logits.dtype), cache)
        for size in piece_sizes(tokens.shape[0]) if self.traced.continues else (1,):
            carry = jax.lax.while_loop(partial(fits, size), partial(write_piece, size), carry)
        return carry[1:]

    def _call(
        self,
        model: PreTrainedModel,
        tokens: torch.Tensor | ShownPicture,
        leaves: list[dict[str, torch.Tensor]],
        places: tuple[torch.Tensor, torch.Tensor | None],  # position and shift
        valid: torch.Tensor,
        keep: torch.Tensor,
        slot: torch.Tensor | None = None,
        length: int | None = None,
    ) -> Any:
        """The model's own forward on one slot; logits of the tokens at the indices `keep`, and the leaves."""
        (position, shift), picture = places, tokens if isinstance(tokens, ShownPicture) else None
        ids: torch.Tensor = tokens if picture is None else picture.tokens  # type: ignore[assignment]
        past = SymbolicLength(position, low=0, high=self.context - 1)
        place = None if slot is None or length is None else SlotRange(slot=slot, length=length)
        cache = slot_view(self.specs, leaves, past, valid, place)
        positions = torch.arange(ids.shape[0], device=ids.device, dtype=torch.int32)[None] + position
        own = positions if shift is None else positions + shift
        if picture is not None and picture.positions is not None:
            own = torch.cat([positions, picture.positions])[:, None]
        options: dict[str, Any] = {"position_ids": own, "logits_to_keep": keep}
        options = {name: value for name, value in options.items() if name in self._accepts}
        options |= {self._cache_option: cache} | self._inputs(ids.device)
        if picture is None:
            logits = model(ids[None], **options).logits[0]
        else:
            options |= self._shown(model, picture)
            if self._both_ways:
                embeddings = options["inputs_embeds"]
                options["attention_mask"] = both_ways(model.config, embeddings, cache, positions, self._both_ways)
            logits = model(**options).logits[0]
        if "logits_to_keep" not in self._accepts:
            logits = logits[keep]
        return logits, slot_leaves(self.specs, cache)

    @staticmethod
    def _shown(model: PreTrainedModel, picture: ShownPicture) -> dict[str, Any]:
        """The arguments of a forward for a picture, as the whole model passes them to its text part."""
        is_embedding = picture.tokens == PLACEHOLDER
        which = torch.cumsum(is_embedding, 0) - 1
        ids = torch.where(is_embedding, 0, picture.tokens)

        def spread(rows: torch.Tensor, others: Any) -> torch.Tensor:
            """[1, n, hidden]: the embeddings' rows in their places."""
            return torch.where(is_embedding[:, None], rows[which], others)[None]

        words = model.get_input_embeddings()(ids)
        options: dict[str, Any] = {"inputs_embeds": spread(picture.embeddings.to(words.dtype), words)}
        if picture.deep:
            # which rows of the batch: every token of the only one, and what is no embedding gets zeros
            rows = torch.zeros(1, dtype=torch.int32, device=ids.device)
            options |= {
                "visual_pos_masks": rows,
                "deepstack_visual_embeds": [spread(one, 0)[0] for one in picture.deep],
            }
        if getattr(model.config, "hidden_size_per_layer_input", 0):  # each layer has embeddings of words
            decoder: Any = model.get_decoder()
            padded = torch.where(is_embedding, model.config.pad_token_id, picture.tokens)
            options["per_layer_inputs"] = decoder.get_per_layer_inputs(padded[None])
        return options

    def _inputs(self, device: Any = "meta") -> dict[str, Any]:
        """The model's other arguments, the same in every call."""
        mask = torch.ones((1, self.context), dtype=torch.int32, device=device) if self.traced.needs_mask else None
        return {"use_cache": True} | ({} if mask is None else {"attention_mask": mask})


def piece_sizes(count: int) -> tuple[int, ...]:
    """count, count / 4, count / 16, ... and 1: a few pieces of these sizes add up to any number of tokens to count."""
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append(max(sizes[-1] // 4, 1))
    return tuple(sizes)


def both_ways(
    config: Any, embeddings: torch.Tensor, cache: Cache, positions: torch.Tensor, layers: tuple[str, ...]
) -> Mapping[str, Any]:
    """Masks by type of layer for the tokens of one whole picture, which see each other both ways.

    As transformers' `create_masks_for_vision_model` makes them, which needs lengths as Python ints: a layer's window
    also ends what a picture's token sees of its picture. Where they see what is before them only, as text does, a model
    makes its masks itself.

    Args:
        config: of the text model.
        embeddings: [1, tokens, hidden].
        cache: as the model's forward takes it.
        positions: int32 [1, tokens], the last one that of the picture's last token.
        layers: the types where it is so; in others they see what is before them.
    """

    def in_picture(batch: Any, head: Any, query: Any, key: torch.Tensor) -> torch.Tensor:
        return key <= positions[0, -1]

    def mask(kind: str, **options: Any) -> Any:
        seen: dict[str, Any] = {"or_mask_function": in_picture} if kind in layers else {}
        return create_causal_mask(config, embeddings, None, cache, positions, **seen, **options)

    masks = {"full_attention": mask("full_attention")}
    if True in cache.is_sliding:
        window = sliding_window_overlay(config.sliding_window)
        at = cache.is_sliding.index(True)
        masks["sliding_attention"] = mask("sliding_attention", and_mask_function=window, layer_idx=at)
    return masks


@contextmanager
def observed(model: torch.nn.Module) -> Iterator[list[Group]]:
    """The groups in the single call of a model inside the block; the list is filled when the block ends.

    Layers of a group have the same parent, are called once, and share their weights with no other module.
    """
    owners = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    unshared: dict[torch.nn.Module, str] = {
        layer: name
        for name, layer in model.named_modules()
        if type(layer) is torch.nn.Linear and owners[id(layer.weight)] == 1
    }
    calls: list[tuple[torch.nn.Module, torch.Tensor]] = []  # holds the tensors, so that ids are not reused

    def record(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if inputs:  # a layer with a keyword argument is not grouped
            calls.append((layer, inputs[0]))

    hooks = [layer.register_forward_pre_hook(record) for layer in unshared]
    groups: list[Group] = []
    try:
        yield groups
    finally:
        for hook in hooks:
            hook.remove()
    times = Counter(layer for layer, _ in calls)
    readers: dict[tuple[int, str], list[str]] = {}
    for layer, x in calls:
        if times[layer] == 1:
            readers.setdefault((id(x), unshared[layer].rpartition(".")[0]), []).append(unshared[layer])
    groups.extend(tuple(names) for names in readers.values() if len(names) > 1)
