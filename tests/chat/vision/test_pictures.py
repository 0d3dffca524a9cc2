"""Pictures in prompts on real engines: the tokens of the whole model, whatever the cache holds of other pictures."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from hfjax_app.chat import ChatAssistant, ChatEngine, SamplingParams
from hfjax_app.chat.engine.request import Progress
from hfjax_app.chat.memory import estimate_memory
from hfjax_app.chat.plan import ChatPlanner
from hfjax_app.chat.vision.picture import VisionPicture
from hfjax_app.errors import EngineStopped, ModelUnavailable, Overloaded, RequestRejected
from hfjax_app.runtime.checkpoints import int8
from tests.chat.vision.checkpoints import PICTURE_TOKENS, SIDE, answer, checkpoint, drawn
from tests.chat.vision.conftest import OPTIONS, Made
from tests.conftest import quickly_compiled

SIZES = [(40, 30), (30, 40), (48, 27), (27, 48), (33, 32)]  # of all grids, where a model has several


def slow(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


POPULAR = ("gemma4", "lfm2_vl", "mistral3", "qwen3_5", "qwen3_vl")
OTHERS = ("internvl", "llama4", "llava_onevision", "qwen3_5_moe", "qwen3_vl_moe")
ALL = ["gemma3", "smolvlm", "qwen2_5_vl", *map(slow, (*POPULAR, *OTHERS))]
# of 13 tokens before a picture those that another picture's prompt reuses: none where a ring or a state has lost them
REUSED = {"mistral3": 13, "qwen3_vl": 13, "gemma4": 0, "lfm2_vl": 0, "qwen3_5": 0}
ANSWER = SamplingParams(max_tokens=10, temperature=0.0)


def prompt_of(seed: int, lengths: Sequence[int], pictures: Sequence[VisionPicture]) -> list[int]:
    """Texts of these lengths with a picture between any two."""
    rng = random.Random(seed)
    texts = [[rng.randrange(5, 200) for _ in range(length)] for length in lengths]
    prompt = texts[0]
    for picture, text in zip(pictures, texts[1:], strict=True):
        prompt = prompt + [picture.id] * picture.grid.count + text
    return prompt


def shown(engine: ChatEngine, *seeds: int) -> list[VisionPicture]:
    assert engine.vision is not None
    return [engine.vision.picture(drawn(seed, SIZES[seed % len(SIZES)])) for seed in seeds]


@pytest.mark.parametrize("name", ALL)
def test_the_tokens_are_those_of_the_whole_model(
    name: str, made_of: Callable[[str], Made], compilations: Callable[[], AbstractContextManager[list[str]]]
) -> None:
    """One picture and two, after texts that end at, before and after the end of a piece, and at the very beginning."""
    engine, model = made_of(name)
    with compilations() as seen:
        for seed, (lengths, seeds) in enumerate(
            [([11, 9], [1]), ([8, 30], [2]), ([0, 3, 5], [3, 4]), ([70, 1, 20], [5, 5]), ([9, 2, 3, 4], [6, 7, 8])]
        ):
            pictures = shown(engine, *seeds)
            prompt = prompt_of(seed, lengths, pictures)
            made = list(engine.stream(prompt, ANSWER, pictures=pictures))
            assert made == answer(model, prompt, pictures, 10), lengths
        assert not seen


def ask(
    engine: ChatEngine, prompt: list[int], pictures: list[VisionPicture], client: str = ""
) -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were reused."""
    stream = engine.stream(prompt, ANSWER, pictures=pictures, client=client)
    return list(stream), stream.reused_tokens


