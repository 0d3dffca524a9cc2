"""Sampling on the device against transformers' logits processors, and the limits of SamplingParams."""

import dataclasses
import inspect
import math
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.extend.random import threefry_2x32
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hfjax_app.chat import SamplingParams
from hfjax_app.chat.sampling.sampler import (
    Occurrences,
    SamplerState,
    filtered_logits,
    gumbel,
    occurrences,
    packed,
    penalized,
    sample,
    sampler_state,
    threefry,
    unpacked,
)
from hfjax_app.errors import RequestRejected

VOCABULARY = 300


def stack(*params: SamplingParams) -> SamplerState:
    return unpacked(np.stack([packed(sampler_state(p, p.seed or 0)) for p in params]))


def nothing_seen(slots: int, vocabulary: int = VOCABULARY) -> Occurrences:
    zeros = np.zeros((slots, 1), np.int32)
    return occurrences(False, zeros, zeros[:, 0], zeros[:, 0], vocabulary)


def by_transformers(logits: np.ndarray, prompt: list[int], answer: list[int], params: SamplingParams) -> np.ndarray:
    """One row's probabilities by transformers' processors in `generate`'s order; OpenAI's two penalties by hand."""
    ids, scores = torch.tensor([prompt + answer]), torch.tensor(logits[None])
    if params.logit_bias:
        scores = SequenceBiasLogitsProcessor({(t,): float(b) for t, b in params.logit_bias.items()})(ids, scores)
    if params.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty))(ids, scores)
    counts = torch.bincount(torch.tensor(answer, dtype=torch.long), minlength=scores.shape[-1])
    scores = scores - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(params.temperature))])
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    return torch.softmax(warpers(ids, scores), -1)[0].numpy()


