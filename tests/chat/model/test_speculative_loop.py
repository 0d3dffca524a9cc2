"""Drafts from the conversation: the same tokens as one by one, whatever is drafted, and fewer forwards."""

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

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.chat.engine.draft_policy import DraftTracker
from hfjax_app.chat.engine.token_stream import Progress
from hfjax_app.chat.model.speculative_loop import lookup

END = 9
# Tokens that the bias lets through, so that what was said comes again, and drafts are sometimes right to the end.
FEW = {7: 100.0, 8: 100.0, 10: 99.0}


# Slots of an engine: a lone slot's program works on the cache itself, one of several on a copy of its rows.
SLOTS = {"llama": 1, "gemma3": 2}
EngineOf = Callable[[str], ChatEngine]


@pytest.fixture(scope="module")
def drafting(model_of: Callable[[str], PreTrainedModel]) -> Iterator[EngineOf]:
    """Engines that draft for whoever is alone, of models whose text may end with END; `engine_of` has neither."""
    started: dict[str, ChatEngine] = {}

    def get(architecture: str, speculation: str = "always") -> ChatEngine:
        key = f"{architecture} {speculation}"
        if key not in started:
            model = copy.deepcopy(model_of(architecture))
            model.generation_config.eos_token_id = [END]
            options = {"slots": SLOTS[architecture], "context": 256, "prefill_chunk": 16, "buckets": [1]}
            started[key] = ChatEngine(model, speculation=speculation, **options).start()
        return started[key]

    yield get
    for engine in started.values():
        engine.stop()


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(10, 512, length).tolist()


def answer(engine: ChatEngine, prompt: list[int], params: SamplingParams) -> list[Progress]:
    inbox: queue.SimpleQueue[Progress] = queue.SimpleQueue()
    engine.submit(prompt, params, inbox.put)
    heard = [inbox.get(timeout=60)]
    while not heard[-1].finished:
        heard.append(inbox.get(timeout=60))
    assert heard[-1].error is None
    return heard


def tokens_of(heard: list[Progress]) -> list[int]:
    return [token for progress in heard for token in progress.tokens]


def ended(tokens: list[int]) -> list[int]:
    """Up to the end token, which is not handed out."""
    return tokens[: tokens.index(END)] if END in tokens else tokens


def accepted_of(heard: list[Progress]) -> int:
    return sum(progress.accepted_tokens for progress in heard)


@pytest.mark.parametrize(
    ("said", "draft"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1, 2]),
        ([9, 2, 3, 4, 1, 2, 3, 5, 2, 3], [5, 2, 3, 5]),  # two tokens, the latest place, then round again
        ([1, 2, 3, 4, 8, 2, 3, 5, 1, 2, 3], [4, 8, 2, 3]),  # three tokens go before two, though they are further back
        ([6, 6, 6], [6, 6, 6, 6]),
        ([1, 2, 3, 4, 1], None),  # one token says little
        ([1, 2], None),
        ([1], None),
    ],
)
def test_a_draft_is_what_followed_the_newest_tokens_before(said: list[int], draft: list[int] | None) -> None:
    """What an earlier conversation left behind the newest token counts for nothing. The host finds the same draft."""
    history = np.array([*said, *said, 7, 7, 7], np.int32)
    tokens, found = jax.jit(lookup, static_argnums=2)(history, np.int32(len(said) - 1), 4)
    assert (tokens.tolist() if found else None) == draft
    recall = DraftTracker(said, 4)
    recall.extend(draft or [])
    recall.extend([*(draft or []), 99])
    assert bool(recall.drafts) == bool(draft)
    assert recall.accepted == pytest.approx(0.2 * 4 if draft else 0.0)


@pytest.mark.parametrize("architecture", SLOTS)
def test_greedy_equals_generate(
    architecture: str, drafting: EngineOf, model_of: Callable[[str], PreTrainedModel]
) -> None:
    """Up to the context's end, over several turns of the rings (window 32, 48 rows): prompts that repeat and that do
    not."""
    accepted = 0
    for prompt in (prompt_of(12) * 15, prompt_of(200), [7, 8] * 100, prompt_of(249)):
        ids = torch.tensor([prompt])
        out = model_of(architecture).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=256 - len(prompt), do_sample=False
        )
        heard = answer(drafting(architecture), prompt, SamplingParams(max_tokens=256, temperature=0.0))
        assert tokens_of(heard) == ended(out[0, len(prompt) :].tolist())
        accepted += accepted_of(heard)
    assert accepted > 10


