"""Masks of allowed tokens on the device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hfjax_app.chat import SamplingParams
from hfjax_app.chat.sampling.sampler import (
    TokenMasks,
    masked,
    no_masks,
    occurrences,
    packed,
    sample,
    sampler_state,
    unpacked,
)

VOCABULARY, SLOTS = 301, 4  # the last word has unused bits


def bits_of(allowed: np.ndarray) -> np.ndarray:
    """bool [slots, tokens] as uint32 [slots, words]."""
    whole = np.pad(allowed, ((0, 0), (0, -allowed.shape[1] % 32)))
    return np.packbits(whole, axis=1, bitorder="little").view(np.uint32)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def drawn(words: np.ndarray, logits: np.ndarray, masks: TokenMasks | None) -> jax.Array:
    state, none = unpacked(words), jnp.zeros((SLOTS, 1), jnp.int32)
    seen = occurrences(jnp.any(state.penalties.used), none, none[:, 0], none[:, 0], VOCABULARY)
    return sample(logits, state, jnp.arange(SLOTS), seen, masks)


def test_a_mask_leaves_what_it_allows(random: np.random.Generator) -> None:
    logits = random.normal(size=(SLOTS, VOCABULARY)).astype(np.float32)
    allowed, used = random.random((SLOTS, VOCABULARY)) < 0.1, np.array([True, False, True, True])
    expected = np.where(allowed | ~used[:, None], logits, -np.inf)
    masks = TokenMasks(bits_of(allowed), used)
    np.testing.assert_array_equal(masked(logits, masks), expected)
    # The second slot has penalties and no mask, the third both; the others' draws see the masked logits only.
    free = SamplingParams(temperature=1.5, top_p=0.8, top_k=20, seed=1)
    pushed = SamplingParams(temperature=0.9, logit_bias={3: 9.0, 7: 8.5}, seed=2)
    words = np.stack([packed(sampler_state(params, params.seed or 0)) for params in (free, pushed, pushed, free)])
    found = np.asarray(drawn(words, logits, masks))
    assert all(allowed[slot, found[slot]] for slot in (0, 2, 3))
    biased = logits.copy()
    biased[1:3, [3, 7]] += [9.0, 8.5]
    bare = words.copy()
    bare[1:3] = [packed(sampler_state(SamplingParams(temperature=0.9, seed=2), 2))] * 2
    by_hand = np.where(allowed | ~used[:, None], biased, -np.inf)
    np.testing.assert_array_equal(found, drawn(bare, by_hand, None))


def test_without_a_mask_a_step_does_nothing_more() -> None:
    """The compiled sampler has as many operations over the vocabulary outside of its conditionals as one without
    masks."""
    words = np.stack([packed(sampler_state(SamplingParams(), 0))] * SLOTS)
    logits = np.zeros((SLOTS, VOCABULARY), np.float32)
    counts = []
    for masks in (None, no_masks(VOCABULARY, SLOTS)):
        text = jax.jit(drawn).lower(words, logits, masks).compile().as_text()
        counts.append((_operations(text), text.count(" conditional(")))
    assert counts[0] == counts[1]
    assert counts[0][0] > 1


def _operations(text: str) -> int:
    """Operations over [slots, vocabulary] that run whatever the conditionals choose."""
    computations: dict[str, list[str]] = {}
    entry = ""
    for line in text.splitlines():
        if header := re.match(r"^(ENTRY )?%?([\w.-]+) \(.*\{$", line):
            computations[header[2]] = current = []
            entry = header[2] if header[1] else entry
        elif " = " in line:
            current.append(line)
    runs, ahead = {entry}, [entry]
    while ahead:
        for line in computations[ahead.pop()]:
            for name in re.findall(r"(?:calls|to_apply|body|condition)=%?([\w.-]+)", line):
                ahead += [] if name in runs else [name]
                runs.add(name)
    return sum(f"[{SLOTS},{VOCABULARY}]" in line for name in runs for line in computations[name])