@pytest.mark.parametrize(
    ("name", "text"),
    [("gemma3", 0), ("smolvlm", 13), ("qwen2_5_vl", 13), *(slow(*each) for each in REUSED.items())],
)
def test_the_same_question_about_two_pictures_by_two_visitors(
    name: str, text: int, made_of: Callable[[str], Made]
) -> None:
    """Placeholders of all pictures are the same token: a prefix of one picture must not be taken for another's. The
    `text` before it is shared where no ring has lost it."""
    engine, model = made_of(name)
    engine._loop.scheduler.slots.forget_all()
    one, other = shown(engine, 11, 16)
    of_one, of_other = (prompt_of(20, [13, 9], [picture]) for picture in (one, other))
    right = [answer(model, prompt, [picture], 10) for prompt, picture in ((of_one, one), (of_other, other))]
    assert right[0] != right[1]
    assert ask(engine, of_one, [one], "a") == (right[0], 0)
    assert ask(engine, of_other, [other], "b") == (right[1], 0), "another visitor shares nothing"
    assert ask(engine, of_other, [other], "a") == (right[1], text)
    assert ask(engine, of_one, [one], "b") == (right[0], text)
    before = engine.stats().prefill_calls
    again = [*of_one, *right[0], 40, 41]
    assert ask(engine, again, [one], "a") == (answer(model, again, [one], 10), len(again) - 3)
    assert engine.stats().prefill_calls == before + 1, "a follow-up reads its own words only"


def test_a_prefix_ends_inside_no_picture(made_of: Callable[[str], Made]) -> None:
    """A ring of 28 positions can give back 16 tokens; a prompt that ends earlier than an old one starts anew."""
    engine, model = made_of("gemma3")
    engine._loop.scheduler.slots.forget_all()
    pictures = shown(engine, 13, 14)
    prompt = prompt_of(21, [5, 6, 30], pictures)
    ask(engine, prompt, pictures)
    for kept in (60, 45, 27, 22):
        shorter = [*prompt[:kept], 33, 34]
        whole = [*prompt[: 5 + PICTURE_TOKENS], 33, 34] if kept < 43 else shorter
        few = pictures[: 1 if kept < 43 else 2]
        assert ask(engine, whole, few)[0] == answer(model, whole, few, 10)


@pytest.mark.parametrize("name", ALL)
def test_a_crowd_gets_the_tokens_of_a_lone_visitor(name: str, made_of: Callable[[str], Made]) -> None:
    """Twelve requests in four slots, some cancelled on their way, with and without pictures."""
    engine, _ = made_of(name)
    rng = random.Random(7)
    asked, alone = [], []
    for seed in range(12):
        pictures = shown(engine, *(rng.randrange(3) for _ in range(seed % 3)))
        prompt = prompt_of(rng.randrange(4), [rng.randrange(1, 40) for _ in range(len(pictures) + 1)], pictures)
        asked.append((prompt, pictures))
        engine._loop.scheduler.slots.forget_all()
        alone.append(ask(engine, prompt, pictures)[0])
    engine._loop.scheduler.slots.forget_all()
    streams = []
    for prompt, pictures in asked:
        ignored = SimpleQueue[Progress]()
        ticket = engine.submit(prompt, ANSWER, ignored.put, pictures=pictures)
        streams.append(engine.stream(prompt, ANSWER, pictures=pictures))
        ticket.cancel()
    assert [list(stream) for stream in streams] == alone


@pytest.mark.parametrize("name", ALL)
def test_a_conversation_goes_on_after_a_stop(name: str, made_of: Callable[[str], Made]) -> None:
    """Before its first token, and in the answer: whatever the cache holds then of the picture is right or not used."""
    engine, model = made_of(name)
    engine._loop.scheduler.slots.forget_all()
    pictures = shown(engine, 18)
    prompt = prompt_of(25, [6, 7], pictures)
    right = answer(model, prompt, pictures, 10)
    for count in (0, 1, 4):
        with engine.stream(prompt, ANSWER, pictures=pictures) as stream:
            begun = [next(stream) for _ in range(count)]
        assert begun == right[:count]
        again = [*prompt, *begun, 40, 41]
        assert ask(engine, again, pictures)[0] == answer(model, again, pictures, 10)


