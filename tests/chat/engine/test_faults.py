"""Injected faults: the requests concerned fail with the cause, and the engine answers the others as before."""

import threading
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transformers import PreTrainedModel

from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.chat.engine.engine_loop import DispatchedCall
from hfjax_app.chat.engine.request import Progress, TokenStream
from hfjax_app.chat.model.decode_loops import NOT_A_NUMBER, NOTHING
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.model.slot_functions import PromptChunk
from hfjax_app.chat.sampling.sampler import packed, sampler_state
from hfjax_app.errors import EngineStopped

GREEDY = SamplingParams(max_tokens=40, temperature=0.0)


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(5, 500, length).tolist()


@pytest.fixture
def engine(engine_of: Callable[[str], ChatEngine]) -> Iterator[ChatEngine]:
    """The shared engine; it must answer as before after each test."""
    engine = engine_of("llama")
    prompts = [prompt_of(length) for length in (9, 20, 33, 50)]
    before = engine.generate(prompts, GREEDY)
    yield engine
    assert engine.alive
    assert engine.generate(prompts, GREEDY) == before


class Fault(Exception):
    """Injected."""


class Injected:
    """Makes the n-th call of its programs fail, before or after the call has taken its donated arguments."""

    def __init__(self, call: int, lose_cache: bool):
        self._calls_left, self._lose_cache = call, lose_cache

    def into(self, program: Callable) -> Callable:
        def call(*args: object) -> object:
            self._calls_left -= 1
            if self._calls_left == 0:
                if self._lose_cache:
                    for leaf in jax.tree.leaves(args[1:3]):
                        leaf.delete()
                raise Fault("the device is on fire\nand more")
            return program(*args)

        return call


def fails(stream: TokenStream) -> bool:
    try:
        list(stream)
    except EngineStopped as error:
        cause = error.__cause__
        message = "the chat engine failed on this request, and goes on: Fault: the device is on fire"
        return isinstance(cause, Fault) and str(error) == message
    return False


