"""Sampling on the device against transformers' logits processors, and the limits of SamplingParams."""

import math

import jax
import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hfjax_app.chat import SamplingParams
from hfjax_app.chat.sampling import SamplerState, filtered_probabilities, sample, sampler_state
from hfjax_app.errors import RequestRejected

VOCABULARY = 300


def stack(*params: SamplingParams) -> SamplerState:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *[sampler_state(p, p.seed or 0) for p in params])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_p", [0.05, 0.6, 0.99, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 7, 1000])
def test_distribution_equals_transformers(temperature: float, top_p: float, top_k: int) -> None:
    logits = np.random.default_rng(0).normal(0, 3, (4, VOCABULARY)).astype(np.float32)
    want = TemperatureLogitsWarper(temperature)(None, torch.tensor(logits))
    if top_k:
        want = TopKLogitsWarper(top_k)(None, want)
    if top_p < 1:
        want = TopPLogitsWarper(top_p)(None, want)
    params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
    got = jax.jit(filtered_probabilities)(logits, stack(*[params] * 4))
    np.testing.assert_allclose(got, torch.softmax(want, -1).numpy(), atol=1e-5)


def test_draws_follow_the_distribution() -> None:
    """20,000 draws at different positions with one seed: frequencies within five standard errors."""
    draws = 20_000
    logits = np.random.default_rng(1).normal(0, 1, (1, 8)).astype(np.float32)
    state = stack(SamplingParams(temperature=1.0, top_p=0.9, seed=5))
    expected = np.asarray(filtered_probabilities(logits, state))[0]
    tokens = jax.jit(jax.vmap(lambda p: sample(logits, state, p[None])[0]))(np.arange(draws, dtype=np.int32))
    seen = np.bincount(np.asarray(tokens), minlength=8) / draws
    assert np.all(np.abs(seen - expected) <= 5 * np.sqrt(expected * (1 - expected) / draws))


def test_rows_are_independent() -> None:
    """A row's token depends on its own logits, parameters and position only; greedy rows are the argmax."""
    logits = np.random.default_rng(2).normal(0, 2, (3, VOCABULARY)).astype(np.float32)
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.5, seed=2**64 - 1),
        SamplingParams(temperature=0.7, top_p=0.8, seed=1),
    ]
    positions = np.array([3, 9, 27], np.int32)
    together = np.asarray(sample(logits, stack(*params), positions))
    alone = [int(sample(logits[[i]], stack(params[i]), positions[[i]])[0]) for i in range(3)]
    assert together.tolist() == alone
    assert together[0] == logits[0].argmax()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_tokens", value) for value in (0, -1, 1.5, True, None, "9", math.nan)],
        *[("temperature", value) for value in (math.nan, math.inf, -0.1, 10.1, "hot", None, True)],
        *[("top_p", value) for value in (0, 2, -1, math.nan, None)],
        *[("top_k", value) for value in (-1, 2**31, 1.5)],
        *[("seed", value) for value in (-1, 2**64, 1.5, "1", math.nan)],
    ],
)
def test_out_of_range_is_rejected_by_name_and_value(field: str, value: object) -> None:
    with pytest.raises(RequestRejected) as error:
        SamplingParams(**{field: value})
    assert field.replace("_", " ") in str(error.value).replace("top-", "top ")
    assert repr(value) in str(error.value)
