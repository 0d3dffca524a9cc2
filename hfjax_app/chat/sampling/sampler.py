"""Sampling on the device.

In one program every slot samples with its own parameters and random key. Nothing recompiles when they change, and a
step computes only what at least one slot uses. Log-probabilities are in logprobs.py.

Penalties count occurrences in the slot's token history. The history is stored beside the key-value cache and is valid
where the cache is: a prefix reused from an earlier request is in both. So nothing is reset when a request begins, a
prompt counts in full if only its end is prefilled, and a request without penalties costs one written token id per step.
The counts, [slots, vocabulary], exist only while a program runs that uses them.

A grammar makes its masks on the host (`chat/text/grammar.py`), because each depends on all tokens before it.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.chat.sampling.params import MAX_BIASES, MIN_TEMPERATURE, SamplingParams

Array = TypeVar("Array")  # jax's on the device, numpy's on the host


class Penalties(NamedTuple, Generic[Array]):
    """A request's logit bias and penalties. Leading axes [slots], or none for one slot."""

    used: Array  # bool; whether any of the others has an effect
    repetition: Array  # float32; 1 is off
    presence: Array  # float32
    frequency: Array  # float32
    bias_tokens: Array  # int32 [..., most]; ids out of range are padding
    bias_values: Array  # float32 [..., most]


class Occurrences(NamedTuple):
    """Which tokens the conversation has so far, one row per slot."""

    prompt: jax.Array  # bool [slots, vocabulary]
    answer: jax.Array  # int32 [slots, vocabulary], counts

    def add(self, token: jax.Array, counts: jax.Array) -> "Occurrences":
        """Count one more token (int32 [slots]) in the answer of the slots where `counts` (bool [slots]) is True."""
        slot = jnp.arange(token.shape[0])
        return self._replace(answer=self.answer.at[slot, token].add(counts.astype(jnp.int32)))


def occurrences(
    wanted: jax.Array, history: jax.Array, answer_from: jax.Array, length: jax.Array, vocabulary: int
) -> Occurrences:
    """Count the tokens of each slot's conversation.

    Args:
        wanted: bool scalar; False: count nothing.
        history: int32 [slots, context], the token at each position.
        answer_from: int32 [slots], the position after the prompt.
        length: int32 [slots], number of positions that hold a token of this conversation.
        vocabulary: number of token ids.
    """
    slots, context = history.shape
    prompt, answer = jnp.zeros((slots, vocabulary), bool), jnp.zeros((slots, vocabulary), jnp.int32)

    def count() -> Occurrences:
        slot, position = jnp.arange(slots)[:, None], jnp.arange(context)
        in_prompt = position < jnp.minimum(answer_from, length)[:, None]
        in_answer = (position >= answer_from[:, None]) & (position < length[:, None])
        return Occurrences(
            prompt=prompt.at[slot, jnp.where(in_prompt, history, vocabulary)].set(True, mode="drop"),
            answer=answer.at[slot, jnp.where(in_answer, history, vocabulary)].add(1, mode="drop"),
        )

    found: Occurrences = jax.lax.cond(wanted, count, lambda: Occurrences(prompt, answer))
    return found


def penalized(logits: jax.Array, penalties: Penalties[jax.Array], seen: Occurrences) -> jax.Array:
    """Logits after logit bias, repetition penalty, frequency penalty and presence penalty, in that order.

    The first two are transformers' SequenceBiasLogitsProcessor (for single tokens) and RepetitionPenaltyLogitsProcessor
    (over prompt and answer). transformers has no presence or frequency penalty. They follow OpenAI's API reference,
    count the answer only, and come after the repetition penalty, as in vLLM.

    Args:
        logits: float32 [slots, vocabulary].
        penalties: with leading axis [slots].
        seen: counts of the same slots.

    Returns:
        float32 [slots, vocabulary].
    """
    slot = jnp.arange(logits.shape[0])[:, None]
    logits = jnp.asarray(logits).at[slot, penalties.bias_tokens].add(penalties.bias_values, mode="drop")
    answered = seen.answer > 0
    repetition = penalties.repetition[:, None]
    repeated = jnp.where(logits < 0, logits * repetition, logits / repetition)
    logits = jnp.where(seen.prompt | answered, repeated, logits)
    logits -= penalties.frequency[:, None] * seen.answer
    return logits - penalties.presence[:, None] * answered


_BITS = 32