def test_a_failed_prefill_fails_only_its_own_request(engine: ChatEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache still exists, so the other answer continues without a change."""
    long = SamplingParams(max_tokens=200, temperature=0.0)
    expected = engine.generate([prompt_of(5)], long)
    injected = Injected(call=2, lose_cache=False)
    monkeypatch.setattr(
        engine.runner.programs, "prefill", {(16, 256): injected.into(engine.runner.programs.prefill[16, 256])}
    )
    neighbour, victim = engine.stream(prompt_of(5), long), engine.stream(prompt_of(12), GREEDY)
    assert fails(victim)
    assert [list(neighbour)] == expected


def test_a_lost_cache_fails_every_request_that_had_a_slot(
    engine: ChatEngine, monkeypatch: pytest.MonkeyPatch, compilations: Callable
) -> None:
    """The device fails during a call: a new cache is made, queued requests are served, and nothing compiles."""
    injected = Injected(call=3, lose_cache=True)
    programs = {bucket: injected.into(program) for bucket, program in engine.runner.programs.decode.items()}
    monkeypatch.setattr(engine.runner.programs, "decode", programs)
    with compilations() as seen:
        streams = [engine.stream(prompt_of(length), GREEDY) for length in range(3, 11)]
        outcomes = [fails(stream) for stream in streams]
    assert outcomes[0]
    assert outcomes[4:] == [False] * 4
    assert [stream.finish_reason for stream in streams[4:]] == ["length"] * 4
    assert seen == []


def test_a_lost_cache_is_not_reused_by_idle_conversations(engine: ChatEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their slots hold zeros now: the next turn is prefilled from its first token."""
    talk = prompt_of(50)
    [expected] = engine.generate([talk], GREEDY)
    injected = Injected(call=1, lose_cache=True)
    programs = {bucket: injected.into(program) for bucket, program in engine.runner.programs.decode.items()}
    monkeypatch.setattr(engine.runner.programs, "decode", programs)
    assert fails(engine.stream(prompt_of(12), GREEDY))
    stream = engine.stream(talk, GREEDY)
    assert list(stream) == expected
    assert stream.reused_tokens == 0


def test_an_error_that_comes_with_the_tokens(engine: ChatEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are asynchronous: a device's error is seen only when the tokens are read."""
    monkeypatch.setattr(DispatchedCall, "read", Injected(call=2, lose_cache=False).into(DispatchedCall.read))
    assert fails(engine.stream(prompt_of(12), GREEDY))


@pytest.mark.parametrize("when", ["prefill", "decode"])
def test_logits_that_are_not_numbers_cost_one_request(when: str, engine: ChatEngine) -> None:
    """A token has NaN as its embedding, in the prompt or in the answer. The other request's tokens do not change, and
    neither do those of the next request in the slot: a NaN left in the cache would reach it, because 0 * NaN is NaN."""
    weights, name = engine.runner.weights, "model.embed_tokens.weight"
    neighbour, victim = prompt_of(30), prompt_of(12)
    expected, answer = engine.generate([neighbour, victim], GREEDY)
    if when == "prefill":
        poison = 505
        victim[5] = poison
    else:
        poison = next(token for token in answer[4:20] if token not in (*neighbour, *expected, *victim, *answer[:4]))
    poisoned = {**weights, name: jnp.asarray(weights[name]).at[poison].set(jnp.nan)}
    engine._loop.scheduler.slots.forget_all()
    engine.runner.weights = poisoned
    try:
        streams = [engine.stream(prompt, GREEDY) for prompt in (neighbour, victim)]
        assert list(streams[0]) == expected
        made = []
        with pytest.raises(EngineStopped, match="logits are not numbers"):
            made.extend(iter(streams[1]))
    finally:
        engine.runner.weights = weights
    assert engine.stats().busy == 0


def test_not_a_number_is_noticed_after_its_request_was_cancelled(engine: ChatEngine) -> None:
    """The call with the NaN was in flight. Its output was ignored like that of every cancelled request, so the slot was
    still recorded as the conversation's, and its next turn found the NaN and failed."""
    weights, name, prompt = engine.runner.weights, "model.embed_tokens.weight", prompt_of(12)
    [expected] = engine.generate([prompt], GREEDY)
    assert expected[0] not in prompt
    engine._loop.scheduler.slots.forget_all()
    submitted, ended, tickets = threading.Event(), threading.Event(), []

    def deliver(progress: Progress) -> None:
        submitted.wait()
        if progress.tokens:
            tickets[0].cancel()
        if progress.finished:
            ended.set()

    engine.runner.weights = {**weights, name: jnp.asarray(weights[name]).at[expected[0]].set(jnp.nan)}
    try:
        tickets.append(engine.submit(prompt, GREEDY, deliver))
        submitted.set()
        assert ended.wait(timeout=60)
    finally:
        engine.runner.weights = weights
    assert engine.generate([prompt], GREEDY) == [expected]


def test_a_chunk_before_the_last_reports_not_a_number(engine: ChatEngine) -> None:
    """A request cancelled during its prefill would leave NaN in the slot without a report."""
    runner, name = engine.runner, "model.embed_tokens.weight"
    chunk = np.arange(3, 3 + runner.prefill_chunks[0], dtype=np.int32)
    sampler = packed(sampler_state(GREEDY, 0))
    weights, reported = runner.weights, []
    try:
        for poison in (500, int(chunk[5])):
            runner.weights = {**weights, name: jnp.asarray(weights[name]).at[poison].set(jnp.nan)}
            made = runner.prefill(PromptChunk.of(0, chunk, 0, len(chunk), 0, sampler))
            reported.append(int(np.asarray(made.tokens).item()))
    finally:
        runner.weights = weights
        runner.clear(0)
        engine._loop.scheduler.slots.forget_all()
    assert reported == [NOTHING, NOT_A_NUMBER]


def read(runner: ModelRunner, slot: int, tokens: np.ndarray, start: int) -> int:
    """Prefill from `start` on, in chunks; returns the next token, or NOTHING or NOT_A_NUMBER."""
    for at in range(start, len(tokens), 16):
        chunk = tokens[at : at + 16]
        sampler = packed(sampler_state(GREEDY, 0))
        made = runner.prefill(PromptChunk.of(slot, np.resize(chunk, 16), at, len(chunk), 9, sampler))
    return int(np.asarray(made.tokens).item())


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_positions_after_a_copied_prefix_are_not_copied(
    architecture: str, engine_of: Callable[[str], ChatEngine]
) -> None:
    """A NaN of another request, not reported yet, failed every request with the same prefix."""
    engine = engine_of(architecture)
    runner, name = engine.runner, "model.embed_tokens.weight"
    weights = runner.weights
    prompt = np.array(prompt_of(96), np.int32)
    poisoned = prompt.copy()
    poisoned[85] = 505

    try:
        runner.weights = {**weights, name: jnp.asarray(weights[name]).at[505].set(jnp.nan)}
        assert read(runner, 0, poisoned, 0) == NOT_A_NUMBER
        runner.copy(0, 1, 80, 96)
        assert read(runner, 1, prompt[:84], 80) == read(runner, 2, prompt[:84], 0) != NOT_A_NUMBER
    finally:
        runner.weights = weights
        runner.clear(0)
        engine._loop.scheduler.slots.forget_all()


def test_a_copied_prefix_can_be_rolled_back(engine_of: Callable[[str], ChatEngine]) -> None:
    """A ring that has not wrapped has lost nothing, in a copy as in its source."""
    engine = engine_of("gemma3")
    runner = engine.runner
    prompt = np.array(prompt_of(48), np.int32)
    edited = np.array([*prompt[:20], 7, 8], np.int32)

    engine._loop.scheduler.slots.forget_all()
    read(runner, 0, prompt, 0)
    runner.copy(0, 1, 45, 48)
    assert read(runner, 1, edited, 20) == read(runner, 2, edited, 0)


def test_a_request_without_any_scheduled_call_fails(engine: ChatEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens were scheduled and never made. The thread looked for work in a busy loop, and the request never
    ended."""
    decode = engine.runner.decode
    monkeypatch.setattr(engine.runner, "decode", lambda slots, length, steps, allowed=(): decode(slots, length, 0))
    with pytest.raises(EngineStopped, match="no call is left that would make its tokens"):
        list(engine.stream(prompt_of(12), GREEDY))


def test_a_callback_that_raises_cancels_only_its_own_request(engine: ChatEngine) -> None:
    def deliver(progress: Progress) -> None:
        raise Fault

    engine.submit(prompt_of(8), SamplingParams(max_tokens=200), deliver)
    assert len(list(engine.stream(prompt_of(9), GREEDY))) == 40


def test_an_engine_that_fails_three_times_in_a_row_stops_and_says_why(
    model_of: Callable[[str], PreTrainedModel],
) -> None:
    """It has no weights. All requests get the cause, including those submitted after it has stopped."""
    options = EngineOptions(slots=4, context=256, prefill_chunk=16, buckets=[1], speculation="never")
    engine = ChatEngine(model_of("llama"), options=options).start()
    engine.runner.weights = None
    messages = []
    prompts = [prompt_of(length) for length in range(3, 9)]
    for prompt in prompts:
        with pytest.raises(EngineStopped) as error:
            list(engine.stream(prompt, GREEDY))
        assert error.value.__cause__ is not None
        messages.append(str(error.value))
    assert "goes on" in messages[0]
    assert "it failed 3 times in a row, at last with" in messages[-1]
    assert not engine.alive
    with pytest.raises(EngineStopped, match="not running: it failed 3 times in a row"):
        engine.stream([3], GREEDY)
    engine.stop()
