"""Sizes of which no program is compiled yet: what a request for one waits for, and what it costs others."""

import threading
from collections.abc import Callable

import pytest
from PIL import Image

from hfjax_app.errors import ModelUnavailable
from hfjax_app.images import ImageGenerator, ImageRequest, ImageStep, Waiting
from hfjax_app.images.programs import DiffusionPrograms, SizedPrograms
from hfjax_app.limits import IMAGE_WARM_SIZES, IMAGES_SERVED_TOGETHER
from tests.conftest import HANG_S


class Compiler:
    """Stands in for `sized` of a generator's programs: a compilation waits until it may end, and then fails or begins.

    Args:
        generator: which compiles through it from now on.
        monkeypatch: undoes that.
        is_real: whether a compilation is made in the end.

    Attributes:
        begun: the sizes, in order.
    """

    def __init__(self, generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch, *, is_real: bool):
        self._own, self._sized, self._is_real = generator.facts.size, generator._programs.sized, is_real
        self._is_busy, self._may_end = threading.Event(), threading.Event()
        self.begun: list[tuple[int, int]] = []
        monkeypatch.setattr(generator._programs, "sized", self._compile)

    def wait_until_busy(self) -> None:
        assert self._is_busy.wait(HANG_S)

    def may_end(self) -> None:
        self._may_end.set()

    def _compile(self, size: tuple[int, int]) -> SizedPrograms:
        if size != self._own:
            self.begun.append(size)
            self._is_busy.set()
            assert self._may_end.wait(HANG_S)
            if not self._is_real:
                raise ModelUnavailable("the test compiles nothing")
        return self._sized(size)


def compiler_threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("image-compiler")


def test_another_size_compiles_once_and_says_so(
    generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch, compilations: Callable
) -> None:
    """A size that is not warm is compiled and yields Waiting; afterwards it is warm. A request that is closed meanwhile
    does not wait, and its programs are there when the same size is asked for again."""
    before = generator.warm_sizes
    compiler = Compiler(generator, monkeypatch, is_real=True)
    options = {"width": 48, "height": 32, "steps": 2, "seed": 1}
    cancelled = generator.generate(ImageRequest("red dot", **options))
    assert next(cancelled).reason.startswith("48 x 32 compiles about ")
    compiler.wait_until_busy()
    cancelled.close()
    assert generator.warm_sizes == before
    request = generator.generate(ImageRequest("red dot", **options))
    first = next(request)
    with compilations() as seen:
        compiler.may_end()
        drawn = [first, *request]
    waiting, steps = [w for w in drawn if isinstance(w, Waiting)], [s for s in drawn if isinstance(s, ImageStep)]
    assert seen
    assert all(w.reason.startswith("48 x 32 compiles about ") for w in waiting)
    assert waiting
    assert {step.previews[0].size for step in steps} == {(48, 32)}
    assert generator.warm_sizes == (*before, (48, 32))
    with compilations() as seen:
        steps = list(generator.generate(ImageRequest("blue", image=Image.new("RGB", (32, 32), "red"), **options)))
    assert [type(step) for step in steps] == [ImageStep], "of two steps at a strength of 0.8 one is left"
    assert seen == []


def test_another_size_s_estimate_is_the_first_size_s_compile_time(generator: ImageGenerator) -> None:
    """Without the time in which programs waited for the compiler while other models warmed up."""
    programs = generator._programs
    own = [report for report in programs.reports if not report.name.startswith("encode_prompt")][:6]
    rows = {"denoise_row", "denoise_follow", "denoise_long_row", "denoise_long_follow"}
    assert {report.name for report in own} == {*rows, "decode_latents", "encode_picture"}
    assert programs.compile_seconds((2048, 2048)) == pytest.approx(sum(report.seconds + report.saved for report in own))
    assert programs.compile_seconds(programs.size) == 0


def test_a_size_without_a_waiting_request_is_not_compiled(
    generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each size of a request that was closed had a thread and was compiled: many such requests kept the processor busy
    for hours, past the limit on requests that are served together."""
    compiler = Compiler(generator, monkeypatch, is_real=False)
    first = generator.generate(ImageRequest("red dot", width=64, height=32, steps=1))
    next(first)
    compiler.wait_until_busy()
    first.close()
    for height in (32, 40, 48, 56):
        for _ in range(5):
            given_up = generator.generate(ImageRequest("red dot", width=40, height=height, steps=1))
            next(given_up)
            given_up.close()
    waiting = generator.generate(ImageRequest("red dot", width=32, height=64, steps=1))
    next(waiting)
    assert compiler_threads() == 1
    compiler.may_end()
    with pytest.raises(ModelUnavailable, match="compiles nothing"):
        list(waiting)
    assert compiler.begun == [(64, 32), (32, 64)]


def test_sizes_that_are_asked_for_again_stay_warm(make_pipeline: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest size was dropped although it was in use: eight sizes that were used once displaced a popular one."""
    monkeypatch.setattr(SizedPrograms, "specs", lambda *_, **__: [])  # nothing is compiled
    programs = DiffusionPrograms(make_pipeline())
    sizes = [(40 + 8 * i, 32) for i in range(IMAGE_WARM_SIZES + 1)]
    for size in sizes:
        programs.sized(size)
        programs.sized(sizes[0])
    assert programs.offered_sizes == (programs.size, sizes[0], *sizes[2:])


def test_a_request_that_waits_for_another_size_takes_no_place_in_the_queue(
    generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four requests for new sizes kept all others in the queue until the last size was compiled."""
    compiler = Compiler(generator, monkeypatch, is_real=False)
    waiting = [
        generator.generate(ImageRequest("a", width=32 + 8 * i, height=64, steps=1))
        for i in range(1, IMAGES_SERVED_TOGETHER + 1)
    ]
    assert all("compiles about" in next(each).reason for each in waiting)
    assert isinstance(next(generator.generate(ImageRequest("a", steps=1))), ImageStep)
    for each in waiting[1:]:
        each.close()
    compiler.may_end()
    with pytest.raises(ModelUnavailable, match="compiles nothing"):
        list(waiting[0])
