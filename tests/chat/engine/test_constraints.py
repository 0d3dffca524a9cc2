"""Constrained answers in the engine: only allowed tokens, one a call, beside others that notice nothing."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.chat.engine.request import Request
from hfjax_app.chat.engine.scheduler import Scheduler
from hfjax_app.chat.sampling.sampler import mask_words
from hfjax_app.chat.text.grammar import AnswerGrammar, Grammars
from hfjax_app.errors import ConstraintFailed

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
DRAWN = SamplingParams(max_tokens=24, temperature=1.0, top_p=0.9, top_k=40, seed=3, repetition_penalty=1.2, logprobs=2)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "of": {"enum": [1, 2, 3]}},
    "required": ["name", "of"],
    "additionalProperties": False,
}


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(5, 300, length).tolist()


class Anything:
    """Every token, or none of the forbidden ones; fails at the n-th token."""

    def __init__(self, forbidden: tuple[int, ...] = (), fails_at: int = 0):
        self.allowed = np.full(mask_words(512), 0xFFFFFFFF, np.uint32)
        for token in forbidden:
            self.allowed[token // 32] &= ~np.uint32(1 << token % 32)
        self.is_complete = False
        self.accepted: list[int] = []
        self._fails_at = fails_at

    def accept(self, token: int) -> None:
        self.accepted.append(token)
        if len(self.accepted) == self._fails_at:
            raise ConstraintFailed("no rule is left")


@pytest.fixture(scope="module")
def grammars(tokenizer: PreTrainedTokenizerFast) -> Grammars:
    return Grammars(tokenizer, 512, ())


@pytest.mark.parametrize("params", [GREEDY, DRAWN])
def test_a_constraint_that_allows_everything_changes_no_token(
    params: SamplingParams, engine_of: Callable[[str], ChatEngine], compilations: Callable
) -> None:
    engine = engine_of("gemma3")
    free = list(engine.stream(prompt_of(40), params))
    with compilations() as seen:
        anything = Anything()
        assert list(engine.stream(prompt_of(40), params, constraint=anything)) == free == anything.accepted
        forbidden = Anything((free[0], free[5]))
        others = list(engine.stream(prompt_of(40), params, constraint=forbidden))
    assert not {free[0], free[5]} & set(others)
    assert seen == []


def test_answers_are_what_the_grammar_says(engine_of: Callable[[str], ChatEngine], grammars: Grammars) -> None:
    """Several at once, greedy and drawn, with grammars of their own; the same alone."""
    engine = engine_of("llama")
    asked = [
        (AnswerGrammar.of_schema(SCHEMA, "schema"), GREEDY),
        (AnswerGrammar.of_regex("(yes|no|maybe)!{2,3}", "regex"), DRAWN),
        (AnswerGrammar.of_schema(SCHEMA, "schema"), replace(DRAWN, temperature=10.0)),
    ]

    def start(grammar: AnswerGrammar, params: SamplingParams) -> tuple[list[int], str | None]:
        streams.append(engine.stream(prompt_of(20), params, constraint=grammars.compiled(grammar).constraint()))

    streams: list = []
    for grammar, params in asked:
        start(grammar, params)
    together = [list(stream) for stream in streams]
    assert {stream.finish_reason for stream in streams} == {"stop"}
    alone = []
    for grammar, params in asked:
        streams.clear()
        start(grammar, params)
        alone.append(list(streams[0]))
    assert together == alone
    tokenizer = engine.tokenizer
    for at in (0, 2):
        said = json.loads(tokenizer.decode(together[at]))
        assert said["of"] in (1, 2, 3)
        assert len(said["name"]) <= 5
    assert tokenizer.decode(together[1]).rstrip("!") in ("yes", "no", "maybe")


def test_the_tokens_of_others_do_not_change(
    engine_of: Callable[[str], ChatEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constrained answers have calls of one step of their own."""
    engine, made = engine_of("llama"), []
    decode = engine.runner.decode

    def seen(slots: Sequence[int], length: int, steps: int, allowed: Sequence[np.ndarray] = ()) -> object:
        made.append((set(slots), steps, len(allowed)))
        return decode(slots, length, steps, allowed)

    plain = SamplingParams(max_tokens=100, temperature=0.0)
    alone = engine.generate([prompt_of(9)], plain)[0]
    monkeypatch.setattr(engine.runner, "decode", seen)
    streams = [engine.stream(prompt_of(n), plain, constraint=Anything()) for n in (10, 11)]
    next(streams[0])
    assert list(engine.stream(prompt_of(9), plain)) == alone
    assert [len(list(stream)) for stream in streams] == [99, 100]
    constrained = [(slots, steps) for slots, steps, masks in made if masks]
    assert {steps for _, steps in constrained} == {1}
    free = [(slots, steps) for slots, steps, masks in made if not masks]
    assert not set.union(*(slots for slots, _ in constrained)) & set.union(*(slots for slots, _ in free))
    assert max(steps for _, steps in free) > 1


def scheduler_of(*constrained: bool) -> tuple[Scheduler, list[Request]]:
    scheduler = Scheduler(slots=3, decode_chunk=8, prefill_chunks=(4,), positions_before_wrap=1000, rollback=1000)
    requests = [
        Request(prompt=(1, 2, 3), max_tokens=40, constraint=Anything() if each else None) for each in constrained
    ]
    for request in requests:
        scheduler.submit(request)
    scheduler.admit()
    while step := scheduler.next_prefill():
        scheduler.prefilled(step)
    return scheduler, requests


def test_the_calls_of_others_do_not_change() -> None:
    calls = []
    for constrained in ((False,), (False, True, True)):
        scheduler, requests = scheduler_of(*constrained)
        calls.append([])
        while step := scheduler.next_decode():
            assert step.requests == (requests[0],)
            calls[-1].append((step.steps, step.length, step.tokens))
            scheduler.decoded(step)
    assert calls[0] == calls[1]
    assert len(calls[0]) == 5


def test_a_constrained_request_waits_for_its_newest_token() -> None:
    scheduler, (request, other) = scheduler_of(True, False)
    assert scheduler.next_constrained() is None
    request.answer.append(7)
    step = scheduler.next_constrained()
    assert (step.requests, step.steps, step.length) == ((request,), 1, 4)
    scheduler.decoded(step)
    assert scheduler.next_constrained() is None
    assert scheduler.next_decode().requests == (other,)


def test_leaving_and_failing_inside_a_constrained_call(engine_of: Callable[[str], ChatEngine]) -> None:
    """The reader leaves from the engine's own callback, between two calls, and during one; the slot is free at once,
    and the others go on."""
    engine, long = engine_of("llama"), SamplingParams(max_tokens=100, temperature=0.0)
    alone = engine.generate([prompt_of(7)], long)[0]
    neighbour = engine.stream(prompt_of(7), long)
    for wanted in (0, 1, 3):
        leaver = engine.stream(prompt_of(12), long, constraint=Anything())
        for _ in range(wanted):
            next(leaver)
        leaver.close()
        assert len(list(leaver)) < 100 - wanted
        assert leaver.finish_reason == "cancelled"
    for place in (1, 4):
        with pytest.raises(ConstraintFailed, match="no rule is left"):
            list(engine.stream(prompt_of(12), long, constraint=Anything(fails_at=place)))
    assert list(neighbour) == alone
    deadline = time.monotonic() + 60
    while engine.stats().busy:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert engine.alive
    assert list(engine.stream(prompt_of(7), long)) == alone
