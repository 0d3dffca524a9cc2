"""`hfjax ladder`: runs the rungs of a part in order, times them, and compares each result with that of the rung before.

A rung runs twice. The first run has all that a first answer waits for: loading onto the device, tracing, compiling. The
second one is what it costs from then on. A rung that fails or takes too long is told about, and the next one runs.
"""

import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Never

import jax
import numpy as np
from tqdm import tqdm

from hfjax_app.embedded import resolve
from hfjax_app.errors import ModelUnavailable, RequestRejected, first_line, without_folders
from hfjax_app.ladder.chat import ChatTask
from hfjax_app.ladder_result import (
    CHAT,
    DEVICES,
    IMAGES,
    LadderPart,
    LadderResult,
    PartResult,
    Rung,
    RungResult,
    in_words,
    keep,
)
from hfjax_app.runtime.compiler_events import CompilerCount
from hfjax_app.runtime.mesh import devices_in_words
from hfjax_app.runtime.process import cache_folder, prepare

FEWEST_STEPS = 3  # of a run that is stopped: the first one is not like the others
FORWARDS = 20  # of a run of the devices part
MOST_LEVELS = 2  # of 255, by which a colour may differ from the rung before, in float32
MOST_MEAN_LEVELS = 4  # of 255, by which colours may differ on average in half precision
_GRACE_S = 300.0  # for calls that can't be interrupted, such as compilations, and for the second run
_MOST_NOTE = 300
_TITLE = 34  # characters of a rung's line in the terminal

# Draws or writes; calls its argument after each step or token.
Run = Callable[[Callable[[], None]], Any]


class ConsoleProgress:
    """A bar on stderr while a rung runs, a line on stdout when it has ended.

    Args:
        on_stuck: called before the process ends because a rung can't be stopped.
    """

    def __init__(self, on_stuck: Callable[[], None] = lambda: None):
        self._bar: tqdm[Never] | None = None
        self._part = ""
        self._first_s: float | None = None
        self._on_stuck = on_stuck

    def begin(self, part: LadderPart, rung: Rung, wanted: int) -> None:
        """A rung begins, whose runs make `wanted` tokens, steps or forwards."""
        if part.id != self._part:
            self._part, self._first_s = part.id, None
            print(f"\n{part.title}, {wanted} {part.unit}s", flush=True)
        self._bar = tqdm(desc=f"  {rung.title}", total=wanted, unit=part.unit, leave=False, disable=False)

    def advance(self, count: int, *, again: bool) -> None:
        """The first run, or the second, has made so many."""
        if (bar := self._bar) is not None:
            if again and count == 1:
                bar.reset()
            bar.update(count - bar.n)

    def end(self, rung: Rung, result: RungResult) -> None:
        """A rung has ended."""
        if self._bar is not None:
            self._bar.close()
        print(self._line(result, f"  {rung.title:{_TITLE}}"), flush=True)

    def _line(self, result: RungResult, title: str) -> str:
        if result.first_s is None or result.again_s is None:
            return f"{title}{result.note}"
        self._first_s = result.again_s if self._first_s is None else self._first_s
        over, about = (">", "~") if result.is_stopped else ("", "")
        first = f"first {over + in_words(result.first_s):>9} ({result.compiled_first:,} compiled)"
        again = f"again {about + in_words(result.again_s):>9} ({result.compiled_again:,} compiled)"
        faster = f"{self._first_s / max(result.again_s, 1e-9):.3g}x"
        wrong = "" if result.same is not False else "  WRONG:"
        note = f"{wrong} {result.note}" if result.note else ""
        return f"{title}{first:36}{again:34}{faster:>7} {note}".rstrip()

    def stuck(self, rung: Rung) -> None:
        """A rung does not end and can't be stopped: the process must end. Called in another thread."""
        self._on_stuck()
        print(
            f"\nerror: {rung.title}: it took too long and can't be stopped; --only runs another part", file=sys.stderr
        )
        sys.stderr.flush()
        os._exit(1)


class _Stopped(Exception):
    """A run was stopped before it was done, after these tokens."""

    tokens: tuple[int, ...] | None = None


