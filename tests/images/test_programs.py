"""Sizes of which no program is compiled yet: what a request for one waits for, and what it costs others."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from hfjax_app.images import ImageGenerator, ImageRequest, ImageStep, Waiting
from hfjax_app.images.programs import DiffusionPrograms, SizedPrograms
from hfjax_app.limits import IMAGE_WARM_SIZES, IMAGES_SERVED_TOGETHER
from hfjax_app.runtime.programs import Programs


def test_another_size_compiles_once_and_says_so(generator: ImageGenerator, compilations: Callable) -> None:
    """A size that is not warm is compiled and yields Waiting; afterwards it is warm."""
    before = generator.warm_sizes
    options = {"width": 48, "height": 32, "steps": 2, "seed": 1}
    with compilations() as seen:
        drawn = list(generator.generate(ImageRequest("red dot", **options)))
    waiting, steps = [w for w in drawn if isinstance(w, Waiting)], [s for s in drawn if isinstance(s, ImageStep)]
    assert seen
    assert all(w.reason.startswith("48 x 32 compiles about ") for w in waiting)
    assert waiting
    assert {step.previews[0].size for step in steps} == {(48, 32)}
    assert generator.warm_sizes == (*before, (48, 32))
    with compilations() as seen:
        steps = list(generator.generate(ImageRequest("blue", image=Image.new("RGB", (32, 32), "red"), **options)))
    assert len(steps) == 1, "of two steps at a strength of 0.8 one is left"
    assert seen == []


def test_another_size_s_estimate_is_the_first_size_s_compile_time(make_pipeline: Callable) -> None:
    """Without the time in which programs waited for the compiler while other models warmed up."""
    programs = Programs()
    made = DiffusionPrograms(make_pipeline(), programs=programs)
    made.start()
    own = [report for report in programs.reports if not report.name.startswith("encode_prompt")]
    assert len(own) == 4
    assert made.compile_seconds((48, 32)) == pytest.approx(sum(report.seconds + report.saved for report in own))
    assert made.compile_seconds(made.size) == 0


def test_a_cancelled_request_does_not_wait_for_a_compilation(generator: ImageGenerator, compilations: Callable) -> None:
    """The generator closes while the programs compile; they are there when the same size is asked for again."""
    options = {"width": 32, "height": 56, "steps": 1, "seed": 1}
    first = generator.generate(ImageRequest("red dot", **options))
    assert "32 x 56 compiles" in next(first).reason
    first.close()
    assert (32, 56) not in generator.warm_sizes
    list(generator.generate(ImageRequest("blue", **options)))
    with compilations() as seen:
        assert [type(step) for step in generator.generate(ImageRequest("blue", **options))] == [ImageStep]
    assert seen == []


def test_a_size_without_a_waiting_request_is_not_compiled(
    generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each size of a request that was closed had a thread and was compiled: many such requests kept the processor busy
    for hours, past the limit on requests that are served together."""
    begun, is_busy, may_end = [], threading.Event(), threading.Event()
    sized = generator._programs.sized

    def slowly(size: tuple[int, int], **options: Any) -> SizedPrograms:
        if size == generator.facts.size:
            return sized(size, **options)
        begun.append(size)
        is_busy.set()
        assert may_end.wait(30)
        return sized(size)

    monkeypatch.setattr(generator._programs, "sized", slowly)
    first = generator.generate(ImageRequest("red dot", width=64, height=32, steps=1))
    next(first)
    assert is_busy.wait(30)
    first.close()
    threads = threading.active_count()
    for height in (32, 40, 48, 56):
        for _ in range(5):
            given_up = generator.generate(ImageRequest("red dot", width=40, height=height, steps=1))
            next(given_up)
            given_up.close()
    waiting = generator.generate(ImageRequest("red dot", width=32, height=64, steps=1))
    next(waiting)
    assert threading.active_count() == threads
    may_end.set()
    assert [type(step) for step in waiting][-1] is ImageStep
    assert begun == [(64, 32), (32, 64)]


def test_sizes_that_are_asked_for_again_stay_warm(make_pipeline: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest size was dropped although it was in use: eight sizes that were used once displaced a popular one."""
    programs = DiffusionPrograms(make_pipeline())
    programs.start()
    made = programs.sized(programs.size)
    monkeypatch.setattr(made, "specs", list)  # nothing more to compile
    monkeypatch.setattr("hfjax_app.images.programs.SizedPrograms", lambda *args, **options: made)
    sizes = [(40 + 8 * i, 32) for i in range(IMAGE_WARM_SIZES + 1)]
    for size in sizes:
        programs.sized(size)
        programs.sized(sizes[0])
    assert programs.warm_sizes == (programs.size, sizes[0], *sizes[2:])


def test_a_request_that_waits_for_another_size_takes_no_place_in_the_queue(generator: ImageGenerator) -> None:
    """Four requests for new sizes kept all others in the queue until the last size was compiled. No other test may use
    these sizes before."""
    waiting = [
        generator.generate(ImageRequest("a", width=32 + 8 * i, height=64, steps=1))
        for i in range(1, IMAGES_SERVED_TOGETHER + 1)
    ]
    assert all("compiles about" in next(each).reason for each in waiting)
    assert isinstance(next(generator.generate(ImageRequest("a", steps=1))), ImageStep)
    for each in waiting[1:]:
        each.close()
    assert isinstance([*waiting[0]][-1], ImageStep), "so that nothing is compiled during the next test"
