"""Sampling on the device.

Every slot samples with its own parameters and its own random key in one program; nothing recompiles when they change,
and a step pays only for what some slot uses. Logit bias and penalties are in penalties.py, log-probabilities in
logprobs.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.chat.params import MAX_BIASES, MIN_TEMPERATURE, SamplingParams
from hfjax_app.chat.penalties import Occurrences, Penalties, penalized

_NO_TOKEN = 2**31 - 1  # out of every vocabulary's range: adding a bias there does nothing


class SamplerState(NamedTuple):
    """Sampling parameters on the device. Leading axes [slots], or none for one slot."""

    key: jax.Array  # uint32 [..., 2], the seed
    temperature: jax.Array  # float32; 0 is greedy
    top_p: jax.Array  # float32
    top_k: jax.Array  # int32; 0 is all
    min_p: jax.Array  # float32
    penalties: Penalties
    logprobs: jax.Array  # bool; whether log-probabilities are wanted

    def only(self, slots: jax.Array) -> "SamplerState":
        """The same, with what the other slots (bool [slots], False) ask for turned off, so that nobody pays for it."""
        return self._replace(
            temperature=jnp.where(slots, self.temperature, 0),
            penalties=self.penalties._replace(used=self.penalties.used & slots),
            logprobs=self.logprobs & slots,
        )


def sampler_state(params: SamplingParams, seed: int) -> SamplerState:
    """One slot's SamplerState, as numpy arrays."""
    bias_tokens, bias_values = np.full(MAX_BIASES, _NO_TOKEN, np.int32), np.zeros(MAX_BIASES, np.float32)
    bias_tokens[: len(params.logit_bias)] = list(params.logit_bias)
    bias_values[: len(params.logit_bias)] = list(params.logit_bias.values())
    neutral = params.repetition_penalty == 1 and params.presence_penalty == params.frequency_penalty == 0
    return SamplerState(
        key=np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32),
        temperature=np.float32(params.temperature if params.temperature >= MIN_TEMPERATURE else 0),
        top_p=np.float32(max(params.top_p, np.finfo(np.float32).tiny)),  # 0 would keep no token at all
        top_k=np.int32(params.top_k),
        min_p=np.float32(params.min_p),
        penalties=Penalties(
            used=np.bool_(not neutral or any(params.logit_bias.values())),
            repetition=np.float32(params.repetition_penalty),
            presence=np.float32(params.presence_penalty),
            frequency=np.float32(params.frequency_penalty),
            bias_tokens=bias_tokens,
            bias_values=bias_values,
        ),
        logprobs=np.bool_(params.logprobs is not None),
    )


def filtered_probabilities(logits: jax.Array, state: SamplerState) -> jax.Array:
    """Probabilities after temperature, top-k, top-p and min-p, in that order, as transformers' logits processors do.

    Tokens that tie with the last one kept are kept too. The cuts of top-k and top-p are found by bisection over the
    bits of the probabilities, 31 passes of O(vocabulary) each, instead of a sort, and only where some slot has such a
    cut. Both are the most likely tokens that together weigh enough, so one piece of code, compiled once, runs twice.

    Args:
        logits: float [slots, vocabulary].
        state: with leading axis [slots]; temperature must not be 0.

    Returns:
        float32 [slots, vocabulary], each row summing to 1.
    """
    below = logits.astype(jnp.float32) - jnp.max(logits, -1, keepdims=True)
    # exp of -1000 is 0 in float32; from about -1e35 on, XLA's exp on CPU is NaN
    probabilities = jax.nn.softmax(jnp.maximum(below / state.temperature[:, None], -1000), axis=-1)
    cuts = jnp.stack([(state.top_k > 0) & (state.top_k < logits.shape[-1]), state.top_p < 1])  # at 1 rounding would cut
    enough = jnp.stack([state.top_k.astype(jnp.float32), state.top_p])

    def cut(which: jax.Array, probabilities: jax.Array) -> jax.Array:
        weights = jnp.where(which == 0, 1, probabilities)
        likely = _most_likely(probabilities, weights, enough[which][:, None], jnp.any(cuts[which]))
        return jnp.where(cuts[which][:, None], likely, probabilities)

    probabilities = jax.lax.fori_loop(0, len(cuts), cut, probabilities)
    min_p = state.min_p[:, None]
    likely = probabilities >= min_p * jnp.max(probabilities, -1, keepdims=True)
    return jnp.where(min_p > 0, _normalized(jnp.where(likely, probabilities, 0)), probabilities)


