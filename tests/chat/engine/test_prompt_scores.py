"""The log-probabilities of a prompt's own tokens against torch, and when an answer may end against `generate`."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.chat.engine.request import Progress
from hfjax_app.chat.sampling.logprobs import TokenLogprobs
from hfjax_app.errors import RequestRejected

SCORED = SamplingParams(max_tokens=3, temperature=0.0, logprobs=0, prompt_logprobs=2)


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(5, 512, length).tolist()


def scores_of(engine: ChatEngine, prompts: list[list[int]]) -> list[tuple[list[int], tuple[TokenLogprobs, ...]]]:
    """Each prompt's answer and scores, all at once."""
    heard: list[list[Progress]] = [[] for _ in prompts]
    for prompt, progress in zip(prompts, heard, strict=True):
        engine.submit(prompt, SCORED, progress.append)
    while not all(progress and progress[-1].finished for progress in heard):
        pass
    found = []
    for progress in heard:
        told = [each.prompt_logprobs for each in progress if each.prompt_logprobs is not None]
        assert len(told) == 1
        found.append(([token for each in progress for token in each.tokens], told[0]))
    return found


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_scores_of_prompts_are_torch_s(
    architecture: str,
    engine_of: Callable[[str], ChatEngine],
    model_of: Callable[[str], PreTrainedModel],
    compilations: Callable[[], AbstractContextManager[list[str]]],
) -> None:
    """Shorter and longer than a chunk (16) and a window (32); also of prompts whose tokens are in the cache."""
    engine, prompts = engine_of(architecture), [prompt_of(length) for length in (1, 2, 16, 17, 75, 150)]
    plain = engine.generate(prompts, SamplingParams(max_tokens=3, temperature=0.0))
    with compilations() as seen:
        found = scores_of(engine, prompts)
        assert found == scores_of(engine, prompts), "the same with anything in the cache"
    assert seen == []
    for prompt, answer, (tokens, scores) in zip(prompts, plain, found, strict=True):
        assert tokens == answer
        with torch.no_grad():
            logprobs = model_of(architecture)(torch.tensor([prompt])).logits[0].log_softmax(-1)
        assert len(scores) == len(prompt) - 1
        chosen = logprobs[torch.arange(len(scores)), torch.tensor(prompt[1:], dtype=torch.long)]
        np.testing.assert_allclose([score.logprob for score in scores], chosen.numpy(), atol=2e-4)
        best = logprobs[: len(scores)].topk(2)
        assert [token for score in scores for token, _ in score.top] == best.indices.flatten().tolist()
    assert engine.generate(prompts, SamplingParams(max_tokens=3, temperature=0.0)) == plain


def test_what_can_t_be_scored(engine_of: Callable[[str], ChatEngine]) -> None:
    with pytest.raises(RequestRejected, match="prompt logprobs = 6"):
        SamplingParams(prompt_logprobs=6)
    with pytest.raises(RequestRejected, match="must be 1 to 255"):
        engine_of("llama").submit(prompt_of(256), SCORED, print)


def test_an_answer_ends_when_it_may(model_of: Callable[[str], PreTrainedModel]) -> None:
    """Drafted and plain, against `generate` with the same end token, which the model makes early."""
    model, prompt = model_of("llama"), prompt_of(9)
    ids = torch.tensor([prompt])

    def by_generate(**options: int) -> list[int]:
        out = model.generate(ids, attention_mask=ids * 0 + 1, max_new_tokens=30, do_sample=False, **options)
        return out[0, len(prompt) :].tolist()

    end = by_generate()[4]
    options = EngineOptions(slots=2, context=64, prefill_chunk=16, buckets=[1], speculation="always", end_tokens=(end,))
    engine = ChatEngine(model, options=options).start()
    try:
        for least in (0, 3, 12, 30):
            expected = by_generate(eos_token_id=end, pad_token_id=0, min_new_tokens=least)
            expected = expected[: expected.index(end)] if end in expected else expected
            params = SamplingParams(max_tokens=30, temperature=0.0, min_tokens=least)
            assert engine.generate([prompt, prompt], params) == [expected] * 2
            assert len(expected) >= least
        never = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
        assert engine.generate([prompt], never) == [by_generate(eos_token_id=end, pad_token_id=0, min_new_tokens=30)]
        biased = SamplingParams(max_tokens=30, temperature=1.0, seed=1, logit_bias={end: 100}, min_tokens=7)
        assert len(engine.generate([prompt], biased)[0]) == 7, "an end token is held back, whatever its likelihood"
    finally:
        engine.stop()
    with pytest.raises(RequestRejected, match="min tokens = 9: must be a whole number from 0 to max tokens, 8"):
        SamplingParams(max_tokens=8, min_tokens=9)