def test_placeholders_are_left_out_of_drafts_and_penalties(made_of: Callable[[str], Made]) -> None:
    engine, _ = made_of("smolvlm")
    assert engine.vision is not None
    engine._loop.scheduler.slots.forget_all()
    pictures = shown(engine, 15)
    prompt = [*prompt_of(22, [6], []), 77, 77, *[pictures[0].id] * PICTURE_TOKENS, 50, 51]
    forced = SamplingParams(max_tokens=12, temperature=0.0, logit_bias={77: 100})
    before = engine.stats()
    assert list(engine.stream(prompt, forced, pictures=pictures)) == [77] * 12
    after = engine.stats()
    drafted = after.drafted_tokens - before.drafted_tokens
    assert 0 < drafted == after.accepted_tokens - before.accepted_tokens, (
        "the picture after the first two 77s is no draft"
    )
    placeholder = engine.vision.markup.placeholder
    one = SamplingParams(max_tokens=1, temperature=0.0, logit_bias={placeholder: 15}, repetition_penalty=10)
    assert list(engine.stream(prompt, one, pictures=pictures)) == [placeholder], "as likely as if it were not there"
    assert list(engine.stream([*prompt_of(22, [6], []), placeholder, 51], one)) != [placeholder]


def test_a_picture_that_is_no_numbers_harms_nobody(made_of: Callable[[str], Made]) -> None:
    engine, model = made_of("gemma3")
    engine._loop.scheduler.slots.forget_all()
    good = shown(engine, 16)
    bad = [VisionPicture(grid=good[0].grid, pixels=np.full_like(good[0].pixels, np.nan))]
    for _ in range(4):  # all slots
        with pytest.raises(EngineStopped, match="not numbers"):
            list(engine.stream(prompt_of(23, [4, 4], bad), ANSWER, pictures=bad))
    prompt = prompt_of(23, [4, 4], good)
    for _ in range(3):
        engine._loop.scheduler.slots.forget_all()
        assert ask(engine, prompt, good)[0] == answer(model, prompt, good, 10)


def test_wrong_places_of_pictures_are_refused(made_of: Callable[[str], Made]) -> None:
    engine, _ = made_of("gemma3")
    pictures = shown(engine, 17)
    prompt = prompt_of(24, [3, 3], pictures)
    for wrong, given, why in [
        (prompt[:-3], pictures, "can't end with a picture"),
        ([*prompt[:5], *prompt[6:]], pictures, "no place of 16 tokens"),
        (prompt, [], "must be a whole number"),
        (prompt, pictures * 2, "no place of 16 tokens"),
        ([-1, *prompt], pictures, "token id -1"),
    ]:
        with pytest.raises(RequestRejected, match=why):
            engine.check(wrong, ANSWER, given)


def test_weights_are_read_only_where_pictures_are_on(tmp_path: Path) -> None:
    """Its memory is part of the estimate, and the plan's is the same."""
    checkpoint("gemma3", tmp_path)
    blind = ChatEngine.from_pretrained(tmp_path, **OPTIONS)
    seeing = ChatEngine.from_pretrained(tmp_path, pictures=True, **OPTIONS)
    assert blind.reads_text_only
    assert not seeing.reads_text_only
    assert seeing.vision is not None
    bytes_of_tower = sum(array.nbytes for array in seeing.vision.weights.values())  # type: ignore[union-attr]
    found = [estimate_memory(engine.runner).weights for engine in (blind, seeing)]
    assert found[1] - found[0] == bytes_of_tower > 0
    names = Counter(spec.name for spec in seeing.runner.specs()) - Counter(spec.name for spec in blind.runner.specs())
    assert names == {f"chat_vision_{SIDE}x{SIDE}": 1, "chat_picture_16_16": 1}
    plan = ChatPlanner(tmp_path, slots=4, context=256, dtype="float32", quantize="none", on_one_cpu=True)
    assert plan.estimate(1).weights == found[1]
    tensors = load_file(tmp_path / "model.safetensors")
    text = {name: tensor for name, tensor in tensors.items() if "vision_tower" not in name}
    save_file(text, tmp_path / "model.safetensors")
    assert ChatEngine.from_pretrained(tmp_path, pictures=True, **OPTIONS).reads_text_only, "files without the tower"