def _where_any(rows: jax.Array, change: Callable[[jax.Array], jax.Array], values: jax.Array) -> jax.Array:
    """`change(values)` in the rows (bool [slots, 1]); not computed when there are none."""
    return jax.lax.cond(jnp.any(rows), lambda: jnp.where(rows, change(values), values), lambda: values)


def _normalized(weights: jax.Array) -> jax.Array:
    return weights / jnp.sum(weights, -1, keepdims=True)


def _most_likely(probabilities: jax.Array, weights: jax.Array, enough: jax.Array, wanted: jax.Array) -> jax.Array:
    """Zero all but the most likely tokens that together weigh `enough` ([slots, 1]), and renormalise.

    The bits of non-negative floats order as the floats do, so the largest threshold that still keeps enough tokens is
    built bit by bit; no bit of it where the result is not `wanted`.
    """
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def add_bit(i: jax.Array, threshold: jax.Array) -> jax.Array:
        candidate = threshold | (1 << (30 - i))
        kept = jnp.sum(jnp.where(bits >= candidate, weights, 0), -1, keepdims=True)
        return jnp.where(kept >= enough, candidate, threshold)

    passes = jnp.where(wanted, 31, 0)
    threshold = jax.lax.fori_loop(0, passes, add_bit, jnp.zeros((*bits.shape[:-1], 1), jnp.int32))
    return _normalized(jnp.where(bits >= threshold, probabilities, 0))


def sample(logits: jax.Array, state: SamplerState, position: jax.Array, seen: Occurrences) -> jax.Array:
    """The next token of each slot: the most likely one at temperature 0, otherwise a draw by the Gumbel-max trick.

    Args:
        logits: float [slots, vocabulary].
        state: with leading axis [slots].
        position: int32 [slots], folded into the slot's key, so that a token depends on its own seed and place only.
        seen: the tokens of prompt and answer so far; read only where a slot uses penalties.

    Returns:
        int32 [slots].
    """
    draws = state.temperature > 0

    def chosen() -> jax.Array:
        def adjusted(logits: jax.Array) -> jax.Array:
            return penalized(logits, state.penalties, seen)

        wanted = _where_any(state.penalties.used[:, None], adjusted, logits.astype(jnp.float32))
        greedy = likeliest(wanted)

        def draw() -> jax.Array:
            hot = state._replace(temperature=jnp.where(draws, state.temperature, 1))
            noise = jax.vmap(lambda key, at: _gumbel(key, at, logits.shape[-1:]))(state.key, position)
            drawn = likeliest(jnp.log(filtered_probabilities(wanted, hot)) + noise)
            return jnp.where(draws, drawn, greedy)

        return jax.lax.cond(jnp.any(draws), draw, lambda: greedy)

    return jax.lax.cond(jnp.any(draws | state.penalties.used), chosen, lambda: likeliest(logits))


def likeliest(logits: jax.Array) -> jax.Array:
    """The index of the largest, the first of several: float [slots, vocabulary] -> int32 [slots].

    A maximum and the place where it stands: XLA on CPU takes eight times as long for an argmax, which carries both.
    Where a slot's logits are NaN, any index.
    """
    at = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    return jnp.min(jnp.where(logits == jnp.max(logits, -1, keepdims=True), at, at[-1]), -1)


def _gumbel(key: jax.Array, position: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    own = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), position)
    # jax's own has 23 bits, which never draws a token of less than about 1e-7, or takes two numbers for each. This one
    # has 32 where they matter, near zero.
    uniform = jnp.minimum((jax.random.bits(own, shape, jnp.uint32).astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))
