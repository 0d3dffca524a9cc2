"""Sampling parameters of a request, checked, and sampling on the device.

Every slot samples with its own parameters and its own random key in one program; nothing recompiles when they change.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.errors import RequestRejected

MAX_TEMPERATURE = 10.0
MAX_SEED = 2**64 - 1


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen.

    Args:
        max_tokens: the most tokens to make, at least 1; the engine's context bounds it too.
        temperature: 0 is greedy; otherwise logits are divided by it; at most 10.
        top_p: nucleus sampling, in (0, 1]: the smallest set of tokens whose probability reaches it.
        top_k: only the k most likely tokens; 0 is all of them.
        seed: 0 ... 2**64 - 1; the same seed gives the same tokens, whoever else is being served. None: a random one.

    Raises:
        RequestRejected: with the value given and the limit.
    """

    max_tokens: int = 256
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not _is_int(self.max_tokens) or self.max_tokens < 1:
            raise RequestRejected(f"max tokens = {self.max_tokens!r}: must be a whole number of at least 1")
        if not _is_finite(self.temperature) or not 0 <= self.temperature <= MAX_TEMPERATURE:
            raise RequestRejected(f"temperature = {self.temperature!r}: must be a number from 0 to {MAX_TEMPERATURE:g}")
        if not _is_finite(self.top_p) or not 0 < self.top_p <= 1:
            raise RequestRejected(f"top-p = {self.top_p!r}: must be a number over 0 and at most 1")
        if not _is_int(self.top_k) or not 0 <= self.top_k < 2**31:
            raise RequestRejected(f"top-k = {self.top_k!r}: must be a whole number from 0 (all tokens) to 2^31 - 1")
        if self.seed is not None and (not _is_int(self.seed) or not 0 <= self.seed <= MAX_SEED):
            raise RequestRejected(f"seed = {self.seed!r}: must be a whole number from 0 to 2^64 - 1")


class SamplerState(NamedTuple):
    """Sampling parameters on the device. Leading axes [slots], or none for one slot."""

    key: jax.Array  # uint32 [..., 2], the seed
    temperature: jax.Array  # float32; 0 is greedy
    top_p: jax.Array  # float32
    top_k: jax.Array  # int32; 0 is all


def sampler_state(params: SamplingParams, seed: int) -> SamplerState:
    """One slot's SamplerState, as numpy arrays."""
    return SamplerState(
        key=np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32),
        temperature=np.float32(params.temperature),
        top_p=np.float32(params.top_p),
        top_k=np.int32(params.top_k),
    )


def filtered_probabilities(logits: jax.Array, state: SamplerState) -> jax.Array:
    """Probabilities after temperature, top-k and top-p, in that order, as transformers' logits processors apply them.

    Tokens that tie with the last one kept are kept too. The cut is found by bisection over the bits of the
    probabilities, 31 passes of O(vocabulary), instead of a sort.

    Args:
        logits: float [slots, vocabulary].
        state: with leading axis [slots]; temperature must not be 0.

    Returns:
        float32 [slots, vocabulary], each row summing to 1.
    """
    probabilities = jax.nn.softmax(logits.astype(jnp.float32) / state.temperature[:, None], axis=-1)
    vocabulary = logits.shape[-1]
    top_k = jnp.where(state.top_k == 0, vocabulary, jnp.minimum(state.top_k, vocabulary))[:, None]
    probabilities = _keep_most_likely(probabilities, lambda kept: jnp.sum(kept, -1, keepdims=True) >= top_k)
    top_p = state.top_p[:, None]

    def reaches_top_p(kept: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(kept, probabilities, 0), -1, keepdims=True) >= top_p

    filtered = _keep_most_likely(probabilities, reaches_top_p)
    return jnp.where(top_p < 1, filtered, probabilities)  # at 1, rounding of the sum must not drop the tail


def _keep_most_likely(probabilities: jax.Array, enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Zero all but the most likely tokens that together are `enough`, and renormalise.

    The bits of non-negative floats order as the floats do, so the largest threshold that still keeps enough tokens is
    built bit by bit.
    """
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def add_bit(i: jax.Array, threshold: jax.Array) -> jax.Array:
        candidate = threshold | (1 << (30 - i))
        return jnp.where(enough(bits >= candidate), candidate, threshold)

    threshold = jax.lax.fori_loop(0, 31, add_bit, jnp.zeros((*bits.shape[:-1], 1), jnp.int32))
    kept = jnp.where(bits >= threshold, probabilities, 0)
    return kept / jnp.sum(kept, -1, keepdims=True)


def sample(logits: jax.Array, state: SamplerState, position: jax.Array) -> jax.Array:
    """The next token of each slot: the most likely one at temperature 0, otherwise a draw by the Gumbel-max trick.

    Args:
        logits: float [slots, vocabulary].
        state: with leading axis [slots].
        position: int32 [slots], folded into the slot's key, so that a token depends on its own seed and place only.

    Returns:
        int32 [slots].
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def draw() -> jax.Array:
        hot = state._replace(temperature=jnp.where(state.temperature > 0, state.temperature, 1))
        noise = jax.vmap(lambda key, at: _gumbel(key, at, logits.shape[-1:]))(state.key, position)
        drawn = jnp.argmax(jnp.log(filtered_probabilities(logits, hot)) + noise, axis=-1)
        return jnp.where(state.temperature > 0, drawn.astype(jnp.int32), greedy)

    return jax.lax.cond(jnp.any(state.temperature > 0), draw, lambda: greedy)


def _gumbel(key: jax.Array, position: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.gumbel(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), position), shape)