class _Timing:
    """The seconds, steps and compilations of one run of a rung, which begins now and is stopped at a limit.

    Args:
        compiler: counts compilations.
        advance: is told how many steps are made.
        wanted: steps of a whole run.
        limit_s: seconds after which it is stopped, at the end of a step but the first ones; None: none.
        most: steps after which it is stopped; None: none.
    """

    def __init__(
        self,
        compiler: CompilerCount,
        advance: Callable[[int], None],
        wanted: int,
        *,
        limit_s: float | None = None,
        most: int | None = None,
    ):
        self._compiler, self._advance, self._wanted = compiler, advance, wanted
        self._limit_s, self._most = limit_s, most
        self._started, self._compiled_before = time.perf_counter(), compiler.compilations
        self.count = 0
        self.is_stopped = False

    def of(self, run: Run) -> Any:
        """The run's answer; of one that was stopped, the tokens so far, or None."""
        try:
            answer = run(self._step)
        except _Stopped as stopped:
            self.is_stopped, answer = True, stopped.tokens
        self.seconds = time.perf_counter() - self._started
        self.compiled = self._compiler.compilations - self._compiled_before
        return answer

    def _step(self) -> None:
        self.count += 1
        self._advance(self.count)
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

    def __init__(self, limit_s: float, progress: ConsoleProgress):
        self._limit_s, self._progress = limit_s, progress
        self._compiler = CompilerCount()
        self._compiler.start()

    def chat(self, name: str, source: str, tokens: int) -> PartResult:
        """The text, by the chat model of this source, which is called `name`.

        Raises:
            ModelUnavailable: there is no such model, or no tokenizer.
        """
        task = ChatTask.of(source, tokens)

        def prepared(rung: Rung) -> Run:
            return _text_run(_function(rung)(task))

        return self._part(CHAT, name, str(task.dtype), tokens, prepared, task.agrees)

    def devices(self, name: str, source: str) -> PartResult:
        """A forward of the prompt, on one device and on all of them. Raises as `chat`."""
        task = ChatTask.of(source, FORWARDS)

        def prepared(rung: Rung) -> Run:
            if rung is DEVICES.rungs[-1] and jax.local_device_count() == 1:
                raise ModelUnavailable("skipped: this machine has one device")
            return _text_run(_function(rung)(task))

        return self._part(DEVICES, name, str(task.dtype), FORWARDS, prepared, lambda answer: task.agrees(answer[:1]))

    def images(self, name: str, source: str, steps: int) -> PartResult:
        """The picture, by the pipeline of this source, which is called `name`.

        Raises:
            ModelUnavailable: there is no such pipeline.
        """
        from hfjax_app.ladder.images import ImageTask  # diffusers, which the other parts don't need

        task = ImageTask.of(source, steps)
        return self._part(IMAGES, name, str(task.dtype), steps, lambda rung: _function(rung)(task))

    def _part(
        self,
        part: LadderPart,
        name: str,
        dtype: str,
        amount: int,
        prepared: Callable[[Rung], Run],
        agrees: Callable[[tuple[int, ...]], bool] | None = None,
    ) -> PartResult:
        """All rungs of a part; `agrees` judges tokens in half precision, which rounding may change."""
        before: Any = None
        rungs = []
        for rung in part.rungs:
            self._progress.begin(part, rung, amount)
            with self._watched(rung), _quiet():
                result, answer = self._climb(part, rung, amount, prepared)
            if answer is not None:
                if before is not None:
                    result = result.model_copy(update=comparison(before, answer, dtype, agrees))
                before = answer
            rungs.append(result)
            self._progress.end(rung, result)
            gc.collect()  # the rung's weights
            jax.clear_caches()  # the next one compiles its operators itself
        return PartResult(id=part.id, model=name, dtype=dtype.removeprefix("torch."), amount=amount, rungs=tuple(rungs))

    def _climb(
        self, part: LadderPart, rung: Rung, wanted: int, prepared: Callable[[Rung], Run]
    ) -> tuple[RungResult, Any]:
        """Both runs of a rung; its answer, or None where it has none.

        A first run that is stopped is followed by a second one of as many steps, which it has compiled everything for.
        """
        fields: dict[str, Any] = {"id": rung.id, "wanted": wanted}
        answer = None
        try:
            advance = partial(self._progress.advance, again=False)
            first = _Timing(self._compiler, advance, wanted, limit_s=self._limit_s)
            run = prepared(rung)
            answer = first.of(run)
            fields |= {"first_s": first.seconds, "compiled_first": first.compiled, "made": first.count}
            if first.is_stopped:
                fields["note"] = f"stopped after {self._limit_s:g} s, {first.count} of {wanted} {part.unit}s"
            most = first.count if first.is_stopped else None
            again = _Timing(self._compiler, partial(self._progress.advance, again=True), wanted, most=most)
            again.of(run)
            whole = again.seconds * wanted / first.count
            fields |= {
                "again_s": whole / rung.users / (wanted if part.per_unit else 1),
                "compiled_again": again.compiled,
            }
        except (ModelUnavailable, RequestRejected) as error:
            fields["note"] = _note(str(error))
        except Exception as error:  # of any library; the next rung may do
            fields["note"] = _note(f"can't run: {type(error).__name__}: {first_line(error)}")
        return RungResult(**fields), answer

    @contextmanager
    def _watched(self, rung: Rung) -> Iterator[None]:
        """Tell the progress if the block does not end: a compilation can't be interrupted."""
        timer = threading.Timer(self._limit_s + _GRACE_S, self._progress.stuck, (rung,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _function(rung: Rung) -> Callable[[Any], Any]:
    module, _, name = rung.id.partition(".")
    function: Callable[[Any], Any] = getattr(import_module(f"hfjax_app.ladder.{module}"), name)
    return function


def _text_run(tokens: Callable[[], Iterator[int]]) -> Run:
    def run(step: Callable[[], None]) -> tuple[int, ...]:
        answer = []
        try:
            for token in tokens():
                answer.append(token)
                step()
        except _Stopped as stopped:
            stopped.tokens = tuple(answer)
            raise
        return tuple(answer)

    return run


def comparison(
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


def climb(
    parts: Sequence[str],
    *,
    chat: str,
    images: str,
    tokens: int,
    steps: int,
    seconds: float,
    folder: Path | None = None,
) -> LadderResult:
    """Run parts of the ladder in this process, print them, and keep the result in the cache folder.

    Args:
        parts: ids of `PARTS`.
        chat, images: an embedded model's name, a folder, or a hub id.
        tokens: of the text.
        steps: denoising steps of the picture.
        seconds: that each rung may take.
        folder: the cache folder; None: as `prepare`.

    Raises:
        ModelUnavailable: a model can't be loaded, or a rung has other results than the one before; all rungs have run.
    """
    prepare(folder)
    kept_in = cache_folder()
    jax.config.update("jax_enable_compilation_cache", False)  # every rung compiles what it needs
    done: list[PartResult] = []

    def result() -> LadderResult:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        versions = f"jax {version('jax')}, torchax {version('torchax')}, {os.cpu_count()} processor cores"
        return LadderResult(at=at, device=devices_in_words(), versions=versions, parts=tuple(done))

    def keep_result() -> None:
        if kept_in is not None and done:
            keep(kept_in, result())

    ladder = Ladder(seconds, ConsoleProgress(on_stuck=keep_result))
    for part in parts:
        match part:
            case "chat":
                done.append(ladder.chat(_name(chat), resolve(chat), tokens))
            case "devices":
                done.append(ladder.devices(_name(chat), resolve(chat)))
            case "images":
                done.append(ladder.images(_name(images), resolve(images), steps))
        keep_result()
    wrong = [rung.id for part in done for rung in part.rungs if rung.same is False]
    if wrong:
        raise ModelUnavailable(f"other results than the rung before: {', '.join(wrong)}")
    return result()


def _name(model: str) -> str:
    """A model's name without its folder."""
    return Path(model).resolve().name if Path(model).is_dir() else model