class TokenMasks(NamedTuple, Generic[Array]):
    """The masks of some slots. Leading axes [slots], or none for one slot."""

    allowed: Array  # uint32 [..., words], bit t % 32 of word t // 32: token t is allowed
    used: Array  # bool [...]; False: every token is allowed


def mask_words(vocabulary: int) -> int:
    """How many words hold a bit for each token id."""
    return -(-vocabulary // _BITS)


def no_masks(vocabulary: int, *slots: int) -> TokenMasks[np.ndarray]:
    """Masks that allow everything, with the axes `slots`, as numpy arrays."""
    return TokenMasks(np.zeros((*slots, mask_words(vocabulary)), np.uint32), np.zeros(slots, bool))


def masked(logits: jax.Array, masks: TokenMasks[jax.Array]) -> jax.Array:
    """Logits with -inf for what a mask does not allow.

    Args:
        logits: float32 [slots, vocabulary].
        masks: with leading axis [slots]; in a mask that is used, a token must be allowed.

    Returns:
        float32 [slots, vocabulary].
    """
    bits = masks.allowed[:, :, None] >> jnp.arange(_BITS, dtype=jnp.uint32) & 1
    allowed = bits.reshape(logits.shape[0], -1)[:, : logits.shape[1]] != 0
    return jnp.where(allowed | ~masks.used[:, None], logits, -jnp.inf)


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # of Threefry
_PARITY = 0x1BD11BDA
_NEVER = 2**31 - 1  # are so many tokens made
_NO_TOKEN = 2**31 - 1  # larger than every token id: a bias there has no effect


class SamplerState(NamedTuple, Generic[Array]):
    """Sampling parameters on the device. Leading axes [slots], or none for one slot."""

    key: Array  # uint32 [..., 2], the seed
    temperature: Array  # float32; 0 is greedy
    top_p: Array  # float32
    top_k: Array  # int32; 0 is all
    min_p: Array  # float32
    penalties: Penalties[Array]
    min_tokens: Array  # int32; no end token is sampled before so many tokens are made
    logprobs: Array  # bool; whether log-probabilities are wanted

    # mypy rejects any annotation of `self` in a generic NamedTuple
    def only(self: "SamplerState[jax.Array]", slots: jax.Array) -> "SamplerState[jax.Array]":  # type: ignore[misc]
        """The same, with everything turned off in the other slots (bool [slots], False), so that it is not computed."""
        return self._replace(
            temperature=jnp.where(slots, self.temperature, 0),
            penalties=self.penalties._replace(used=self.penalties.used & slots),
            min_tokens=jnp.where(slots, self.min_tokens, 0),
            logprobs=self.logprobs & slots,
        )


def sampler_state(params: SamplingParams, seed: int) -> SamplerState[np.ndarray | np.generic]:
    """One request's SamplerState, as numpy arrays without leading axes."""
    bias_tokens, bias_values = np.full(MAX_BIASES, _NO_TOKEN, np.int32), np.zeros(MAX_BIASES, np.float32)
    bias_tokens[: len(params.logit_bias)] = list(params.logit_bias)
    bias_values[: len(params.logit_bias)] = list(params.logit_bias.values())
    neutral = params.repetition_penalty == 1 and params.presence_penalty == params.frequency_penalty == 0
    return SamplerState(
        key=np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32),
        temperature=np.float32(params.temperature if params.temperature >= MIN_TEMPERATURE else 0),
        top_p=np.float32(max(params.top_p, float(np.finfo(np.float32).tiny))),  # 0 would keep no token at all
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
        min_tokens=np.int32(_NEVER if params.ignore_eos else params.min_tokens),
        logprobs=np.bool_(params.logprobs is not None),
    )


_FIELDS, _TREE = jax.tree.flatten(sampler_state(SamplingParams(), 0))


def packed(state: SamplerState[np.ndarray | np.generic]) -> np.ndarray:
    """A SamplerState of numpy arrays without leading axes as one array, uint32 [words].

    Requests are sent and slots are stored in this form. Separate arrays of a few bytes would be copied one by one, and
    each would be a kernel of its own wherever a program takes or puts a slot.
    """
    leaves = [np.asarray(leaf, np.int32) if leaf.dtype == bool else leaf for leaf in jax.tree.leaves(state)]
    return np.concatenate([np.atleast_1d(leaf).view(np.uint32) for leaf in leaves])