def by_sorting(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The reference in the docstring of `filtered_logits`, for one slot: probabilities after the cuts."""
    scaled = logits / temperature
    p = np.exp(scaled - scaled.max())
    p = np.where(p >= np.sort(p)[-top_k], p, 0) if 0 < top_k < len(p) else p
    descending = np.sort(p / p.sum())[::-1]
    last = descending[np.argmax(np.cumsum(descending) >= top_p)]  # the first to reach top_p
    p = np.where(p / p.sum() >= last, p, 0) if top_p < 1 else p
    p = np.where(p >= min_p * p.max(), p, 0)
    return p / p.sum()


def random_params(random: np.random.Generator) -> SamplingParams:
    """Each parameter is off half the time, so that one batch has slots with and without it."""

    def maybe(value: Any, off: Any) -> Any:
        return value if random.random() < 0.5 else off

    biased = random.integers(0, VOCABULARY, random.integers(1, 65)).tolist()
    return SamplingParams(
        temperature=random.uniform(0.2, 2.5),
        top_p=maybe(random.uniform(0.05, 1), 1.0),
        top_k=maybe(int(random.integers(1, 2 * VOCABULARY)), 0),
        min_p=maybe(random.uniform(0, 0.5), 0.0),
        repetition_penalty=maybe(random.uniform(0.5, 2), 1.0),
        presence_penalty=maybe(random.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(random.uniform(-2, 2), 0.0),
        logit_bias=maybe({token: random.uniform(-100, 100) for token in biased}, {}),
    )


@jax.jit
def distribution(logits: jax.Array, state: SamplerState, *history: jax.Array) -> jax.Array:
    seen = occurrences(True, *history, VOCABULARY)
    return jax.nn.softmax(filtered_logits(penalized(logits, state.penalties, seen), state))


@pytest.mark.parametrize("seed", range(30))
def test_any_mix_of_parameters_equals_transformers(seed: int) -> None:
    """Four slots with different parameters, prompts and answers; tokens beyond a conversation do not count."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (4, VOCABULARY)).astype(np.float32)
    history = random.integers(0, VOCABULARY, (4, 60)).astype(np.int32)
    history[:, ::3] = history[:, :1]  # one token is repeated often
    answer_from, length = random.integers(1, 30, 4), random.integers(30, 60, 4)
    params = [random_params(random) for _ in range(4)]
    got = distribution(logits, stack(*params), history, answer_from, length)
    for slot in range(4):
        prompt, answer = history[slot, : answer_from[slot]], history[slot, answer_from[slot] : length[slot]]
        expected = by_transformers(logits[slot], prompt.tolist(), answer.tolist(), params[slot])
        np.testing.assert_allclose(got[slot], expected, atol=1e-5, err_msg=str(params[slot]))


@pytest.mark.parametrize("seed", range(10))
def test_the_cuts_equal_the_reference_by_sorting(seed: int) -> None:
    """32 slots with different cuts. Equal logits tie: tied tokens are kept or cut together."""
    random = np.random.default_rng(seed)
    logits = random.normal(0, 3, (32, VOCABULARY)).astype(np.float32)
    logits[::2] = np.round(logits[::2])
    params = [random_params(random) for _ in logits]
    got = np.asarray(jax.nn.softmax(jax.jit(filtered_logits)(logits, stack(*params))))
    for row, result, p in zip(logits.astype(np.float64), got, params, strict=True):
        expected = by_sorting(row, p.temperature, p.top_k, p.top_p, p.min_p)
        np.testing.assert_allclose(result, expected, atol=1e-5, err_msg=str(p))


def test_the_reference_is_the_one_in_the_docstring() -> None:
    lines = [line.strip() for line in inspect.getsource(by_sorting).splitlines()]
    documented = [line.strip() for line in inspect.getdoc(filtered_logits).splitlines() if line.startswith("    ")]
    reference = [line for line in documented if line.startswith(("p =", "descending =", "last ="))]
    assert len(reference) == 5
    assert [line for line in lines if line in reference] == reference


def test_an_added_token_counts_as_one_in_the_history() -> None:
    random = np.random.default_rng(3)
    history = random.integers(0, VOCABULARY, (4, 20)).astype(np.int32)
    start, length = np.array([1, 5, 9, 15]), np.array([5, 6, 15, 15])
    counts = np.array([True, True, False, True])
    one_by_one = occurrences(True, history, start, length, VOCABULARY).add(history[range(4), length], counts)
    at_once = occurrences(True, history, start, length + counts, VOCABULARY)
    jax.tree.map(np.testing.assert_array_equal, one_by_one, at_once)


def test_samples_follow_the_distribution() -> None:
    """20,000 samples at different positions with one seed: frequencies within five standard errors."""
    draws = 20_000
    logits = np.random.default_rng(1).normal(0, 1, (1, 8)).astype(np.float32)
    state = stack(SamplingParams(temperature=1.0, top_p=0.9, seed=5))
    expected = np.asarray(jax.nn.softmax(filtered_logits(logits, state)))[0]
    seen = nothing_seen(1, 8)
    tokens = jax.jit(jax.vmap(lambda p: sample(logits, state, p[None], seen)[0]))(np.arange(draws, dtype=np.int32))
    seen = np.bincount(np.asarray(tokens), minlength=8) / draws
    assert np.all(np.abs(seen - expected) <= 5 * np.sqrt(expected * (1 - expected) / draws))


def test_the_least_likely_tokens_can_be_drawn() -> None:
    """Noise of 23 bits has eight values above 13.8 and ends at 16.6: in a vocabulary of 262,144, tokens below 1e-7 in
    total were never sampled."""
    key = sampler_state(SamplingParams(), 1).key[None]
    count = 1 << 25
    noise = np.asarray(jax.jit(lambda position: gumbel(key, position, count))(np.zeros(1, np.int32)))
    seen, expected = noise[noise > 13.8], count * math.exp(-13.8)  # 34
    assert abs(len(seen) - expected) < 4 * math.sqrt(expected)
    assert len(set(seen.tolist())) == len(seen)


def test_the_bits_are_those_of_jax() -> None:
    keys, counts = np.random.default_rng(0).integers(0, 2**32, (2, 2, 1000), np.uint32)
    expected = jax.vmap(threefry_2x32, in_axes=(1, 1), out_axes=1)(keys, counts)
    np.testing.assert_array_equal(jax.jit(threefry)(*keys, *counts), expected)


def test_slots_are_independent() -> None:
    """A slot's token depends on its own logits, parameters, position and history only, to the last bit, whichever
    branches other slots use; greedy slots give the argmax."""
    random = np.random.default_rng(2)
    logits = random.normal(0, 2, (64, VOCABULARY)).astype(np.float32)
    params = [dataclasses.replace(random_params(random), seed=i) for i in range(60)]
    params += [SamplingParams(temperature=t) for t in (0.0, 1e-6, 1e-300)] + [SamplingParams(top_p=1e-300, seed=0)]
    positions = random.integers(0, 1000, 64).astype(np.int32)
    history = random.integers(0, VOCABULARY, (64, 20)).astype(np.int32)
    seen = occurrences(True, history, np.full(64, 7), np.full(64, 20), VOCABULARY)

    def draw(slots: np.ndarray) -> np.ndarray:
        state, history = jax.tree.map(lambda leaf: np.asarray(leaf)[slots], (stack(*params), seen))
        return np.asarray(sampled(logits[slots], state, positions[slots], history))

    sampled = jax.jit(sample)
    together = draw(np.arange(64))
    assert together.tolist() == [int(draw(np.array([i]))[0]) for i in range(64)]
    assert together[60:].tolist() == logits[60:].argmax(-1).tolist()


@pytest.mark.parametrize("logits", [[-1e30, 1e30, 0.0], [-np.inf, 3.0, -np.inf]])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1e-5),
        SamplingParams(temperature=1e-40),
        SamplingParams(top_p=5e-324, min_p=1.0),
        SamplingParams(top_k=1, repetition_penalty=10, presence_penalty=2, frequency_penalty=2, logit_bias={1: 0.1}),
    ],
)
def test_extreme_values_still_give_the_only_likely_token(logits: list[float], params: SamplingParams) -> None:
    """Such values overflow or underflow float32 in some step; NaN would give token 0."""
    state = stack(dataclasses.replace(params, seed=1))
    assert sample(np.array([logits], np.float32), state, np.array([4]), nothing_seen(1, 3)).tolist() == [1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_tokens", value) for value in (0, -1, 1.5, True, None, "9", math.nan)],
        *[("temperature", value) for value in (math.nan, math.inf, -0.1, 10.1, "hot", None, True)],
        *[("top_p", value) for value in (0, 2, -1, math.nan, None)],
        *[("top_k", value) for value in (-1, 2**31, 1.5)],
        *[("min_p", value) for value in (-0.1, 1.1, math.nan, math.inf, None, "0")],
        *[("repetition_penalty", value) for value in (0, -1, 0.05, 11, math.nan, math.inf, None, True)],
        *[("presence_penalty", value) for value in (-2.1, 2.1, math.nan, -math.inf, None)],
        *[("frequency_penalty", value) for value in (-2.1, 2.1, math.nan, math.inf, "1")],
        *[("logit_bias", value) for value in (None, 5, [1, 2], "bias")],
        *[("logprobs", value) for value in (-1, 6, 1.5, True, math.nan, "5")],
        *[("seed", value) for value in (-1, 2**64, 1.5, "1", math.nan)],
    ],
)
def test_out_of_range_is_rejected_by_name_and_value(field: str, value: object) -> None:
    with pytest.raises(RequestRejected) as error:
        SamplingParams(**{field: value})
    assert field.replace("_", " ") in str(error.value).replace("-p", " p").replace("-k", " k")
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("bias", "says"),
    [
        ({-1: 1.0}, "token id = -1"),
        ({"5": 1.0}, "token id = '5'"),
        ({1.0: 1.0}, "token id = 1.0"),
        ({True: 1.0}, "token id = True"),
        ({7: math.nan}, "token 7 = nan"),
        ({7: math.inf}, "token 7 = inf"),
        ({7: -100.5}, "token 7 = -100.5"),
        ({7: None}, "token 7 = None"),
        ({7: 10**400}, "token 7 = 1000"),
        (dict.fromkeys(range(10**6), 1.0), "logit bias of 1000000 tokens: at most 64"),
    ],
)
def test_bad_biases_are_rejected_in_one_short_line(bias: dict, says: str) -> None:
    with pytest.raises(RequestRejected, match=says) as error:
        SamplingParams(logit_bias=bias)
    assert len(str(error.value)) < 150


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty", "max_tokens", "seed"])
def test_huge_integers_are_rejected(field: str) -> None:
    """They can't be converted to a float: the check for finite numbers raised OverflowError."""
    with pytest.raises(RequestRejected) as error:
        SamplingParams(**{field: -(10**400)})
    assert len(str(error.value)) < 150


def test_params_keep_the_bias_they_were_given() -> None:
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[10**9] = math.nan
    assert params.logit_bias == {3: 1.0}
    hash(params)
