"""The answers of one request: one or several choices, whole or as a stream of events.

`completions.py` gives them a writer of chat completions or of completions.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from hfjax_app.api.http_errors import ClientLeft, as_answer
from hfjax_app.chat.reply import Reply
from hfjax_app.errors import HfjaxError

Replies = AsyncGenerator[Reply, None]
_FINISH = {"context": "length"}  # the others are OpenAI's own words
_HEADERS = {"Cache-Control": "no-cache"}
DONE = "data: [DONE]\n\n"


class ChoiceWriter(Protocol):
    """How a route writes its answers.

    Attributes:
        per_prompt: choices of each prompt, which follow each other.
        is_large: whether a choice has so much that it is written in a thread.
    """

    per_prompt: int
    is_large: bool

    def whole(self, index: int, replies: Sequence[Reply]) -> dict[str, Any]:
        """The choice of all replies to one prompt."""

    def first(self, index: int) -> dict[str, Any] | None:
        """The choice of a stream's first event; None: there is no such event."""

    def part(self, index: int, before: Reply | None, reply: Reply) -> dict[str, Any] | None:
        """The choice of what a reply adds; None: nothing."""

    def frame(self, choices: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        """The object around choices."""

    def tokens_of(self, reply: Reply) -> int:
        """The tokens of an answer that are sent."""


def finish_reason(reply: Reply) -> str | None:
    if reply.finish_reason == "stop" and reply.tool_calls:
        return "tool_calls"
    return None if reply.finish_reason is None else _FINISH.get(reply.finish_reason, reply.finish_reason)


def usage_of(writer: ChoiceWriter, last: Sequence[Reply]) -> dict[str, Any]:
    """OpenAI's usage of the last replies to the choices of one request."""
    prompts = last[:: writer.per_prompt]
    prompt, answer = sum(reply.prompt_tokens for reply in prompts), sum(map(writer.tokens_of, last))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": sum(reply.reused_tokens for reply in prompts)},
    }


async def answered(writer: ChoiceWriter, choices: Sequence[Replies], request: Request) -> dict[str, Any]:
    """The whole answer.

    Raises:
        HfjaxError: what the choices raise.
        ClientLeft: the client has left meanwhile.
    """

    async def all_of(replies: Replies) -> list[Reply]:
        async with aclosing(replies):
            return [reply async for reply in replies]

    tasks = [asyncio.ensure_future(all_of(replies)) for replies in choices]
    made, left = asyncio.gather(*tasks), asyncio.ensure_future(_left(request))
    either: set[asyncio.Future[Any]] = {made, left}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not made.done():
            raise ClientLeft
        found = made.result()
    finally:
        for task in (*tasks, left):
            task.cancel()
        await asyncio.gather(*tasks, *either, return_exceptions=True)

    def written() -> list[dict[str, Any]]:
        return [writer.whole(index, replies) for index, replies in enumerate(found)]

    body = writer.frame(await asyncio.to_thread(written) if writer.is_large else written(), stream=False)
    return body | {"usage": usage_of(writer, [replies[-1] for replies in found])}


async def _left(request: Request) -> None:
    """Returns when the client has left. `is_disconnected`, asked with every token, took a fifth of a request's time."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """The answer as server-sent events.

    Args:
        writer: of the route.
        firsts: the first reply of each answer: it shows whether the request is accepted, while a status can say so.
        choices: the rest of the answers.
        include_usage: whether an event with the usage precedes the end.
        release: called at the end in any case, also where the client leaves before the first event.
    """

    def __init__(
        self,
        writer: ChoiceWriter,
        firsts: Sequence[Reply],
        choices: Sequence[Replies],
        *,
        include_usage: bool,
        release: Callable[[], None],
    ) -> None:
        self._choices, self._release = choices, release
        self._events = _events(writer, firsts, choices, include_usage=include_usage)
        super().__init__(self._events, media_type="text/event-stream", headers=_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
            await self._events.aclose()  # first: what it awaits can't be closed
            for replies in self._choices:
                await replies.aclose()


async def _events(
    writer: ChoiceWriter, firsts: Sequence[Reply], choices: Sequence[Replies], *, include_usage: bool
) -> AsyncGenerator[str, None]:
    """The events; an error becomes an event, and the last one."""
    try:
        last: dict[int, Reply] = {}
        for index in range(len(choices)):
            if (choice := writer.first(index)) is not None:
                yield _event(writer.frame([choice], stream=True))
        async with aclosing(merged(firsts, choices)) as replies:
            async for index, reply in replies:
                before = last.get(index)
                choice = (
                    writer.part(index, before, reply)
                    if not writer.is_large
                    else (await asyncio.to_thread(writer.part, index, before, reply))
                )
                if choice is not None:
                    yield _event(writer.frame([choice], stream=True))
                last[index] = reply
        if include_usage:
            usage = {"usage": usage_of(writer, [last[index] for index in range(len(choices))])}
            yield _event(writer.frame([], stream=True) | usage)
        yield DONE
    except HfjaxError as error:
        _, body, _ = as_answer(error)
        yield _event(body)


async def merged(firsts: Sequence[Reply], choices: Sequence[Replies]) -> AsyncGenerator[tuple[int, Reply], None]:
    """The replies of all choices as they come, each with its index."""
    for index, first in enumerate(firsts):
        yield index, first
    if len(choices) == 1:
        async with aclosing(choices[0]) as replies:
            async for reply in replies:
                yield 0, reply
        return
    inbox: asyncio.Queue[tuple[int, Reply | Exception | None]] = asyncio.Queue(len(choices))

    async def pass_on(index: int, replies: Replies) -> None:
        try:
            async with aclosing(replies):
                async for reply in replies:
                    await inbox.put((index, reply))
            await inbox.put((index, None))
        except Exception as error:
            await inbox.put((index, error))

    tasks = [asyncio.ensure_future(pass_on(index, replies)) for index, replies in enumerate(choices)]
    try:
        running = len(tasks)
        while running:
            index, found = await inbox.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                running -= 1
            else:
                yield index, found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"