def unpacked(words: jax.Array) -> SamplerState[jax.Array]:
    """The inverse of `packed`, on the device: uint32 [..., words] -> leading axes [...]."""
    parts = jnp.split(words, np.cumsum([leaf.size for leaf in _FIELDS])[:-1], axis=-1)
    leaves = [part.reshape(*words.shape[:-1], *leaf.shape) for part, leaf in zip(parts, _FIELDS, strict=True)]
    fields = [
        part != 0 if leaf.dtype == bool else jax.lax.bitcast_convert_type(part, leaf.dtype)
        for part, leaf in zip(leaves, _FIELDS, strict=True)
    ]
    state: SamplerState[jax.Array] = jax.tree.unflatten(_TREE, fields)
    return state


def filtered_logits(logits: jax.Array, state: SamplerState[jax.Array]) -> jax.Array:
    """Logits after temperature, top-k, top-p and min-p, in that order, as by transformers' logits processors.

    By sorting, one slot's p = softmax(logits / temperature) would be cut like this; tokens of p = 0 get -inf:

        p = np.where(p >= np.sort(p)[-top_k], p, 0) if 0 < top_k < len(p) else p
        descending = np.sort(p / p.sum())[::-1]
        last = descending[np.argmax(np.cumsum(descending) >= top_p)]  # the first to reach top_p
        p = np.where(p / p.sum() >= last, p, 0) if top_p < 1 else p
        p = np.where(p >= min_p * p.max(), p, 0)

    Tokens that tie with the last one kept are kept too. Instead of a sort, the cuts of top-k and top-p are found by
    bisection over the bits of the likelihoods, in 31 passes of O(vocabulary) each, and only if some slot has such a
    cut. Both keep the most likely tokens whose total weight is large enough, so one function, compiled once, runs
    twice. Likelihoods are not normalised: neither the sampling nor a share of the total requires it.

    Args:
        logits: float32 [slots, vocabulary].
        state: with leading axis [slots]; temperature must not be 0.

    Returns:
        float32 [slots, vocabulary]: divided by the temperature, with a maximum of 0; cut tokens are -inf.
    """
    below = (logits - jnp.max(logits, -1, keepdims=True)) / state.temperature[:, None]
    scaled = jnp.maximum(below, -1000)  # where exp is 0 in float32; below about -1e35, XLA's exp on CPU is NaN
    likelihoods = jnp.exp(scaled)
    bits = jax.lax.bitcast_convert_type(likelihoods, jnp.int32)  # non-negative floats have the order of their bits
    cuts = jnp.stack([(state.top_k > 0) & (state.top_k < logits.shape[-1]), state.top_p < 1])  # rounding would cut at 1
    enough = jnp.stack([state.top_k.astype(jnp.float32), state.top_p])

    def cut(which: jax.Array, least: jax.Array) -> jax.Array:
        """The least bits kept, int32 [slots, 1], after one more cut: the largest with enough weight, found bitwise."""
        counts = which == 0
        weights = jnp.where(bits >= least, jnp.where(counts, 1, likelihoods), 0)
        needed = enough[which][:, None] * jnp.where(counts, 1, jnp.sum(weights, -1, keepdims=True))

        def add_bit(i: jax.Array, threshold: jax.Array) -> jax.Array:
            candidate = threshold | (1 << (30 - i))
            kept = jnp.sum(jnp.where(bits >= candidate, weights, 0), -1, keepdims=True)
            return jnp.where(kept >= needed, candidate, threshold)

        passes = jnp.where(jnp.any(cuts[which]), 31, 0)
        threshold = jax.lax.fori_loop(0, passes, add_bit, jnp.zeros_like(least))
        return jnp.where(cuts[which][:, None], jnp.maximum(threshold, least), least)

    least = jax.lax.fori_loop(0, len(cuts), cut, jnp.zeros((len(logits), 1), jnp.int32))
    likely = scaled >= jnp.log(state.min_p)[:, None]  # relative to the likeliest token, whose likelihood is 1
    return jnp.where((bits >= least) & likely, scaled, -jnp.inf)


class Ending(NamedTuple):
    """The end tokens, and how far each slot's answer is."""

    tokens: tuple[int, ...]
    made: jax.Array  # int32 [slots], tokens of the answer so far


