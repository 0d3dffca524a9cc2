"""Drafts from the conversation: the same tokens as by plain decoding, with any drafts, and fewer forwards."""

import copy
import queue
import random
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import jax
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.chat.engine.decode_calls import DraftTracker
from hfjax_app.chat.engine.request import Progress
from hfjax_app.chat.model.decode_loops import lookup

END = 9
# Tokens that the bias allows, so that the text repeats itself and some drafts are accepted as a whole.
FEW = {7: 100.0, 8: 100.0, 10: 99.0}


# Slots of an engine: the program of a single slot works on the cache itself, with several slots on a copy of a part.
SLOTS = {"llama": 1, "gemma3": 2}
EngineOf = Callable[[str], ChatEngine]


@pytest.fixture(scope="module")
def drafting(model_of: Callable[[str], PreTrainedModel]) -> Iterator[EngineOf]:
    """Engines that draft for every lone request, of models with the end token END, unlike those of `engine_of`."""
    started: dict[str, ChatEngine] = {}

    def get(architecture: str, speculation: str = "always") -> ChatEngine:
        key = f"{architecture} {speculation}"
        if key not in started:
            model = copy.deepcopy(model_of(architecture))
            model.generation_config.eos_token_id = [END]
            options = {"slots": SLOTS[architecture], "context": 256, "prefill_chunk": 16, "buckets": [1]}
            started[key] = ChatEngine(model, options=EngineOptions(speculation=speculation, **options)).start()
        return started[key]

    yield get
    for engine in started.values():
        engine.stop()


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(10, 512, length).tolist()


def answer(engine: ChatEngine, prompt: list[int], params: SamplingParams) -> list[Progress]:
    inbox: queue.SimpleQueue[Progress] = queue.SimpleQueue()
    engine.submit(prompt, params, inbox.put)
    received = [inbox.get(timeout=60)]
    while not received[-1].finished:
        received.append(inbox.get(timeout=60))
    assert received[-1].error is None
    return received


def tokens_of(received: list[Progress]) -> list[int]:
    return [token for progress in received for token in progress.tokens]


def ended(tokens: list[int]) -> list[int]:
    """Up to the end token, which is not handed out."""
    return tokens[: tokens.index(END)] if END in tokens else tokens


def accepted_of(received: list[Progress]) -> int:
    return sum(progress.accepted_tokens for progress in received)


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1, 2]),
        ([9, 2, 3, 4, 1, 2, 3, 5, 2, 3], [5, 2, 3, 5]),  # two tokens, the latest place, then repeated
        ([1, 2, 3, 4, 8, 2, 3, 5, 1, 2, 3], [4, 8, 2, 3]),  # three tokens win over two, although they are further back
        ([6, 6, 6], [6, 6, 6, 6]),
        ([1, 2, 3, 4, 1], None),  # one token is too short
        ([1, 2], None),
        ([1], None),
    ],
)
def test_a_draft_is_what_followed_the_newest_tokens_before(text: list[int], draft: list[int] | None) -> None:
    """Tokens that an earlier conversation left after the newest token are ignored. The host finds the same draft."""
    history = np.array([*text, *text, 7, 7, 7], np.int32)
    tokens, found = jax.jit(lookup, static_argnums=2)(history, np.int32(len(text) - 1), 4)
    assert (tokens.tolist() if found else None) == draft
    tracker = DraftTracker(text, 4)
    tracker.extend(draft or [])
    tracker.extend([*(draft or []), 99])
    assert bool(tracker.drafts) == bool(draft)
    assert tracker.accepted == pytest.approx(0.2 * 4 if draft else 0.0)


@pytest.mark.parametrize("architecture", SLOTS)
def test_greedy_equals_generate(
    architecture: str, drafting: EngineOf, model_of: Callable[[str], PreTrainedModel]
) -> None:
    """Up to the context's end, while the rings wrap several times (window 32, 48 positions): prompts that repeat, and
    prompts that do not."""
    accepted = 0
    for prompt in (prompt_of(12) * 15, prompt_of(200), [7, 8] * 100, prompt_of(249)):
        ids = torch.tensor([prompt])
        out = model_of(architecture).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=256 - len(prompt), do_sample=False
        )
        received = answer(drafting(architecture), prompt, SamplingParams(max_tokens=256, temperature=0.0))
        assert tokens_of(received) == ended(out[0, len(prompt) :].tolist())
        accepted += accepted_of(received)
    assert accepted > 10