@pytest.mark.parametrize("name", ["qwen2_5_vl", *map(slow, POPULAR)])
def test_with_int8_weights_the_tokens_are_those_of_the_rounded_model(name: str, tmp_path: Path) -> None:
    """The vision tower keeps its weights."""
    model = checkpoint(name, tmp_path)
    with quickly_compiled():
        engine = ChatEngine.from_pretrained(tmp_path, pictures=True, quantize="int8", speculation="never", **OPTIONS)
        engine.start()
    text = {*map(id, model.get_decoder().parameters()), id(model.get_output_embeddings().weight)}
    for name in int8.sources(model):
        weight = model.get_parameter(name)
        if id(weight) in text:
            values, scale = int8.quantize(weight.detach())
            weight.data = values * scale[:, None]
    pictures = shown(engine, 1, 2)
    prompt = prompt_of(3, [5, 7, 9], pictures)
    assert list(engine.stream(prompt, ANSWER, pictures=pictures)) == answer(model, prompt, pictures, 10)
    engine.stop()


def test_text_is_served_before_pictures_are_ready(tmp_path: Path, made_of: Callable[[str], Made]) -> None:
    """Their programs are not among those that an engine starts with, and may fail to compile."""
    engine, _ = made_of("qwen2_5_vl")
    assistant = ChatAssistant(engine)
    assert "It sees pictures: add them to your messages." in assistant.notices
    general = [spec.name for spec in engine.runner.specs() if spec.general]
    assert not [name for name in general if name.startswith(("chat_vision", "chat_picture"))]
    pictures, program = shown(engine, 1), engine.runner.programs.picture.pop((12, 12))
    prompt = prompt_of(3, [5, 7], pictures)
    with pytest.raises(Overloaded, match="pictures are not ready yet, their programs are being compiled"):
        engine.stream(prompt, ANSWER, pictures=pictures)
    assert any("in a few minutes" in notice for notice in assistant.notices)
    engine.warm_up.given_up = "the others can't be compiled"
    with pytest.raises(ModelUnavailable, match="pictures can't be seen here: their programs can't be compiled"):
        engine.stream(prompt, ANSWER, pictures=pictures)
    assert "It can't see pictures here: their programs can't be compiled." in assistant.notices
    engine.warm_up.given_up = ""
    assert len(list(engine.stream(prompt[:5], ANSWER))) == 10
    engine.runner.programs.picture[12, 12] = program
    assert len(list(engine.stream(prompt, ANSWER, pictures=pictures))) == 10


ON_DEVICES = """
import sys
from pathlib import Path
from hfjax_app.chat import ChatEngine
from tests.chat.vision.checkpoints import answer, checkpoint
from tests.chat.vision.conftest import OPTIONS
from tests.chat.vision.test_pictures import ANSWER, prompt_of, shown

model = checkpoint(sys.argv[1], Path(sys.argv[2]))
engine = ChatEngine.from_pretrained(sys.argv[2], pictures=True, **OPTIONS).start()
pictures = shown(engine, 1, 2)
prompt = prompt_of(3, [5, 7, 9], pictures)
assert engine.runner.mesh.size == int(sys.argv[3])
assert list(engine.stream(prompt, ANSWER, pictures=pictures)) == answer(model, prompt, pictures, 10)
engine.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "devices"), [("gemma3", 2), ("smolvlm", 2), *((name, 8) for name in ("qwen2_5_vl", *POPULAR))]
)
def test_several_devices_give_the_tokens_of_the_whole_model(name: str, devices: int, tmp_path: Path) -> None:
    """The tower is whole on each of them; the text part is split."""
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    command = [sys.executable, "-c", ON_DEVICES, name, str(tmp_path), str(devices)]
    root = Path(__file__).parents[3]
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