def sample(
    logits: jax.Array,
    state: SamplerState[jax.Array],
    position: jax.Array,
    seen: Occurrences,
    masks: TokenMasks[jax.Array] | None = None,
    ending: "Ending | None" = None,
) -> jax.Array:
    """The next token of each slot: the most likely one at temperature 0, otherwise a draw by the Gumbel-max trick.

    Args:
        logits: float [slots, vocabulary].
        state: with leading axis [slots].
        position: int32 [slots], part of the noise's counter, so that a token depends on its seed and position only.
        seen: the tokens of prompt and answer so far; read only if a slot uses penalties.
        masks: of the tokens that are allowed, with leading axis [slots]; None: all are.
        ending: how far the answers are; None: no end token is held back.

    Returns:
        int32 [slots].
    """

    penalizes = state.penalties.used
    adjusts = penalizes if masks is None else penalizes | masks.used  # one conditional: each one costs every step
    goes_on = jnp.zeros_like(penalizes)
    if ending is not None and ending.tokens:
        goes_on = ending.made < state.min_tokens
        goes_on = goes_on if masks is None else goes_on & ~masks.used  # a grammar may allow nothing but an end
        adjusts |= goes_on

    def adjusted(logits: jax.Array) -> jax.Array:
        found = jnp.where(penalizes[:, None], penalized(logits, state.penalties, seen), logits)
        if ending is not None and ending.tokens:
            ends = jnp.array(ending.tokens, jnp.int32)
            found = found.at[:, ends].set(jnp.where(goes_on[:, None], -jnp.inf, found[:, ends]), mode="drop")
        return found if masks is None else masked(found, masks)

    draws = state.temperature > 0
    hot = state._replace(temperature=jnp.where(draws, state.temperature, 1))

    def drawn(logits: jax.Array) -> jax.Array:
        return filtered_logits(logits, hot) + gumbel(state.key, position, logits.shape[-1])

    scores = _where_any(adjusts, adjusted, logits.astype(jnp.float32))
    return likeliest(_where_any(draws, drawn, scores))


def _where_any(slots: jax.Array, change: Callable[[jax.Array], jax.Array], values: jax.Array) -> jax.Array:
    """`change(values)` in the slots (bool [slots]) that are True; not computed if there are none."""

    def changed() -> jax.Array:
        return jnp.where(slots[:, None], change(values), values)

    out: jax.Array = jax.lax.cond(jnp.any(slots), changed, lambda: values)
    return out


def likeliest(logits: jax.Array) -> jax.Array:
    """The index of the maximum, the first if there are several: float [slots, vocabulary] -> int32 [slots].

    Computed as a maximum and then its index: on CPU, XLA takes eight times as long for an argmax. If a slot's logits
    are NaN, the index is arbitrary.
    """
    at = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    return jnp.min(jnp.where(logits == jnp.max(logits, -1, keepdims=True), at, at[-1]), -1)


def gumbel(key: jax.Array, position: jax.Array, vocabulary: int) -> jax.Array:
    """Standard Gumbel noise for every token: a function of a slot's own seed and position, whatever the others do.

    The bits come from Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), with the
    seed as key and (position, token) as counter. No key is derived, and a number takes one pass of elementwise
    operations, which XLA fuses into one loop. jax's own primitive gives the same bits (a test compares), but on CPU it
    loops over whole arrays, which takes two to three times as long, and four times as long to compile.

    Args:
        key: uint32 [slots, 2], the seeds.
        position: int32 [slots].
        vocabulary: number of token ids.

    Returns:
        float32 [slots, vocabulary].
    """
    places, tokens = position.astype(jnp.uint32)[:, None], jnp.arange(vocabulary, dtype=jnp.uint32)
    bits, _ = threefry(key[:, :1], key[:, 1:], places, tokens)
    # jax's uniform numbers have 23 bits, so tokens of less than about 1e-7 are never drawn, unless two numbers are used
    # for each. These have 32 bits near zero, where they matter.
    uniform = jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-uniform))


def threefry(key0: jax.Array, key1: jax.Array, count0: jax.Array, count1: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 of 20 rounds: uint32 arrays that broadcast to one shape -> two of that shape."""
    keys = (key0, key1, key0 ^ key1 ^ _PARITY)
    x, y = count0 + key0, count1 + key1
    for injection in range(1, 6):
        for rotation in _ROTATIONS[(injection - 1) % 2]:
            x = x + y
            y = (y << rotation | y >> (32 - rotation)) ^ x
        x, y = x + keys[injection % 3], y + keys[(injection + 1) % 3] + jnp.uint32(injection)
    return x, y
