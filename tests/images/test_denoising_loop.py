"""How drawing shares the device: at most two steps at a time are in its queue."""

import threading
from typing import Any

import pytest

from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.denoiser import Denoiser


def test_no_step_waits_behind_another_in_the_devices_queue(
    generator: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two users draw three pictures each: a step is dispatched when the one before is done, or beside one other.

    Calls return before the device is done; a loop that did not wait would queue all steps at once, and a chat's next
    token would come after the last of them.
    """
    dispatched: list[Any] = []
    waiting: list[int] = []
    running: list[Denoiser] = []
    step = Denoiser.__call__

    def watched(denoiser: Denoiser, *args: Any) -> Any:
        waiting.append(len(running) + sum(not clean.is_ready() for clean in dispatched))
        running.append(denoiser)
        state, clean = step(denoiser, *args)
        dispatched.append(clean)
        running.remove(denoiser)
        return state, clean

    monkeypatch.setattr(Denoiser, "__call__", watched)

    def draw(seed: int) -> None:
        for _ in generator.generate(ImageRequest("red dot", steps=5, images=3, seed=seed)):
            pass

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in (1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(waiting) == 30
    assert max(waiting) <= 1
    assert waiting.count(0) >= 20, "at least the first of each two finds the queue empty"
