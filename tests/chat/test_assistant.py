"""The assistant on a real engine: streaming, figures, limits, and slots freed when its generator is closed."""

import asyncio
import contextlib
import selectors
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hfjax_app.chat import ChatAssistant, ChatEngine, EngineOptions, Reply, SamplingParams
from hfjax_app.chat.request import AnswerForm, ChatRequest
from hfjax_app.errors import EngineStopped, ModelUnavailable, RequestRejected

HI = [{"role": "user", "content": "What is the name of the turn?"}]
LONG = SamplingParams(max_tokens=200, temperature=0.0)


async def collect(replies: AsyncIterator[Reply]) -> list[Reply]:
    return [reply async for reply in replies]


def replies_of(
    chat: ChatAssistant, sampling: SamplingParams, messages: list[dict[str, str]] = HI, **options: Any
) -> list[Reply]:
    return asyncio.run(collect(chat.reply(ChatRequest(messages=messages, sampling=sampling, **options))))


class SkippingSelector(selectors.DefaultSelector):
    """For an event loop that never waits for its timers: its clock advances by the time of each wait instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(None if timeout is None else 0)


async def idle(engine: ChatEngine) -> bool:
    for _ in range(60 * 50):
        if engine.stats().busy == engine.stats().waiting == 0:
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.fixture
def chat(engine_of: Callable[[str], ChatEngine]) -> ChatAssistant:
    return ChatAssistant(engine_of("gemma3"))


def test_an_answer_streams_with_its_figures(chat: ChatAssistant, tokenizer: PreTrainedTokenizerFast) -> None:
    replies = replies_of(chat, SamplingParams(max_tokens=30, temperature=0.0))
    prompt = tokenizer.apply_chat_template(HI, add_generation_prompt=True, return_dict=False)
    tokens = chat.engine.generate([prompt], SamplingParams(max_tokens=30, temperature=0.0))[0]
    last = replies[-1]
    assert last.finish_reason == "length"
    assert last.text == tokenizer.decode(tokens, skip_special_tokens=True).rstrip("\N{REPLACEMENT CHARACTER}")
    assert (last.tokens, last.prompt_tokens, last.dropped_messages) == (30, len(prompt), 0)
    assert last.ttft_s > 0
    assert last.tokens_per_s > 0
    counts = [reply.tokens for reply in replies if reply.tokens]
    assert len(set(counts)) >= 3, "it streams: several chunks, not one"
    assert all(later.text.startswith(earlier.text) for earlier, later in pairwise(replies))


def test_an_answer_goes_on_from_its_first_part(chat: ChatAssistant, tokenizer: PreTrainedTokenizerFast) -> None:
    """The prompt ends with that part; its special tokens stay text."""
    params = SamplingParams(max_tokens=30, temperature=0.0)

    def rest(begun: str) -> Reply:
        return replies_of(chat, params, form=AnswerForm(beginning=begun))[-1]

    begun = "The turn is called "
    prompt = tokenizer.apply_chat_template(HI, add_generation_prompt=True, return_dict=False)
    prompt += tokenizer.encode(begun, add_special_tokens=False)
    tokens = chat.engine.generate([prompt], params)[0]
    last = rest(begun)
    assert last.prompt_tokens == len(prompt)
    assert last.text == tokenizer.decode(tokens, skip_special_tokens=True).rstrip("\N{REPLACEMENT CHARACTER}")
    assert rest(tokenizer.eos_token).prompt_tokens > len(prompt) - len(tokenizer.encode(begun)) + 1
    with pytest.raises(RequestRejected, match="answer to go on from of 400,001 characters"):
        rest("a" * 400_001)
    with pytest.raises(RequestRejected, match="no more fit this model's context"):
        rest("one two three " * 5_000)


def test_several_requests_are_answered_at_once_and_the_others_wait(chat: ChatAssistant) -> None:
    async def scenario() -> list[list[Reply]]:
        return await asyncio.gather(*(collect(chat.reply(ChatRequest(messages=HI, sampling=LONG))) for _ in range(7)))

    answers = asyncio.run(scenario())
    assert len({replies[-1].text for replies in answers}) == 1
    assert [replies[-1].finish_reason for replies in answers] == ["length"] * 7


async def reader(chat: ChatAssistant) -> asyncio.Task[None]:
    """A task that reads a long answer and has read some of it."""
    first = asyncio.Event()

    async def read() -> None:
        async for reply in chat.reply(ChatRequest(messages=HI, sampling=LONG)):
            if reply.tokens:
                first.set()

    task = asyncio.create_task(read())
    await first.wait()
    return task


def test_cancelling_the_task_frees_the_slot(chat: ChatAssistant) -> None:
    async def scenario() -> None:
        task = await reader(chat)
        task.cancel()
        assert await idle(chat.engine)

    asyncio.run(scenario())


@pytest.mark.parametrize("ticks", range(8))
def test_a_cancellation_that_arrives_with_new_tokens_takes_effect(ticks: int, chat: ChatAssistant) -> None:
    """`ticks` iterations of the event loop after tokens arrived, the reader was resumed, or its queue, or neither."""

    async def scenario() -> bool | None:
        task = await reader(chat)
        made = chat.engine.stats().tokens
        # Blocks the loop, so that these are not read yet. There may be no more: the answer has ended meanwhile.
        while (stats := chat.engine.stats()).tokens == made and stats.busy:
            time.sleep(0.001)
        for _ in range(ticks):
            await asyncio.sleep(0)
        if not task.cancel():  # the answer had ended
            return None
        await asyncio.wait([task])
        return task.cancelled()

    while (cancelled := asyncio.run(scenario())) is None:
        pass
    assert cancelled


def test_a_queued_reader_gets_a_reply_at_least_twice_a_second(
    model_of: Callable[[str], PreTrainedModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    """The engine has no thread yet, so the request stays queued; the reader still gets replies. Only the loop's timers
    advance the clock, without waiting."""
    engine = ChatEngine(model_of("llama"), tokenizer, EngineOptions(slots=1, context=256))
    engine._loop.alive = True
    chat, clock = ChatAssistant(engine), SkippingSelector()
    loop = asyncio.SelectorEventLoop(clock)
    loop.time = lambda: clock.now

    async def scenario() -> list[Reply]:
        received = []
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(9.9),
                contextlib.aclosing(chat.reply(ChatRequest(messages=HI, sampling=LONG))) as replies,
            ):
                async for reply in replies:
                    received.append(reply)
        return received

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        received = runner.run(scenario())
    assert len(received) >= 2 * 10
    for reply in received:
        assert (reply.place, reply.tokens, reply.ttft_s) == (1, 0, None)


def test_a_stop_string_ends_the_answer_and_frees_the_slot(chat: ChatAssistant) -> None:
    """The string is part of the answer and spans two tokens; no part of it is ever shown."""
    whole = replies_of(chat, LONG)[-1].text
    stop = whole[40:46]
    replies = replies_of(chat, LONG, stop=[stop])
    assert replies[-1].text == whole[: whole.index(stop)]
    assert replies[-1].finish_reason == "stop"
    assert replies[-1].tokens < 200
    assert all(replies[-1].text.startswith(reply.text) for reply in replies)
    assert asyncio.run(idle(chat.engine))
    with pytest.raises(RequestRejected, match="stop of 9 strings"):
        replies_of(chat, LONG, stop=["x"] * 9)


def test_a_possible_start_of_a_stop_string_is_shown_when_the_answer_ends(chat: ChatAssistant) -> None:
    """It is held back until the next token decides, and there is none."""
    whole = replies_of(chat, LONG)[-1].text
    replies = replies_of(chat, LONG, stop=[whole[-2:] + "and more"])
    assert (replies[-1].text, replies[-1].finish_reason) == (whole, "length")
    assert all(whole[:-2].startswith(reply.text) for reply in replies[:-1])


def test_the_next_turn_reports_the_reused_tokens(chat: ChatAssistant) -> None:
    short = SamplingParams(max_tokens=8, temperature=0.0)
    first = replies_of(chat, short)[-1]
    again = replies_of(chat, short)[-1]
    assert again.text == first.text
    assert again.reused_tokens == again.prompt_tokens - 1


def test_dropped_turns_are_reported(chat: ChatAssistant) -> None:
    """A quarter of the context is kept for an answer, or less for a smaller max_tokens; then fewer are dropped."""
    talk = [{"role": role, "content": f"{role} says something"} for _ in range(30) for role in ("user", "assistant")]
    short, long = (
        replies_of(chat, SamplingParams(max_tokens=max_tokens, temperature=0.0), [*talk, *HI])[-1]
        for max_tokens in (5, 200)
    )
    assert 0 < short.dropped_messages < long.dropped_messages
    assert short.prompt_tokens <= chat.engine.context - 5
    assert long.prompt_tokens <= chat.engine.context * 3 // 4
    assert (short.tokens, long.tokens) == (5, min(200, chat.engine.context - long.prompt_tokens))


@pytest.mark.parametrize(
    ("messages", "system_prompt", "max_tokens", "says"),
    [
        ([], "", 5, "not empty"),
        ([{"role": "user", "content": "the name " * 2000}], "", 5, "message of .* tokens"),
        (HI, "x" * 20_001, 5, "system prompt of 20,001 characters"),
        (HI, "\ud800", 5, "system prompt is not valid Unicode"),
        (HI, 7, 5, "system prompt: must be text, not int"),
        (HI, "", 10**6, "max tokens = 1000000: at most 256"),
    ],
)
def test_bad_input_is_rejected_and_costs_nothing(
    messages: list, system_prompt: str, max_tokens: int, says: str, chat: ChatAssistant
) -> None:
    before = chat.engine.stats()
    with pytest.raises(RequestRejected, match=says):
        replies_of(chat, SamplingParams(max_tokens=max_tokens), messages=messages, system_prompt=system_prompt)
    assert chat.engine.stats() == before


def test_a_stopped_engine_and_a_missing_tokenizer_raise_an_error(
    model_of: Callable[[str], PreTrainedModel], tokenizer: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(ModelUnavailable, match="no tokenizer"):
        ChatAssistant(ChatEngine(model_of("llama"), options=EngineOptions(context=64)))
    chat = ChatAssistant(ChatEngine(model_of("llama"), tokenizer, EngineOptions(context=64)))
    with pytest.raises(EngineStopped, match="not running"):
        replies_of(chat, SamplingParams(max_tokens=5))
