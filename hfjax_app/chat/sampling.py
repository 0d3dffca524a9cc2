"""Sampling parameters of a request, checked, and sampling on the device.

Every slot samples with its own parameters and its own random key in one program; nothing recompiles when they change,
and a step pays only for what some slot uses. Logit bias and penalties are in penalties.py, log-probabilities in
logprobs.py.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.chat.penalties import Occurrences, Penalties, penalized
from hfjax_app.errors import RequestRejected

MAX_TEMPERATURE = 10.0
MIN_TEMPERATURE = 1e-5  # float32 logits divided by less may overflow; below it, the most likely token is certain anyway
MAX_SEED = 2**64 - 1
MIN_REPETITION, MAX_REPETITION = 0.1, 10.0
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MAX_BIASES = 64
MAX_LOGPROBS = 5
_NO_TOKEN = 2**31 - 1  # out of every vocabulary's range: adding a bias there does nothing


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object, low: float, high: float) -> bool:
    """Whether it is a number of [low, high]; NaN is in no range, and a huge int is compared, not converted."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen.

    Logits go through logit bias, repetition penalty, frequency and presence penalty, temperature, top-k, top-p and
    min-p, in this order, which is that of transformers' `generate` (vLLM's place for the two it lacks). At temperature
    0 the first four still count.

    Args:
        max_tokens: the most tokens to make, at least 1; the engine's context bounds it too.
        temperature: 0 is greedy, and so is anything under 1e-5; otherwise logits are divided by it; at most 10.
        top_p: nucleus sampling, in (0, 1]: the smallest set of tokens whose probability reaches it.
        top_k: only the k most likely tokens; 0 is all of them.
        min_p: in [0, 1]: only tokens that are at least so likely as min_p times the most likely one; 0 is all of them.
        repetition_penalty: 0.1 ... 10: the logit of a token in prompt or answer is divided by it where positive and
            multiplied where negative; 1 does nothing, more avoids repetition (arXiv:1909.05858, section 4.1).
        presence_penalty: -2 ... 2: subtracted from the logit of every token that is in the answer so far.
        frequency_penalty: -2 ... 2: subtracted from a token's logit as often as the answer has the token so far.
        logit_bias: token id -> a number of -100 ... 100 that is added to its logit; at most 64 entries.
        logprobs: None: none. 0 ... 5: the log-probability of each token made, and of the so many most likely tokens in
            its place; of the model's own distribution, before any of the above.
        seed: 0 ... 2**64 - 1; the same seed gives the same tokens, whoever else is being served. None: a random one.

    Raises:
        RequestRejected: with the value given and the limit.
    """

    max_tokens: int = 256
    temperature: float = 0.7
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    logprobs: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not _is_int(self.max_tokens) or self.max_tokens < 1:
            self._refuse("max tokens", self.max_tokens, "a whole number of at least 1")
        if not _is_number(self.temperature, 0, MAX_TEMPERATURE):
            self._refuse("temperature", self.temperature, f"a number from 0 to {MAX_TEMPERATURE:g}")
        if not _is_number(self.top_p, 0, 1) or self.top_p == 0:
            self._refuse("top-p", self.top_p, "a number over 0 and at most 1")
        if not _is_int(self.top_k) or not 0 <= self.top_k < 2**31:
            self._refuse("top-k", self.top_k, "a whole number from 0 (all tokens) to 2^31 - 1")
        if not _is_number(self.min_p, 0, 1):
            self._refuse("min-p", self.min_p, "a number from 0 to 1")
        if not _is_number(self.repetition_penalty, MIN_REPETITION, MAX_REPETITION):
            limits = f"a number from {MIN_REPETITION:g} to {MAX_REPETITION:g}"
            self._refuse("repetition penalty", self.repetition_penalty, limits)
        for name in ("presence", "frequency"):
            penalty = getattr(self, f"{name}_penalty")
            if not _is_number(penalty, -MAX_PENALTY, MAX_PENALTY):
                self._refuse(f"{name} penalty", penalty, f"a number from {-MAX_PENALTY:g} to {MAX_PENALTY:g}")
        if not isinstance(self.logit_bias, Mapping):
            self._refuse("logit bias", self.logit_bias, "a mapping of token ids to numbers")
        if len(self.logit_bias) > MAX_BIASES:
            raise RequestRejected(f"logit bias of {len(self.logit_bias)} tokens: at most {MAX_BIASES}")
        for token, bias in self.logit_bias.items():
            if not _is_int(token) or token < 0:
                self._refuse("logit bias for token id", token, "a whole number of at least 0")
            if not _is_number(bias, -MAX_BIAS, MAX_BIAS):
                self._refuse(f"logit bias of token {token}", bias, f"a number from {-MAX_BIAS:g} to {MAX_BIAS:g}")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))  # the caller may go on changing its own
        if self.logprobs is not None and (not _is_int(self.logprobs) or not 0 <= self.logprobs <= MAX_LOGPROBS):
            self._refuse("logprobs", self.logprobs, f"None or a whole number from 0 to {MAX_LOGPROBS}")
        if self.seed is not None and (not _is_int(self.seed) or not 0 <= self.seed <= MAX_SEED):
            self._refuse("seed", self.seed, "a whole number from 0 to 2^64 - 1")

    @staticmethod
    def _refuse(name: str, value: object, limits: str) -> None:
        raise RequestRejected(f"{name} = {reprlib.repr(value)}: must be {limits}")


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
    bits of the probabilities, 31 passes of O(vocabulary), instead of a sort, and only where some slot has such a cut.

    Args:
        logits: float [slots, vocabulary].
        state: with leading axis [slots]; temperature must not be 0.

    Returns:
        float32 [slots, vocabulary], each row summing to 1.
    """
    below = logits.astype(jnp.float32) - jnp.max(logits, -1, keepdims=True)
    # exp of -1000 is 0 in float32; from about -1e35 on, XLA's exp on CPU is NaN
    probabilities = jax.nn.softmax(jnp.maximum(below / state.temperature[:, None], -1000), axis=-1)
    top_k, top_p, min_p = state.top_k[:, None], state.top_p[:, None], state.min_p[:, None]
    cuts_k, cuts_p = (top_k > 0) & (top_k < logits.shape[-1]), top_p < 1

    def by_top_k(probabilities: jax.Array) -> jax.Array:
        return _most_likely(probabilities, lambda kept: jnp.sum(kept, -1, keepdims=True) >= top_k)

    def by_top_p(probabilities: jax.Array) -> jax.Array:
        def enough(kept: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(kept, probabilities, 0), -1, keepdims=True) >= top_p

        return _most_likely(probabilities, enough)

    probabilities = _where_any(cuts_k, by_top_k, probabilities)
    probabilities = _where_any(cuts_p, by_top_p, probabilities)  # not at 1: rounding of the sum would drop the tail
    likely = probabilities >= min_p * jnp.max(probabilities, -1, keepdims=True)
    return jnp.where(min_p > 0, _normalized(jnp.where(likely, probabilities, 0)), probabilities)


def _where_any(rows: jax.Array, change: Callable[[jax.Array], jax.Array], values: jax.Array) -> jax.Array:
    """`change(values)` in the rows (bool [slots, 1]); not computed when there are none."""
    return jax.lax.cond(jnp.any(rows), lambda: jnp.where(rows, change(values), values), lambda: values)


def _normalized(weights: jax.Array) -> jax.Array:
    return weights / jnp.sum(weights, -1, keepdims=True)


def _most_likely(probabilities: jax.Array, enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Zero all but the most likely tokens that together are `enough`, and renormalise.

    The bits of non-negative floats order as the floats do, so the largest threshold that still keeps enough tokens is
    built bit by bit.
    """
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def add_bit(i: jax.Array, threshold: jax.Array) -> jax.Array:
        candidate = threshold | (1 << (30 - i))
        return jnp.where(enough(bits >= candidate), candidate, threshold)

    threshold = jax.lax.fori_loop(0, 31, add_bit, jnp.zeros((*bits.shape[:-1], 1), jnp.int32))
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
    return jax.random.gumbel(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), position), shape)