@pytest.mark.parametrize("architecture", SLOTS)
def test_a_seed_gives_the_same_text_with_drafts(
    architecture: str,
    drafting: EngineOf,
    engine_of: EngineOf,
    compilations: Callable[[], AbstractContextManager[list[str]]],
) -> None:
    """Sampling, cuts, bias, penalties and log-probabilities work at every position of a draft as in plain decoding.
    Nothing compiles."""
    prompt = [*prompt_of(30), *[7, 8, 10, 7] * 5]
    all_params = [
        SamplingParams(max_tokens=60, temperature=0.8, seed=5, logit_bias=FEW, logprobs=2),
        SamplingParams(max_tokens=60, temperature=1.0, seed=6, logit_bias=FEW, top_k=2, presence_penalty=0.5),
        SamplingParams(max_tokens=40, temperature=0.0, repetition_penalty=1.1, frequency_penalty=1.5, logit_bias=FEW),
        SamplingParams(max_tokens=40, temperature=1.0, top_p=0.9, seed=7),
    ]
    engines = drafting(architecture), engine_of(architecture)
    with compilations() as seen:
        answers = [[answer(engine, prompt, params) for params in all_params] for engine in engines]
    assert seen == []
    for drafted, plain in zip(*answers, strict=True):
        assert tokens_of(drafted) == ended(tokens_of(plain))
        assert sum(progress.drafted_tokens for progress in plain) == 0
        got, expected = ([p for progress in received for p in progress.logprobs] for received in (drafted, plain))
        assert [[token for token, _ in p.top] for p in got] == [[token for token, _ in p.top] for p in expected]
        np.testing.assert_allclose([p.logprob for p in got], [p.logprob for p in expected], atol=1e-3)
    first = answers[0][0]
    assert len(tokens_of(first)) == 60
    assert accepted_of(first) > 15  # so 60 tokens took fewer than 45 forwards
    assert sum(map(accepted_of, answers[0][:3])) < sum(
        p.drafted_tokens for received in answers[0][:3] for p in received
    )


@pytest.mark.parametrize("architecture", SLOTS)
def test_a_round_does_not_copy_the_cache(architecture: str, drafting: EngineOf) -> None:
    """Neither kind of round copies an array with the dimensions of a layer's cache, in any order, as a plain step did
    when it wrote its token by a slice update. The donated cache is used in place."""
    runner = drafting(architecture).runner
    leaves = jax.tree.leaves(runner._cache)
    of_cache = {tuple(sorted(set(leaf.shape[1:]))) for leaf in leaves}
    for program in runner.programs.speculate.values():
        text = program.as_text()
        copied = re.findall(r"\w+\[([\d,]+)\]\S* copy\(", text)
        assert copied  # small things
        shapes = {tuple(sorted({int(n) for n in shape.split(",")} - {1})) for shape in copied}
        assert shapes.isdisjoint(of_cache)
        assert program.memory_analysis().alias_size_in_bytes >= sum(leaf.nbytes for leaf in leaves)


def test_an_end_token_within_a_draft_ends_the_answer(drafting: EngineOf, engine_of: EngineOf) -> None:
    """The prompt repeats the end token, so drafts contain it. The stats agree with what the clients received."""
    engine, accepted, reasons = drafting("gemma3"), 0, set()
    before = engine.stats()
    for seed in range(12):
        params = SamplingParams(max_tokens=30, temperature=1.0, seed=seed, logit_bias={7: 100.0, 8: 100.0, END: 97.0})
        received, plain = (answer(e, [7, 8, END] * 12, params) for e in (engine, engine_of("gemma3")))
        assert tokens_of(received) == ended(tokens_of(plain))
        assert received[-1].finish_reason == ("stop" if END in tokens_of(plain) else "length")
        accepted += accepted_of(received)
        reasons.add(received[-1].finish_reason)
    after = engine.stats()
    assert "stop" in reasons
    assert 0 < accepted == after.accepted_tokens - before.accepted_tokens
    assert accepted < after.drafted_tokens - before.drafted_tokens
    assert engine_of("gemma3").stats().drafted_tokens == 0


def test_a_conversation_continues_after_rejected_drafts(drafting: EngineOf, engine_of: EngineOf) -> None:
    """Turns that continue, repeat, or go back: tokens written by rejected drafts are never reused, and a ring that has
    lost positions to them is prefilled from the start."""
    engine, plain, rng = drafting("gemma3"), engine_of("gemma3"), random.Random(3)
    bias = {7: 100.0, 8: 100.0, END: 98.0}
    before, talk = engine.stats(), [7, 8] * 20
    for turn in range(24):
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=turn, logit_bias=bias)
        kept = rng.randrange(max(len(talk) - 24, 8), len(talk) + 1)
        prompt = [*talk[:kept], rng.randrange(7, 11)]
        received = answer(engine, prompt, params)
        plain._loop.scheduler.slots.forget_all()
        assert tokens_of(received) == ended(tokens_of(answer(plain, prompt, params))), turn
        talk = [*prompt, *tokens_of(received)][:100]
    after = engine.stats()
    assert after.drafted_tokens - before.drafted_tokens > 100
    assert after.reused_tokens - before.reused_tokens > 200


def test_drafting_begins_by_itself_if_it_may_pay(drafting: EngineOf) -> None:
    """The text repeats itself, so a draft is tried; how many follow depends on the measured cost."""
    engine = drafting("llama", "auto")
    params = SamplingParams(max_tokens=200, temperature=0.0, logit_bias={7: 100.0})
    with engine.stream([1, 2, 3], params) as stream:
        assert list(stream) == [7] * 200
    assert 0 < stream.accepted_tokens <= stream.drafted_tokens
