"""A chat on a device that also draws pictures: a chat's call waits for at most one denoising step.

The two share no lock. A device runs its queue in order, so a chat's call waits for the calls before it: one denoising
step at most, for any number of visitors that draw. The engine's thread continues during that step.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hfjax_app.chat import ChatEngine, EngineOptions, SamplingParams
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.denoiser import Denoiser
from tests.chat.conftest import make_model
from tests.images.pipelines import stable_diffusion

PROMPT = list(range(20, 60))
VISITORS = 2


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly(quick_compiler: None) -> None:
    """These tests check what is computed, not how fast."""


@pytest.fixture(scope="module")
def engine(compiled_quickly: None) -> Iterator[ChatEngine]:
    options = EngineOptions(slots=2, context=256, prefill_chunk=16, decode_chunk=2, buckets=[1], speculation="never")
    started = ChatEngine(make_model("llama"), options=options).start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def generator(compiled_quickly: None) -> ImageGenerator:
    return ImageGenerator(stable_diffusion())


@contextmanager
def drawn(generator: ImageGenerator) -> Iterator[None]:
    """While the block runs, two visitors draw one picture after the other and look at each preview."""
    ended, faults = threading.Event(), []

    def draw(seed: int) -> None:
        try:
            while not ended.is_set():
                for step in generator.generate(ImageRequest("red dot", steps=10, seed=seed)):
                    assert step.previews
                    if ended.is_set():
                        break
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(VISITORS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert faults == []
    assert not any(thread.is_alive() for thread in threads)


def answer(engine: ChatEngine, tokens: int) -> list[int]:
    return list(engine.stream(PROMPT, SamplingParams(max_tokens=tokens, temperature=0.0)))


def test_one_step_at_most_is_in_front_of_a_chats_call(
    engine: ChatEngine, generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts, at each of the chat's calls, the steps that are started and not done.

    Without turns, or with steps queued ahead, the steps of all visitors would be before the call.
    """
    steps: list[list[Any]] = []
    in_front: list[int] = []
    step = Denoiser.__call__

    def watched_step(*args: Any) -> Any:
        entry: list[Any] = []
        steps.append(entry)
        result = step(*args)
        entry.append(result[1])
        return result

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **options: Any) -> Any:
            in_front.append(sum(not entry or not entry[0].is_ready() for entry in steps[-2 * VISITORS :]))
            return call(*args, **options)

        return count

    monkeypatch.setattr(Denoiser, "__call__", watched_step)
    for name in ("prefill", "decode"):
        monkeypatch.setattr(ModelRunner, name, watched(getattr(ModelRunner, name)))
    with drawn(generator):
        while len(steps) < 60 or in_front.count(1) < 20:  # calls during a step
            assert len(answer(engine, 100)) == 100
            assert max(in_front) <= 1


def test_a_whole_answer_is_made_while_a_step_lasts(
    engine: ChatEngine, generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step ends only after the answer: an engine that waited for the pictures would never finish it."""
    begun: list[None] = []
    in_step, may_end = threading.Event(), threading.Event()
    step = Denoiser.__call__

    def held(*args: Any) -> Any:
        begun.append(None)
        in_step.set()
        assert may_end.wait(60), "the answer waits for the step"
        return step(*args)

    alone = answer(engine, 40)
    monkeypatch.setattr(Denoiser, "__call__", held)
    with drawn(generator):
        assert in_step.wait(60)
        beside, steps = answer(engine, 40), len(begun)
        may_end.set()
    assert beside == alone
    assert steps == 1, "one visitor has the turn, the other one waits for it"
