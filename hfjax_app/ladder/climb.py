"""Runs the rungs of a part in order, times them, and compares each result with that of the rung before.

A rung runs twice. The first run has all that a first answer waits for: loading onto the device, tracing, compiling. The
second one is what it costs from then on. A rung that fails or takes too long is told about, and the next one runs.
"""

import gc
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import jax
import numpy as np

from hfjax_app.errors import ModelUnavailable, RequestRejected, first_line, without_folders
from hfjax_app.ladder_result import CHAT, DEVICES, IMAGES, KeptPart, KeptRung, Part, Rung
from hfjax_app.runtime.compiler_events import CompilerCount

FEWEST_STEPS = 3  # of a run that is stopped: the first one is not like the others
FORWARDS = 20  # of a run of the devices part
MOST_LEVELS = 2  # of 255, by which a colour may differ from the rung before, in float32
MOST_MEAN_LEVELS = 4  # of 255, by which colours may differ on average in half precision
_GRACE_S = 300.0  # for calls that can't be interrupted, such as compilations, and for the second run
_MOST_NOTE = 300

# Draws or writes; calls its argument after each step or token.
Run = Callable[[Callable[[], None]], Any]


class Progress(Protocol):
    """Is told what happens."""

    def begin(self, part: Part, rung: Rung, wanted: int) -> None:
        """A rung begins, whose runs make `wanted` tokens, steps or forwards."""

    def made(self, count: int, *, again: bool) -> None:
        """So many are made in the first run, or in the second."""

    def end(self, part: Part, rung: Rung, kept: KeptRung) -> None:
        """A rung has ended."""

    def stuck(self, part: Part, rung: Rung) -> None:
        """A rung does not end, and can't be stopped: the process must end. Called in another thread."""


class _Stopped(Exception):
    """A run was stopped before it was done; holds the tokens that it has made."""

    made: tuple[int, ...] | None = None


class _Run:
    """Times one run of a rung, from here on, and stops it.

    Args:
        compiler: counts compilations.
        made: is told how many steps are made.
        wanted: steps of a whole run.
        limit_s: seconds after which it is stopped, at the end of a step but the first ones; None: none.
        most: steps after which it is stopped; None: none.
    """

    def __init__(
        self,
        compiler: CompilerCount,
        made: Callable[[int], None],
        wanted: int,
        *,
        limit_s: float | None = None,
        most: int | None = None,
    ):
        self._compiler, self._made, self._wanted = compiler, made, wanted
        self._limit_s, self._most = limit_s, most
        self._started, self._compiled_before = time.perf_counter(), compiler.compilations
        self.count = 0
        self.is_stopped = False

    def of(self, run: Run) -> Any:
        """The run's answer; of one that was stopped, the tokens so far, or None."""
        try:
            answer = run(self._step)
        except _Stopped as stopped:
            self.is_stopped, answer = True, stopped.made
        self.seconds = time.perf_counter() - self._started
        self.compiled = self._compiler.compilations - self._compiled_before
        return answer

    def _step(self) -> None:
        self.count += 1
        self._made(self.count)
        late = self._limit_s is not None and time.perf_counter() - self._started > self._limit_s
        # not at the last step: what follows it, such as decoding, belongs to the answer
        if (late and FEWEST_STEPS <= self.count < self._wanted) or self.count == self._most:
            raise _Stopped


