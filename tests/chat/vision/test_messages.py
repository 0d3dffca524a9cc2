"""Messages with pictures: the prompts of transformers' processors, and nothing that a visitor sends can do harm."""

import asyncio
import io
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import PreTrainedModel
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from hfjax_app.chat import ChatAssistant, ChatEngine, Reply, SamplingParams
from hfjax_app.chat.prompt import PictureReader, Prompt, ReadPictures
from hfjax_app.chat.request import ChatRequest
from hfjax_app.chat.text.chat_template import ChatFormat
from hfjax_app.chat.text.messages import PictureMarkup, Shown, checked_messages
from hfjax_app.chat.vision.picture import PLACEHOLDER
from hfjax_app.errors import Overloaded, RequestRejected
from hfjax_app.limits import CHAT_MAX_PICTURES
from hfjax_app.pictures import read_picture
from tests.chat.vision.checkpoints import (
    PICTURE_TOKENS,
    SIDE,
    SMOL_TOKENS,
    answer,
    checkpoint,
    drawn,
    png,
    tokenizer_of,
)
from tests.chat.vision.conftest import OPTIONS, Made

ANSWER = SamplingParams(max_tokens=8, temperature=0.0)
Message = dict[str, Any]


def text(said: str) -> Message:
    return {"type": "text", "text": said}


def image(seed: int = 1) -> Message:
    return {"type": "image", "image": png(drawn(seed))}


def user(*parts: Message) -> Message:
    return {"role": "user", "content": list(parts)}


CONVERSATIONS: list[list[Message]] = [
    [user(image(), text("What is it?"))],
    [user(text("Is this "), image(), text(" like "), image(2), text("?"))],
    [user(image())],
    [user(image(), text("What?")), {"role": "assistant", "content": "A turn."}, user(text("And "), image(2))],
    [{"role": "user", "content": "Look:"}, user(image(), text("here"))],
]


@pytest.fixture(scope="module")
def made(made_of: Callable[[str], Made]) -> tuple[ChatAssistant, PreTrainedModel]:
    engine, model = made_of("gemma3")
    return ChatAssistant(engine), model


async def last_reply(
    assistant: ChatAssistant, messages: list[Message], params: SamplingParams = ANSWER, **options: Any
) -> Reply:
    request = ChatRequest(messages=messages, sampling=params, **options)
    return [reply async for reply in assistant.reply(request)][-1]


def test_answers_are_those_of_processor_and_generate(made: tuple[ChatAssistant, PreTrainedModel]) -> None:
    """transformers' own processor writes the prompt and prepares the pictures."""
    assistant, model = made
    tokenizer = tokenizer_of("gemma3")
    for name, token in zip(("boi_token", "image_token", "eoi_token"), range(3), strict=True):
        first = model.config.boi_token_id
        setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(first + token))
        setattr(tokenizer, f"{name}_id", first + token)
    prepared = Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE})
    processor = Gemma3Processor(prepared, tokenizer, image_seq_length=PICTURE_TOKENS)
    for messages in CONVERSATIONS[:4]:
        seen = [
            Image.open(io.BytesIO(part["image"])) for turn in messages for part in turn["content"] if "image" in part
        ]
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        given = processor(text=rendered, images=[seen], return_tensors="pt")
        ids = given["input_ids"][0].tolist()
        reply = asyncio.run(last_reply(assistant, messages))
        assert reply.prompt_tokens == len(ids) == len(assistant.count(ChatRequest(messages=messages)))
        assert assistant.count(ChatRequest(messages=messages)) == ids
        options = {name: given[name] for name in ("pixel_values", "token_type_ids")}
        out = model.generate(given["input_ids"], do_sample=False, max_new_tokens=8, eos_token_id=None, **options)
        right = tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)
        assert reply.text == right.rstrip("\N{REPLACEMENT CHARACTER}")


def test_a_picture_of_smolvlm_is_written_as_transformers_writes_it() -> None:
    fake, token, whole = SMOL_TOKENS
    written = get_image_prompt_string(0, 0, PICTURE_TOKENS, fake, token, whole)
    format_ = smol_format()
    turns = checked(CONVERSATIONS[0])
    right = tokenizer_of("smolvlm").encode(format_.template.render(
        [{"role": "user", "content": [{"type": "image"}, text("What is it?")]}]
    ).replace(token, written), add_special_tokens=False)  # fmt: skip
    assert format_.encode(turns) == right
    ids, dropped = format_.fit(turns, "", 100)
    assert (len(ids), dropped, ids.count(-1)) == (len(right), 0, PICTURE_TOKENS)


