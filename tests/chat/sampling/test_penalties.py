"""Penalties, logit bias and log-probabilities through the engine, against the torch model's own logits."""

import dataclasses
import queue
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.chat.engine.llm_engine import Progress
from hfjax_app.errors import RequestRejected

TOKENS = 24


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(5, 40, length).tolist()  # few ids, so that many repeat


def greedy_by_torch(
    model: PreTrainedModel, prompt: list[int], params: SamplingParams
) -> tuple[list[int], list[torch.Tensor]]:
    """The answer token by token, no cache, with the definitions written out; and each token's log_softmax."""
    answer, log_softmax = [], []
    for _ in range(TOKENS):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, -1]
        log_softmax.append(torch.log_softmax(logits, -1))
        for token, bias in params.logit_bias.items():
            logits[token] += bias
        for token in set(prompt + answer):
            logits[token] *= params.repetition_penalty ** (1 if logits[token] < 0 else -1)
        for token in set(answer):
            logits[token] -= params.frequency_penalty * answer.count(token) + params.presence_penalty
        answer.append(int(logits.argmax()))
    return answer, log_softmax


def collect(engine: ChatEngine, *asked: tuple[list[int], SamplingParams]) -> list[list[Progress]]:
    """The progress of each request; all are submitted at once."""
    inboxes = [queue.SimpleQueue() for _ in asked]
    for (prompt, params), inbox in zip(asked, inboxes, strict=True):
        engine.submit(prompt, params, inbox.put)
    received = [[inbox.get(timeout=60)] for inbox in inboxes]
    for inbox, progress in zip(inboxes, received, strict=True):
        while not progress[-1].finished:
            progress.append(inbox.get(timeout=60))
    return received


MIX = [
    {"repetition_penalty": 1.4},
    {},
    {"logit_bias": {9: 4.0, 300: -100.0, 511: 3.5}},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"repetition_penalty": 0.8, "frequency_penalty": 2.0, "logit_bias": {11: 6.0}},
    {"frequency_penalty": -0.2, "logprobs": 0},
]


def test_penalties_equal_torch_in_any_mix(
    model_of: Callable[[str], PreTrainedModel], engine_of: Callable[[str], ChatEngine], compilations: Callable
) -> None:
    """Six requests over four slots, greedy, prompts within and beyond the chunk (16); nothing compiles."""
    model, engine = model_of("llama"), engine_of("llama")
    asked = [
        (prompt_of(length), SamplingParams(max_tokens=TOKENS, temperature=0.0, **options))
        for length, options in zip((3, 16, 20, 40, 75, 9), MIX, strict=True)
    ]
    with compilations() as seen:
        received = collect(engine, *asked)
    assert seen == []
    plain = engine.generate([prompt for prompt, _ in asked], SamplingParams(max_tokens=TOKENS, temperature=0.0))
    for (prompt, params), progress, unchanged in zip(asked, received, plain, strict=True):
        tokens = [token for piece in progress for token in piece.tokens]
        assert tokens == greedy_by_torch(model, prompt, params)[0], params
        if params.logit_bias or params.repetition_penalty != 1 or params.presence_penalty:
            assert tokens != unchanged, params


def test_repetition_penalty_and_bias_equal_generate(
    model_of: Callable[[str], PreTrainedModel], engine_of: Callable[[str], ChatEngine]
) -> None:
    """gemma3: the history also covers tokens outside the sliding window of 32."""
    prompt, bias = prompt_of(60), {9: 4.0, 300: -100.0}
    ids = torch.tensor([prompt])
    options = {"repetition_penalty": 1.3, "sequence_bias": {(t,): b for t, b in bias.items()}, "do_sample": False}
    expected = model_of("gemma3").generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, **options)
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, repetition_penalty=1.3, logit_bias=bias)
    assert engine_of("gemma3").generate([prompt], params) == [expected[0, len(prompt) :].tolist()]


@pytest.mark.parametrize("top", [0, 1, 5])
def test_logprobs_are_log_softmax_of_the_model(
    top: int, model_of: Callable[[str], PreTrainedModel], engine_of: Callable[[str], ChatEngine]
) -> None:
    """For tokens sampled with a penalty, but from the distribution without it; other requests get none."""
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, repetition_penalty=1.4, logprobs=top)
    prompt = prompt_of(20)
    asked = (prompt, params), (prompt_of(5), dataclasses.replace(params, logprobs=None))
    received, neighbour = collect(engine_of("llama"), *asked)
    assert all(piece.logprobs == () for piece in neighbour)
    tokens, log_softmax = greedy_by_torch(model_of("llama"), prompt, params)
    assert all(len(piece.logprobs) == len(piece.tokens) for piece in received)
    logprobs = [logprob for piece in received for logprob in piece.logprobs]
    assert len(logprobs) == TOKENS
    for token, got, expected in zip(tokens, logprobs, log_softmax, strict=True):
        assert got.logprob == pytest.approx(float(expected[token]), abs=1e-4)
        best = expected.topk(max(top, 1))
        assert [token for token, _ in got.top] == best.indices[:top].tolist()
        assert [value for _, value in got.top] == pytest.approx(best.values[:top].tolist(), abs=1e-4)


def test_a_seed_gives_the_same_text_with_penalties_too(engine_of: Callable[[str], ChatEngine]) -> None:
    """Alone, and among neighbours that use other branches of the program."""
    engine = engine_of("llama")
    params = SamplingParams(
        max_tokens=TOKENS, temperature=1.2, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.5, seed=11
    )
    alone = list(engine.stream(prompt_of(9), params))
    neighbours = {30: {"top_k": 9}, 4: {"top_p": 0.5}, 18: {"logprobs": 5}}
    crowd = [(prompt_of(n), SamplingParams(max_tokens=TOKENS, **options)) for n, options in neighbours.items()]
    received = collect(engine, *crowd, (prompt_of(9), params))
    assert [token for piece in received[-1] for token in piece.tokens] == alone


def test_a_slot_does_not_penalise_tokens_of_the_conversation_before(engine_of: Callable[[str], ChatEngine]) -> None:
    """Tokens of one conversation do not count in the next one of its slot, which is shorter."""
    engine = engine_of("llama")
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, repetition_penalty=2.0, presence_penalty=2.0)
    fresh = engine.generate([prompt_of(7)], params)
    engine.generate([prompt_of(90)] * 4, params)
    assert engine.generate([prompt_of(7)] * 4, params) == fresh * 4


def test_a_bias_outside_the_vocabulary_is_refused(engine_of: Callable[[str], ChatEngine]) -> None:
    with pytest.raises(RequestRejected, match="logit bias for token id 512: this model's go from 0 to 511"):
        engine_of("llama").generate([prompt_of(3)], SamplingParams(logit_bias={3: 1.0, 512: 1.0}))
