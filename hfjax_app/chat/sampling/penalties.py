"""Logit bias and penalties for tokens that occurred before, on the device.

Occurrences are counted from the slot's token history. The history is stored beside the key-value cache and is valid
where the cache is: a prefix reused from an earlier request is in both. So nothing is reset when a request begins, a
prompt counts in full if only its end is prefilled, and a request without penalties costs one written token id per step.
The counts, [slots, vocabulary], exist only while a program runs that uses them.
"""

from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

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