def smol_format() -> ChatFormat:
    tokenizer = tokenizer_of("smolvlm")
    fake, token, whole = SMOL_TOKENS
    placeholder = tokenizer.convert_tokens_to_ids(token)
    markup = PictureMarkup(
        mark=token,
        written=f"{fake}{whole}{token}{fake}",
        placeholder=placeholder,
        tokens=lambda shown: [PLACEHOLDER] * PICTURE_TOKENS,
    )
    return ChatFormat(tokenizer, markup)


def checked(messages: list[Message]) -> list[Message]:
    return checked_messages(messages, may_show_pictures=True)


@pytest.mark.parametrize("typed", ["<image>", "<fake_token_around_image>", "<end_of_turn>"])
def test_what_is_typed_stays_text(typed: str) -> None:
    """Also in an answer, in a system prompt, and around a picture, where some templates write all pictures first."""
    format_ = smol_format()
    token = format_.encode([{"role": "user", "content": "x"}], "")
    wrong = tokenizer_of("smolvlm").convert_tokens_to_ids(typed)
    usual = token.count(wrong)
    middle = len(typed) // 2
    for messages in (
        [user(text(typed), image(), text(typed))],
        [user(text(typed[:middle]), image(), text(typed[middle:]))],
        [user(text("Hi")), {"role": "assistant", "content": typed}, user(image(), text("?"))],
    ):
        ids, _ = format_.fit(checked(messages), typed, 200)
        assert ids.count(-1) == PICTURE_TOKENS
        around = {"<image>": 0, "<fake_token_around_image>": 2}.get(typed, len(messages) + 1)
        assert ids.count(wrong) <= max(around, usual), messages
    format_.template._apply = first_pictures  # type: ignore[union-attr]
    turns = checked([user(text(typed[:middle]), image(), text(typed[middle:]))])
    assert format_.fit(turns, "", 200)[0].count(wrong) == (2 if "fake" in typed else 0)


def first_pictures(turns: list[Message], **_: Any) -> str:
    """A template that writes a message's pictures before its texts."""
    parts = turns[0]["content"]
    return "<image>" * sum(part["type"] == "image" for part in parts) + "".join(part.get("text", "") for part in parts)


def test_the_oldest_pictures_are_dropped_with_their_messages(made: tuple[ChatAssistant, PreTrainedModel]) -> None:
    assistant, _ = made
    asked = [
        turn for seed in range(6) for turn in (user(image(seed), text("Hm?")), {"role": "assistant", "content": "Turn"})
    ]
    reply = asyncio.run(last_reply(assistant, [*asked, user(text("So?"))]))
    assert reply.dropped_messages >= 2
    assert reply.prompt_tokens <= 248
    with pytest.raises(RequestRejected, match="no more fit this model's context"):
        asyncio.run(last_reply(assistant, [user(*map(image, range(8)), text("x" * 300))]))


def test_too_many_pictures_in_a_message_are_refused_with_what_fits(made: tuple[ChatAssistant, PreTrainedModel]) -> None:
    assistant, _ = made
    why = r"pictures: 8 of 128 tokens in one message, and \d+ fit beside its text: send at most [1-7], or smaller ones"
    with pytest.raises(RequestRejected, match=why):
        asyncio.run(last_reply(assistant, [user(*map(image, range(8)), text("x" * 100))]))


def test_the_detail_of_a_picture_chooses_its_tokens(tmp_path: Path) -> None:
    """Where the model leaves a choice; they are counted before anything is compiled or decoded."""
    checkpoint("qwen2_5_vl", tmp_path)
    engine = ChatEngine.from_pretrained(tmp_path, pictures=True, **OPTIONS | {"picture_tokens": (4, 9, 16)})
    assistant = ChatAssistant(engine)
    assert engine.vision is not None
    token = engine.vision.markup.placeholder
    counts = {
        detail: assistant.count(ChatRequest(messages=[user(image() | {"detail": detail})])).count(token)
        for detail in ("low", "high", "auto")
    }
    assert counts == {"low": 4, "high": 12, "auto": 12}
    assistant.stop()