@pytest.mark.parametrize("architecture", SLOTS)
def test_a_seed_gives_the_same_text_with_drafts(
    architecture: str,
    drafting: EngineOf,
    engine_of: EngineOf,
    compilations: Callable[[], AbstractContextManager[list[str]]],
) -> None:
    """Draws, cuts, bias and penalties see in every place of a draft what they would see one by one, and so do
    log-probabilities. Nothing compiles."""
    prompt = [*prompt_of(30), *[7, 8, 10, 7] * 5]
    wishes = [
        SamplingParams(max_tokens=60, temperature=0.8, seed=5, logit_bias=FEW, logprobs=2),
        SamplingParams(max_tokens=60, temperature=1.0, seed=6, logit_bias=FEW, top_k=2, presence_penalty=0.5),
        SamplingParams(max_tokens=40, temperature=0.0, repetition_penalty=1.1, frequency_penalty=1.5, logit_bias=FEW),
        SamplingParams(max_tokens=40, temperature=1.0, top_p=0.9, seed=7),
    ]
    engines = drafting(architecture), engine_of(architecture)
    with compilations() as seen:
        answers = [[answer(engine, prompt, wish) for wish in wishes] for engine in engines]
    assert seen == []
    for drafted, plain in zip(*answers, strict=True):
        assert tokens_of(drafted) == ended(tokens_of(plain))
        assert sum(progress.drafted_tokens for progress in plain) == 0
        got, want = ([p for progress in heard for p in progress.logprobs] for heard in (drafted, plain))
        assert [[token for token, _ in p.top] for p in got] == [[token for token, _ in p.top] for p in want]
        np.testing.assert_allclose([p.logprob for p in got], [p.logprob for p in want], atol=1e-3)
    first = answers[0][0]
    assert len(tokens_of(first)) == 60
    assert accepted_of(first) > 15  # so 60 tokens took fewer than 45 forwards
    assert sum(map(accepted_of, answers[0][:3])) < sum(p.drafted_tokens for heard in answers[0][:3] for p in heard)


@pytest.mark.parametrize("architecture", SLOTS)
def test_a_round_copies_no_rows(architecture: str, drafting: EngineOf) -> None:
    """Neither kind of round copies an array of the size of a layer's rows, in whatever order, as a plain step did when
    it wrote its token by a slice update; and the donated cache is used in place."""
    runner = drafting(architecture).runner
    leaves = jax.tree.leaves(runner._cache)
    rows = {tuple(sorted(set(leaf.shape[1:]))) for leaf in leaves}
    for program in runner._speculate.values():
        text = program.as_text()
        copied = re.findall(r"\w+\[([\d,]+)\]\S* copy\(", text)
        assert copied  # small things
        shapes = {tuple(sorted({int(n) for n in shape.split(",")} - {1})) for shape in copied}
        assert shapes.isdisjoint(rows)
        assert program.memory_analysis().alias_size_in_bytes >= sum(leaf.nbytes for leaf in leaves)


def test_an_end_token_within_a_draft_ends_the_answer(drafting: EngineOf, engine_of: EngineOf) -> None:
    """The prompt has the end token again and again, so drafts have it; the stats count what the owners heard of."""
    engine, accepted, reasons = drafting("gemma3"), 0, set()
    before = engine.stats()
    for seed in range(12):
        params = SamplingParams(max_tokens=30, temperature=1.0, seed=seed, logit_bias={7: 100.0, 8: 100.0, END: 97.0})
        heard, plain = (answer(e, [7, 8, END] * 12, params) for e in (engine, engine_of("gemma3")))
        assert tokens_of(heard) == ended(tokens_of(plain))
        assert heard[-1].finish_reason == ("stop" if END in tokens_of(plain) else "length")
        accepted += accepted_of(heard)
        reasons.add(heard[-1].finish_reason)
    after = engine.stats()
    assert "stop" in reasons
    assert 0 < accepted == after.accepted_tokens - before.accepted_tokens
    assert accepted < after.drafted_tokens - before.drafted_tokens
    assert engine_of("gemma3").stats().drafted_tokens == 0


def test_a_conversation_goes_on_where_drafts_were_wrong(drafting: EngineOf, engine_of: EngineOf) -> None:
    """Turns that go on, are asked again, or go back: what rejected drafts have written is never taken for the
    conversation's, and a ring that lost rows to them starts again."""
    engine, plain, rng = drafting("gemma3"), engine_of("gemma3"), random.Random(3)
    bias = {7: 100.0, 8: 100.0, END: 98.0}
    before, talk = engine.stats(), [7, 8] * 20
    for turn in range(24):
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=turn, logit_bias=bias)
        kept = rng.randrange(max(len(talk) - 24, 8), len(talk) + 1)
        prompt = [*talk[:kept], rng.randrange(7, 11)]
        heard = answer(engine, prompt, params)
        plain._loop.scheduler.slots.forget_all()
        assert tokens_of(heard) == ended(tokens_of(answer(plain, prompt, params))), turn
        talk = [*prompt, *tokens_of(heard)][:100]
    after = engine.stats()
    assert after.drafted_tokens - before.drafted_tokens > 100
    assert after.reused_tokens - before.reused_tokens > 200


def test_drafting_begins_by_itself_where_it_may_pay(drafting: EngineOf) -> None:
    """The text repeats itself, so a draft is tried; how many follow depends on what it takes."""
    engine = drafting("llama", "auto")
    params = SamplingParams(max_tokens=200, temperature=0.0, logit_bias={7: 100.0})
    with engine.stream([1, 2, 3], params) as stream:
        assert list(stream) == [7] * 200
    assert 0 < stream.accepted_tokens <= stream.drafted_tokens
