"""POST /v1/chat/completions and /v1/completions."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from hfjax_app.api.v1.choices import EventStream, Replies, answered, finish_reason
from hfjax_app.api.v1.conversation import request_of_chat, requests_of_texts
from hfjax_app.api.v1.schemas import ChatCompletionRequest, CompletionRequest, Sampling
from hfjax_app.chat.reply import Reply
from hfjax_app.chat.request import ChatRequest
from hfjax_app.chat.sampling.logprobs import TokenLogprobs
from hfjax_app.chat.text.tools import ToolCall
from hfjax_app.client import client_of
from hfjax_app.service.service import Service


@dataclass(kw_only=True, eq=False)
class _Form:
    """What both routes write.

    Attributes:
        prefix: of ids.
        kind, stream_kind: the name of the object around choices, and of an event's.
        model: the model's name.
        text_of: token ids to text, for logprobs.
        has_logprobs: whether the request asks for them.
        per_prompt: choices of each prompt.
    """

    prefix: ClassVar[str]
    kind: ClassVar[str]
    stream_kind: ClassVar[str]

    model: str
    text_of: Callable[[Sequence[int]], str]
    has_logprobs: bool
    per_prompt: int = 1
    is_large: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._id, self._created = f"{self.prefix}-{secrets.token_hex(12)}", int(time.time())

    def tokens_of(self, reply: Reply) -> int:
        return reply.tokens

    def frame(self, choices: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        kind = self.stream_kind if stream else self.kind
        return {"id": self._id, "object": kind, "created": self._created, "model": self.model, "choices": choices}


class ChatForm(_Form):
    """Chat completions: messages, and what a stream adds to them."""

    prefix, kind, stream_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def whole(self, index: int, replies: Sequence[Reply]) -> dict[str, Any]:
        last = replies[-1]
        message: dict[str, Any] = {"role": "assistant", "content": last.text, "refusal": None}
        if last.tool_calls:
            message |= {"content": last.text or None, "tool_calls": [*map(_call, last.tool_calls)]}
        if last.reasoning:
            message["reasoning_content"] = last.reasoning
        logprobs = self._logprobs(replies)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason(last)}

    def first(self, index: int) -> dict[str, Any]:
        return self._delta(index, {"role": "assistant", "content": ""})

    def part(self, index: int, before: Reply | None, reply: Reply) -> dict[str, Any] | None:
        delta: dict[str, Any] = {}
        if text := reply.text[len(before.text if before else "") :]:
            delta["content"] = text
        if reasoning := reply.reasoning[len(before.reasoning if before else "") :]:
            delta["reasoning_content"] = reasoning
        known = len(before.tool_calls) if before else 0
        if calls := reply.tool_calls[known:]:
            delta["tool_calls"] = [{"index": at} | _call(call) for at, call in enumerate(calls, known)]
        logprobs = self._logprobs([reply])
        if not delta and reply.finish_reason is None and not (logprobs and logprobs["content"]):
            return None
        return self._delta(index, delta) | {"logprobs": logprobs, "finish_reason": finish_reason(reply)}

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, replies: Sequence[Reply]) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        content = [
            self._token(token, found.logprob) | {"top_logprobs": [self._token(*top) for top in found.top]}
            for reply in replies
            for token, found in zip(reply.new_tokens, reply.new_logprobs, strict=False)
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.text_of([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


@dataclass(kw_only=True, eq=False)
class TextForm(_Form):
    """Completions: plain text.

    Attributes:
        echoed: the prompts that stand before their answers; empty: none does.
        answers: whether the answers are sent, and not their prompts alone.
    """

    prefix, kind, stream_kind = "cmpl", "text_completion", "text_completion"

    echoed: Sequence[str] = ()
    answers: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ends: dict[int, int] = {}  # of the texts of tokens so far, by choice
        self._texts: dict[int, str] = {}  # by token

    @property
    def is_large(self) -> bool:  # type: ignore[override]
        """Log-probabilities of whole prompts are."""
        return self.has_logprobs and bool(self.echoed)

    def tokens_of(self, reply: Reply) -> int:
        return reply.tokens if self.answers else 0

    def whole(self, index: int, replies: Sequence[Reply]) -> dict[str, Any]:
        last = replies[-1]
        return self._choice(index, self._text(index, last.text), replies, finish_reason(last))

    def first(self, index: int) -> None:
        return None

    def part(self, index: int, before: Reply | None, reply: Reply) -> dict[str, Any] | None:
        text = self._text(index, reply.text) if before is None else reply.text[len(before.text) :] * self.answers
        choice = self._choice(index, text, [reply], finish_reason(reply))
        has_logprobs = choice["logprobs"] is not None and choice["logprobs"]["tokens"]
        return choice if text or reply.finish_reason is not None or has_logprobs else None

    def _text(self, index: int, answer: str) -> str:
        before = self.echoed[index // self.per_prompt] if self.echoed else ""
        return before + answer if self.answers else before

    def _choice(self, index: int, text: str, replies: Sequence[Reply], reason: str | None) -> dict[str, Any]:
        logprobs = self._logprobs(index, replies)
        reason = "length" if reason is not None and not self.answers else reason
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, index: int, replies: Sequence[Reply]) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        found: list[tuple[int, TokenLogprobs | None]] = []
        for reply in replies:
            found += zip(reply.prompt, (None, *reply.prompt_logprobs), strict=False)
            if self.answers:
                found += zip(reply.new_tokens, reply.new_logprobs, strict=False)
        texts = [self._token(token) for token, _ in found]
        *offsets, end = accumulate(map(len, texts), initial=self._ends.get(index, 0))
        self._ends[index] = end
        return {
            "tokens": texts,
            "token_logprobs": [None if each is None else each.logprob for _, each in found],
            "top_logprobs": [
                None if each is None else {self._token(token): value for token, value in each.top} for _, each in found
            ],
            "text_offset": offsets,
        }

    def _token(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self.text_of([token])
        return self._texts[token]


class Completions:
    """Answers both routes.

    Args:
        service: of chat, with its admission.
    """

    def __init__(self, service: Service):
        self._chat, self._admission = service.chat, service.admission

    async def chat(self, body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation. `stream` true: as server-sent events."""
        client = client_of(request.scope)
        return await self._answer(body, [request_of_chat(body, client.id)], request, ChatForm)

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """Continue a text, or each of several, without a chat template. `stream` true: as server-sent events."""
        client = client_of(request.scope)
        prompts = requests_of_texts(body, client.id)
        form: Callable[..., _Form] = TextForm
        if body.echo:
            model = self._chat.find(prompts[0]).get()
            echoed = [
                prompt.text
                if isinstance(prompt.text, str)
                else await asyncio.to_thread(model.detokenize, prompt.text or ())
                for prompt in prompts
            ]
            form = partial(TextForm, echoed=echoed, answers=body.max_tokens != 0)
        return await self._answer(body, prompts, request, form)

    async def _answer(
        self, body: Sampling, prompts: Sequence[ChatRequest], request: Request, form: Callable[..., Any]
    ) -> Response:
        client, backend = client_of(request.scope), self._chat.find(prompts[0])
        held, choices = ExitStack(), list[Replies]()
        try:
            for _ in prompts:
                held.callback(self._admission.enter(client, "chat", backend).release)
            for prompt in prompts:
                answers = await self._chat.answers(prompt, client)
                held.callback(answers.close)
                choices += answers.replies
            written = form(
                model=backend.name,
                text_of=backend.get().detokenize,
                has_logprobs=prompts[0].sampling.logprobs is not None,
                per_prompt=body.n,
            )
            if not body.stream:
                with held:
                    return JSONResponse(await answered(written, choices, request))
            firsts = [await anext(replies) for replies in choices]
            usage = body.stream_options is not None and body.stream_options.include_usage
            return EventStream(written, firsts, choices, include_usage=usage, release=held.close)
        except BaseException:
            held.close()
            for replies in choices:
                await replies.aclose()
            raise