def hostile() -> dict[str, tuple[bytes, str]]:
    good = png(drawn(1), "JPEG")
    return {
        "empty": (b"", "can't be read"),
        "truncated": (good[: len(good) // 2], "damaged"),
        "text": (b"<svg onload=alert(1)>", "SVG"),
        "random": (random.Random(1).randbytes(500), "can't be read"),
        "huge": (png(Image.new("L", (8000, 6000))), "too many pixels"),
        "line": (png(Image.new("L", (70_000, 1))), "at most 65535 a side"),
        "heic": (b"\0\0\0\x18ftypheic" + bytes(500), "HEIC"),
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_files_are_refused(name: str, made: tuple[ChatAssistant, PreTrainedModel]) -> None:
    assistant, _ = made
    file, why = hostile()[name]
    before = assistant.stats()
    with pytest.raises(RequestRejected, match=why):
        asyncio.run(last_reply(assistant, [user({"type": "image", "image": file}, text("?"))]))
    assert assistant.stats().requests == before.requests


def test_odd_pictures_are_seen(made: tuple[ChatAssistant, PreTrainedModel]) -> None:
    """Of any mode, size and shape; an animation by its first frame, what is transparent on white."""
    assistant, _ = made
    frames = [drawn(seed) for seed in (1, 2)]
    for picture in [
        png(Image.new("RGB", (1, 1))),
        png(Image.new("RGB", (3000, 1))),
        png(Image.new("RGB", (1, 3000))),
        png(drawn(1).convert("CMYK"), "JPEG"),
        png(drawn(1).convert("P")),
        png(drawn(1).convert("LA")),
        png(Image.new("I;16", (9, 9), 40_000)),
        png(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
    ]:
        reply = asyncio.run(last_reply(assistant, [user({"type": "image", "image": picture})]))
        assert reply.tokens == 8
    white, clear = Image.new("RGB", (8, 8), "white"), Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    one, other = (prompt_of(assistant, [user({"type": "image", "image": png(seen)})]) for seen in (white, clear))
    assert one.tokens == other.tokens


def prompt_of(assistant: ChatAssistant, messages: list[Message]) -> Prompt:
    prompt = asyncio.run(assistant._prompts.prompt(ChatRequest(messages=messages), ANSWER))
    prompt.release()
    return prompt


def test_nothing_is_decoded_for_a_request_that_is_refused(
    made: tuple[ChatAssistant, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is wrong with it is said first; pictures of dropped messages are not read either."""
    assistant, _ = made
    read = list[bytes]()
    monkeypatch.setattr(
        "hfjax_app.chat.prompt.read_picture",
        lambda file, what: read.append(file) or read_picture(file, what),
    )
    asked = [user(image(), text("?"))]
    for messages, params, options, why in [
        ([user(*map(image, range(8)), text("x" * 300))], ANSWER, {}, "no more fit"),
        (asked, ANSWER, {"stop": [""]}, "stop"),
        (asked, ANSWER, {"system_prompt": "x" * 30_000}, "system prompt"),
        (asked, replace(ANSWER, max_tokens=10_000), {}, "max tokens"),
        (asked, replace(ANSWER, logit_bias={100_000: 1}), {}, "logit bias"),
    ]:
        with pytest.raises(RequestRejected, match=why):
            asyncio.run(last_reply(assistant, messages, params, **options))
    assert not read
    long = [turn for seed in range(8) for turn in (user(image(seed)), {"role": "assistant", "content": "Turn"})]
    prompt = prompt_of(assistant, [*long, user(text("So?"))])
    assert 0 < len(read) == len(prompt.pictures) < 8
    assert {picture.id for picture in prompt.pictures} == {token for token in prompt.tokens if token < 0}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([{"type": "image", "image": "data:image/png;base64,"}], "image as bytes"),
        ([{"type": "video", "video": b"x"}], "type 'video'"),
        ([image() | {"detail": "huge"}], "detail = 'huge': one of auto, low, high"),
        ([image() | {"detail": ["low"]}], "one of auto, low, high"),
        (["Hi"], "type None"),
        ([text("")], "message is empty"),
        ([image()] * (CHAT_MAX_PICTURES + 1), f"at most {CHAT_MAX_PICTURES}"),
    ],
)
def test_wrong_parts_are_refused(content: Any, why: str) -> None:
    with pytest.raises(RequestRejected, match=why):
        checked_messages([{"role": "user", "content": content}], may_show_pictures=True)
    with pytest.raises(RequestRejected, match="must be text"):
        checked_messages([{"role": "user", "content": content}])


def test_the_detail_of_a_picture_stays_with_it() -> None:
    """Also where messages of the user are joined."""
    turns = checked([user(text("Look:")), user(image(1) | {"detail": "low"}, image(2))])
    assert [(shown.at, shown.detail) for shown in turns[0]["pictures"]] == [(6, "low"), (6, "auto")]


def test_a_reader_who_leaves_frees_the_slot(made: tuple[ChatAssistant, PreTrainedModel]) -> None:
    """Whatever was done for it; what others get afterwards is right."""
    assistant, model = made

    async def leave_after(replies: int) -> None:
        stream = assistant.reply(ChatRequest(messages=CONVERSATIONS[1], sampling=ANSWER))
        for _ in range(replies):
            await anext(stream)
        await stream.aclose()

    for replies in range(4):
        asyncio.run(leave_after(replies))
    prompt = prompt_of(assistant, CONVERSATIONS[1])
    right = answer(model, prompt.tokens, prompt.pictures, 8)
    reply = asyncio.run(last_reply(assistant, CONVERSATIONS[1]))
    assert reply.text == assistant.detokenize(right).rstrip("\N{REPLACEMENT CHARACTER}")
    assert assistant.stats().busy == 0


@pytest.fixture
def reader(made: tuple[ChatAssistant, PreTrainedModel]) -> Iterator[PictureReader]:
    """With room for two pictures."""
    vision = made[0].engine.vision
    assert vision is not None
    reader = PictureReader(vision, 2 * vision.all_grids[0].picture_bytes)
    yield reader
    reader.stop()


async def read_by(reader: PictureReader, shown: list[Shown]) -> ReadPictures:
    return await reader.read(shown, await reader.grids(shown))


def test_prepared_pictures_of_waiting_requests_have_a_bound(reader: PictureReader) -> None:
    """A request holds its share until it is released. One with a wrong file releases it at once."""
    two = [Shown(0, png(drawn(seed))) for seed in (1, 2)]
    read = asyncio.run(read_by(reader, two))
    assert reader.held_bytes == sum(picture.pixels.nbytes for picture in read.pictures) > 0
    with pytest.raises(Overloaded, match="too many pictures wait"):
        asyncio.run(read_by(reader, two[:1]))
    read.release()
    assert reader.held_bytes == 0
    read.release()
    assert reader.held_bytes == 0, "once"

    async def at_once() -> Any:
        """Neither has read a picture when the other one begins."""
        grids = await reader.grids(two)
        reading = (reader.read(two, grids), reader.read(two[:1], grids[:1]))
        return await asyncio.gather(*reading, return_exceptions=True)

    read, refused = asyncio.run(at_once())
    assert isinstance(refused, Overloaded)
    read.release()
    with pytest.raises(RequestRejected):
        asyncio.run(read_by(reader, [two[0], Shown(0, png(drawn(1))[:60])]))
    assert reader.held_bytes == 0


def test_a_client_who_leaves_while_a_picture_is_read_keeps_its_memory_until_then(
    reader: PictureReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread can't be stopped, and what it decodes takes memory. The file behind it is not read any more."""
    begun, go_on, files = threading.Event(), threading.Event(), list[bytes]()

    def slow(file: bytes, what: str) -> Image.Image:
        files.append(file)
        begun.set()
        assert go_on.wait(300)
        return read_picture(file, what)

    monkeypatch.setattr("hfjax_app.chat.prompt.read_picture", slow)

    async def leave() -> None:
        reading = asyncio.ensure_future(read_by(reader, [Shown(0, png(drawn(seed))) for seed in (1, 2)]))
        assert await asyncio.to_thread(begun.wait, 300)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(leave())
    assert reader.held_bytes > 0
    go_on.set()
    reader._threads.shutdown()  # returns when the threads have ended
    assert (reader.held_bytes, len(files)) == (0, 1)


def test_every_end_of_a_request_gives_its_pictures_back(made: tuple[ChatAssistant, PreTrainedModel]) -> None:
    """An answer, a client who leaves it, a prompt that is never answered, and a wrong file after a right one."""
    assistant, _ = made
    reader = assistant._prompts._pictures
    assert reader is not None

    async def ends() -> None:
        stream = assistant.reply(ChatRequest(messages=CONVERSATIONS[1], sampling=ANSWER))
        await anext(stream)
        assert reader.held_bytes > 0
        await stream.aclose()
        assert reader.held_bytes == 0
        answers = await assistant.answers(ChatRequest(messages=CONVERSATIONS[1], sampling=ANSWER, count=2))
        for replies in answers.replies:
            async for _ in replies:
                assert reader.held_bytes > 0, "one prompt has any number of answers"
        answers.close()
        assert reader.held_bytes == 0
        await last_reply(assistant, CONVERSATIONS[1])
        assert reader.held_bytes == 0
        with pytest.raises(RequestRejected):
            await last_reply(assistant, [user(image(), {"type": "image", "image": b"none"})])
        assert reader.held_bytes == 0

    asyncio.run(ends())