class Ladder:
    """Climbs parts of the ladder. Starts jax.

    Args:
        limit_s: seconds that each rung may take; it is stopped after the step in which they are over.
        progress: is told what happens.
    """

    def __init__(self, limit_s: float, progress: Progress):
        self._limit_s, self._progress = limit_s, progress
        self._compiler = CompilerCount()
        self._compiler.start()

    def chat(self, name: str, source: str, tokens: int) -> KeptPart:
        """The text, by the chat model of this source, which is called `name`.

        Raises:
            ModelUnavailable: there is no such model, or no tokenizer.
        """
        from hfjax_app.ladder.chat.task import ChatTask

        task = ChatTask.of(source, tokens)

        def prepared(rung: Rung) -> Run:
            return _text_run(_prepare(rung)(task))

        return self._part(CHAT, name, str(task.dtype), tokens, prepared, task.agrees)

    def devices(self, name: str, source: str) -> KeptPart:
        """A forward of the prompt, on one device and on all of them. Raises as `chat`."""
        from hfjax_app.ladder.chat.task import ChatTask

        task = ChatTask.of(source, FORWARDS)

        def prepared(rung: Rung) -> Run:
            if rung is DEVICES.rungs[-1] and jax.local_device_count() == 1:
                raise ModelUnavailable("skipped: this machine has one device")
            return _text_run(_prepare(rung)(task))

        return self._part(DEVICES, name, str(task.dtype), FORWARDS, prepared, lambda answer: task.agrees(answer[:1]))

    def images(self, name: str, source: str, steps: int) -> KeptPart:
        """The picture, by the pipeline of this source, which is called `name`.

        Raises:
            ModelUnavailable: there is no such pipeline.
        """
        from hfjax_app.ladder.images.task import ImageTask

        task = ImageTask.of(source, steps)
        return self._part(IMAGES, name, str(task.dtype), steps, lambda rung: _prepare(rung)(task))

    def _part(
        self,
        part: Part,
        name: str,
        dtype: str,
        amount: int,
        prepared: Callable[[Rung], Run],
        agrees: Callable[[tuple[int, ...]], bool] | None = None,
    ) -> KeptPart:
        """All rungs of a part; `agrees` judges tokens in half precision, which rounding may change."""
        before: Any = None
        rungs = []
        for rung in part.rungs:
            self._progress.begin(part, rung, amount)
            with self._watched(part, rung), _quiet():
                kept, answer = self._climb(part, rung, amount, prepared)
            if answer is not None:
                if before is not None:
                    kept = kept.model_copy(update=_compared(before, answer, dtype, agrees))
                before = answer
            rungs.append(kept)
            self._progress.end(part, rung, kept)
            gc.collect()  # the rung's weights
            jax.clear_caches()  # the next one compiles its operators itself
        return KeptPart(id=part.id, model=name, dtype=dtype.removeprefix("torch."), amount=amount, rungs=tuple(rungs))

    def _climb(self, part: Part, rung: Rung, wanted: int, prepared: Callable[[Rung], Run]) -> tuple[KeptRung, Any]:
        """Both runs of a rung; its answer, or None where it has none.

        A first run that is stopped is followed by a second one of as many steps, which it has compiled everything for.
        """
        found: dict[str, Any] = {"id": rung.id, "wanted": wanted}
        answer = None
        try:
            told = partial(self._progress.made, again=False)
            first = _Run(self._compiler, told, wanted, limit_s=self._limit_s)
            run = prepared(rung)
            answer = first.of(run)
            found |= {"first_s": first.seconds, "compiled_first": first.compiled, "made": first.count}
            if first.is_stopped:
                found["note"] = f"stopped after {self._limit_s:g} s, {first.count} of {wanted} {part.unit}s"
            most = first.count if first.is_stopped else None
            again = _Run(self._compiler, partial(self._progress.made, again=True), wanted, most=most)
            again.of(run)
            whole = again.seconds * wanted / first.count
            found |= {
                "again_s": whole / rung.users / (wanted if part.is_each else 1),
                "compiled_again": again.compiled,
            }
        except (ModelUnavailable, RequestRejected) as error:
            found["note"] = _note(str(error))
        except Exception as error:  # of any library; the next rung may do
            found["note"] = _note(f"can't run: {type(error).__name__}: {first_line(error)}")
        return KeptRung(**found), answer

    @contextmanager
    def _watched(self, part: Part, rung: Rung) -> Iterator[None]:
        """Tell the progress if the block does not end: a compilation can't be interrupted."""
        timer = threading.Timer(self._limit_s + _GRACE_S, self._progress.stuck, (part, rung))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _prepare(rung: Rung) -> Callable[[Any], Any]:
    prepare: Callable[[Any], Any] = import_module(f"hfjax_app.ladder.{rung.id}").prepare
    return prepare


def _text_run(tokens: Callable[[], Iterator[int]]) -> Run:
    def run(step: Callable[[], None]) -> tuple[int, ...]:
        made = []
        try:
            for token in tokens():
                made.append(token)
                step()
        except _Stopped as stopped:
            stopped.made = tuple(made)
            raise
        return tuple(made)

    return run


def _compared(
    before: Any, answer: Any, dtype: str, agrees: Callable[[tuple[int, ...]], bool] | None = None
) -> dict[str, Any]:
    """The fields `same` and `note` of a rung whose answer follows another."""
    if isinstance(answer, tuple):
        pairs = zip(before, answer, strict=False)  # one of them may have been stopped
        at = next((i for i, (one, other) in enumerate(pairs) if one != other), None)
        if at is None:
            return {"same": True}
        note = f"other tokens than the rung before, from number {at + 1} on"
        if agrees is not None and not dtype.endswith("float32") and agrees(answer):
            return {"same": True, "note": f"{note}: rounding, each of them is within it of float32's choice"}
        return {"same": False, "note": note}
    if answer.shape != before.shape:
        return {"same": False, "note": f"a picture of another shape, {answer.shape} after {before.shape}"}
    levels = 255 * np.abs(answer - before)
    largest = float(levels.max())
    same = largest <= MOST_LEVELS if dtype.endswith("float32") else float(levels.mean()) <= MOST_MEAN_LEVELS
    return {"same": bool(same), "note": f"colours differ from the rung before by {largest:.2g} of 255 at most"}


def _note(text: str) -> str:
    return " ".join(without_folders(text).split())[:_MOST_NOTE]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of torchax, which asks jax for int64 and reads every attribute of a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def versions() -> str:
    """Of what computes, in words."""
    from importlib.metadata import version

    return f"jax {version('jax')}, torchax {version('torchax')}, {os.cpu_count()} processor cores"
