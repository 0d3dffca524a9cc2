"""The rungs make the same tokens and pixels as transformers and diffusers, and the ladder tells what became of each."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from hfjax_app.errors import ModelUnavailable
from hfjax_app.ladder import chat, images
from hfjax_app.ladder.chat import ChatTask
from hfjax_app.ladder.climb import ConsoleProgress, Ladder, comparison
from hfjax_app.ladder.images import PROMPT, ImageTask
from hfjax_app.ladder_result import CHAT, DEVICES, IMAGES, LadderPart, Rung, RungResult
from tests.chat.conftest import make_model, make_tokenizer
from tests.images.pipelines import stable_diffusion

pytestmark = [
    pytest.mark.usefixtures("quick_compiler"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
ROOT = Path(__file__).parents[2]
TOKENS = 3


@dataclass
class Heard(ConsoleProgress):
    """Keeps what a ladder tells."""

    counts: list[tuple[int, bool]] = field(default_factory=list)
    ended: list[RungResult] = field(default_factory=list)

    def begin(self, part: LadderPart, rung: Rung, wanted: int) -> None:
        assert rung in part.rungs

    def advance(self, count: int, *, again: bool) -> None:
        self.counts.append((count, again))

    def end(self, rung: Rung, result: RungResult) -> None:
        self.ended.append(result)

    def stuck(self, rung: Rung) -> None:
        raise AssertionError(rung)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma with a sliding window, of random weights."""
    folder = tmp_path_factory.mktemp("chat")
    make_model("gemma3").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline")
    stable_diffusion().save_pretrained(folder)
    return folder


def expected(task: ChatTask) -> tuple[int, ...]:
    """What transformers makes."""
    made = task.load().generate(torch.tensor([task.prompt]), max_new_tokens=task.tokens, do_sample=False)
    return tuple(made[0, len(task.prompt) :].tolist())


def test_compiled_rungs_make_the_tokens_of_generate(chat_model: Path) -> None:
    task = ChatTask.of(str(chat_model), 20)
    assert len(task.prompt) > 32, "the sliding window is shorter than the prompt"
    for rung in (chat.one_step, chat.several_steps):
        run = rung(task)
        assert tuple(run()) == tuple(run()) == expected(task)


@pytest.mark.slow
def test_every_rung_of_a_text_makes_the_tokens_of_generate(chat_model: Path) -> None:
    heard = Heard()
    part = Ladder(limit_s=6000, progress=heard).chat("tiny", str(chat_model), TOKENS)
    assert [rung.id for rung in part.rungs] == [rung.id for rung in CHAT.rungs]
    assert tuple(heard.ended) == part.rungs
    assert [rung.note for rung in part.rungs] == [""] * len(CHAT.rungs)
    assert [rung.same for rung in part.rungs] == [None, True, True, True, True]
    assert all((rung.made, rung.wanted) == (TOKENS, TOKENS) for rung in part.rungs)
    assert heard.counts[: 2 * TOKENS] == [(i, again) for again in (False, True) for i in (1, 2, 3)]
    # what is compiled is compiled once
    assert [rung.compiled_again for rung in part.rungs[2:]] == [0, 0, 0]
    assert part.rungs[0].compiled_first > part.rungs[2].compiled_first > 0
    task = ChatTask.of(str(chat_model), TOKENS)
    assert tuple(chat.eager_dynamic(task)()) == expected(task)


def test_a_machine_with_one_device_says_so(chat_model: Path) -> None:
    part = Ladder(limit_s=6000, progress=Heard()).devices("tiny", str(chat_model))
    one, several = part.rungs
    assert one.again_s is not None
    assert one.compiled_again == 0
    assert several.note == "skipped: this machine has one device"
    assert several.first_s is None


@pytest.mark.slow
def test_every_rung_of_a_picture_draws_the_pixels_of_the_pipeline(pipeline: Path) -> None:
    part = Ladder(limit_s=6000, progress=Heard()).images("tiny", str(pipeline), 2)
    assert [rung.id for rung in part.rungs] == [rung.id for rung in IMAGES.rungs]
    assert [rung.same for rung in part.rungs] == [None, True, True, True], part.rungs
    assert all(rung.made == 2 for rung in part.rungs)
    assert part.rungs[-1].compiled_again == 0


class Clock:
    """Stands in for the ladder's `time`; it goes on only when a rung takes its time."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def take(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("hfjax_app.ladder.climb.time", clock)
    return clock


def test_a_rung_is_stopped_at_its_limit_and_the_next_one_runs(
    chat_model: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Rungs of the test's own; the first takes too long for its third token."""
    waits = iter([0, 0, 3])

    def slow(task: ChatTask) -> Callable[[], Iterator[int]]:
        def run() -> Iterator[int]:
            for token in (5, 6, 7, 8):
                clock.take(next(waits, 0))
                yield token

        return run

    monkeypatch.setattr("hfjax_app.ladder.chat.one_device", slow)
    monkeypatch.setattr("hfjax_app.ladder.chat.several_devices", slow)
    monkeypatch.setattr("jax.local_device_count", lambda: 2)
    heard = Heard()
    stopped, whole = Ladder(limit_s=2, progress=heard).devices("tiny", str(chat_model)).rungs
    assert (stopped.made, stopped.wanted, stopped.same) == (3, 20, None)
    assert stopped.note == "stopped after 2 s, 3 of 20 forwards"
    assert stopped.is_stopped
    assert (whole.made, whole.same) == (4, True), "it begins with what the stopped one has made"
    assert heard.counts[:6] == [(i, again) for again in (False, True) for i in (1, 2, 3)], "as many steps again"


def test_a_rung_that_is_late_at_its_last_step_is_not_stopped(
    chat_model: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """What follows a picture's last step was lost, and with it the comparison."""

    def late(task: ChatTask) -> Callable[[], Iterator[int]]:
        def run() -> Iterator[int]:
            yield from range(task.tokens - 1)
            clock.take(0.2)
            yield task.tokens

        return run

    monkeypatch.setattr("hfjax_app.ladder.chat.one_device", late)
    one, _ = Ladder(limit_s=0.1, progress=Heard()).devices("tiny", str(chat_model)).rungs
    assert (one.made, one.note) == (one.wanted, "")


def test_a_rung_with_other_results_is_told(chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rungs of the test's own: the second makes another token, the third can't run, the fourth equals the second."""
    answers = iter([[5, 6, 7], [5, 6, 8], None, [5, 6, 8], [5]])

    def prepare(task: ChatTask) -> Callable[[], Iterator[int]]:
        if (tokens := next(answers)) is None:
            raise ValueError("no lowering in /home/someone/models/x.py")
        return lambda: iter(tokens)

    for rung in CHAT.rungs:
        monkeypatch.setattr(f"hfjax_app.ladder.{rung.id}", prepare)
    part = Ladder(limit_s=600, progress=Heard()).chat("tiny", str(chat_model), TOKENS)
    assert [rung.same for rung in part.rungs] == [None, False, None, True, True]
    assert part.rungs[1].note == "other tokens than the rung before, from number 3 on"
    assert part.rungs[2].note == "can't run: ValueError: no lowering in x.py"


def test_tokens_in_half_precision_are_judged_by_float32(chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rungs of the test's own in bfloat16: generate's tokens, then others, which rounding does not explain."""
    monkeypatch.setattr("hfjax_app.ladder.chat.default_dtype", lambda: torch.bfloat16)
    task = ChatTask.of(str(chat_model), TOKENS)
    right = expected(replace(task, dtype=torch.float32))
    wrong = (*right[:-1], (right[-1] + 1) % 64)
    assert task.agrees(right)
    assert not task.agrees(wrong)
    answers = iter([wrong, right, right, right, wrong])
    for rung in CHAT.rungs:
        monkeypatch.setattr(f"hfjax_app.ladder.{rung.id}", lambda task: partial(iter, next(answers)))
    part = Ladder(limit_s=600, progress=Heard()).chat("tiny", str(chat_model), TOKENS)
    assert [rung.same for rung in part.rungs] == [None, True, True, True, False]
    assert "rounding" in part.rungs[1].note


def test_a_picture_in_half_precision_is_that_of_the_pipeline(pipeline: Path) -> None:
    """Schedulers multiply by float32 scalars, which made the latents of the next step float32."""
    exact = ImageTask.of(str(pipeline), 2)
    task = replace(exact, dtype=torch.bfloat16)

    def theirs(task: ImageTask) -> np.ndarray:
        latents = torch.tensor(task.noise, dtype=task.dtype)
        options = {"num_inference_steps": 2, "guidance_scale": task.guidance_scale, "output_type": "pt"}
        picture: torch.Tensor = task.load()(PROMPT, latents=latents, **options).images[0]
        return picture.float().numpy().transpose(1, 2, 0)

    picture = images.compiled_networks(task)(lambda: None)
    right = theirs(exact)
    assert np.abs(picture - right).mean() < 2 * np.abs(theirs(task) - right).mean()


def test_pictures_may_differ_by_two_levels() -> None:
    black = np.zeros((2, 2, 3), np.float32)
    assert comparison(black, black + 2 / 255, "torch.float32")["same"]
    assert not comparison(black, black + 3 / 255, "torch.float32")["same"]
    assert comparison(black, black + 3 / 255, "torch.bfloat16")["same"]
    assert not comparison(black, np.zeros((4, 4, 3), np.float32), "torch.float32")["same"]


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelUnavailable, match="no-such-model"):
        Ladder(limit_s=600, progress=Heard()).chat("no-such-model", "./no-such-model", TOKENS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_ladder_of_the_embedded_models_on_two_simulated_devices(tmp_path: Path) -> None:
    """The command, in a process of its own. Its time is not judged: the machine may be busy."""
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "HFJAX_CACHE_DIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "hfjax_app", "ladder", "--json", "--seconds", "600", "--tokens", "20"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    kept = json.loads(done.stdout.splitlines()[-1])
    assert kept["device"] == "2 x CPU"
    assert [part["id"] for part in kept["parts"]] == ["chat", "devices", "images"]
    for part in kept["parts"]:
        assert [rung["same"] for rung in part["rungs"]] == [None] + [True] * (len(part["rungs"]) - 1)
    assert json.loads((tmp_path / "ladder.json").read_text()) == kept
    assert len(DEVICES.rungs) == 2
