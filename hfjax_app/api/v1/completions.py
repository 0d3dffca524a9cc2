"""POST /v1/chat/completions and /v1/completions."""

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from hfjax_app.api.admission import Admission
from hfjax_app.api.chat import ChatApi
from hfjax_app.api.usage import Usage
from hfjax_app.api.v1.choices import EventStream, Replies, answered, finish_reason, now
from hfjax_app.api.v1.conversation import sampling_of, stops_of, turns_of
from hfjax_app.api.v1.schemas import ChatCompletionRequest, CompletionRequest, Sampling
from hfjax_app.backends import Backends
from hfjax_app.client import client_of
from hfjax_app.errors import RequestRejected
from hfjax_app.validation import quoted

if TYPE_CHECKING:
    from hfjax_app.chat import SamplingParams
    from hfjax_app.chat.assistant import ChatAssistant, Reply

Ask = Callable[["SamplingParams"], Replies]


@dataclass(kw_only=True, eq=False)
class _Form:
    """What both routes write.

    Attributes:
        id, created, model: of the object around choices.
        kind: the object's name.
        stream_kind: the same, of events.
        text_of: token ids to text, for logprobs.
        has_logprobs: whether the request asks for them.
    """

    id: str
    created: int
    model: str
    kind: str
    stream_kind: str
    text_of: Callable[[Sequence[int]], str]
    has_logprobs: bool

    def frame(self, choices: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        kind = self.stream_kind if stream else self.kind
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


class ChatForm(_Form):
    """Chat completions: messages, and what a stream adds to them."""

    def whole(self, index: int, replies: "Sequence[Reply]") -> dict[str, Any]:
        last = replies[-1]
        message = {"role": "assistant", "content": last.text, "refusal": None}
        if last.reasoning:
            message["reasoning_content"] = last.reasoning
        logprobs = self._logprobs(replies)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason(last)}

    def first(self, index: int) -> dict[str, Any]:
        return self._delta(index, {"role": "assistant", "content": ""})

    def part(self, index: int, before: "Reply | None", reply: "Reply") -> dict[str, Any] | None:
        delta = {}
        if text := reply.text[len(before.text if before else "") :]:
            delta["content"] = text
        if reasoning := reply.reasoning[len(before.reasoning if before else "") :]:
            delta["reasoning_content"] = reasoning
        logprobs = self._logprobs([reply])
        if not delta and reply.finish_reason is None and not (logprobs and logprobs["content"]):
            return None
        return self._delta(index, delta) | {"logprobs": logprobs, "finish_reason": finish_reason(reply)}

    def _delta(self, index: int, delta: dict[str, str]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, replies: "Sequence[Reply]") -> dict[str, Any] | None:
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


class TextForm(_Form):
    """Completions: plain text."""

    def whole(self, index: int, replies: "Sequence[Reply]") -> dict[str, Any]:
        last = replies[-1]
        return self._choice(index, last.text, replies, finish_reason(last))

    def first(self, index: int) -> None:
        return None

    def part(self, index: int, before: "Reply | None", reply: "Reply") -> dict[str, Any] | None:
        text = reply.text[len(before.text if before else "") :]
        if not text and reply.finish_reason is None:
            return None
        return self._choice(index, text, [reply], finish_reason(reply))

    def _choice(self, index: int, text: str, replies: "Sequence[Reply]", reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self._logprobs(replies), "finish_reason": reason}

    def _logprobs(self, replies: "Sequence[Reply]") -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        found = [pair for reply in replies for pair in zip(reply.new_tokens, reply.new_logprobs, strict=False)]
        return {
            "tokens": [self.text_of([token]) for token, _ in found],
            "token_logprobs": [each.logprob for _, each in found],
            "top_logprobs": [{self.text_of([token]): value for token, value in each.top} for _, each in found],
        }


class Completions:
    """Answers both routes.

    Args:
        backends: the chat models among them.
        admission: of all requests.
        usage: the clients' tokens.
    """

    def __init__(self, backends: Backends, admission: Admission, usage: Usage):
        self._backends, self._admission, self._usage = backends, admission, usage
        self._context = backends.settings.context

    async def chat(self, body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation. `stream` true: as server-sent events."""
        turns, system_prompt = turns_of(body.messages)

        def ask(assistant: "ChatAssistant", client: str) -> Ask:
            stop = stops_of(body)
            return lambda params: assistant.reply(turns, params, system_prompt=system_prompt, stop=stop, client=client)

        form = ChatForm
        return await self._answer(body, request, ask, form, "chatcmpl", "chat.completion", "chat.completion.chunk")

    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """Continue a text, without a chat template. `stream` true: as server-sent events."""
        prompt = body.prompt
        if isinstance(prompt, list) and (len(prompt) != 1 if prompt and isinstance(prompt[0], str) else not prompt):
            raise RequestRejected(f"prompt: a list of {len(prompt)}; send one text, or the token ids of one text")
        one: Any = prompt[0] if isinstance(prompt, list) and isinstance(prompt[0], str) else prompt

        def ask(assistant: "ChatAssistant", client: str) -> Ask:
            return lambda params: assistant.complete(one, params, stop=stops_of(body), client=client)

        return await self._answer(body, request, ask, TextForm, "cmpl", "text_completion", "text_completion")

    async def _answer(
        self,
        body: Sampling,
        request: Request,
        ask: "Callable[[ChatAssistant, str], Ask]",
        form: type[ChatForm] | type[TextForm],
        prefix: str,
        *kinds: str,
    ) -> Response:
        max_tokens = min(256, self._context)
        sampling_of(body, None, max_tokens)  # refuses wrong values also while the model is not ready
        backend = self._backends.chat_models.find(body.model)
        client = client_of(request.scope)
        place = self._admission.enter(client, "chat")
        try:
            assistant = backend.get()
            params = sampling_of(body, assistant, max_tokens)
            if params.max_tokens > self._context:
                raise RequestRejected(f"max_tokens = {quoted(params.max_tokens)}: at most {self._context}, the context")
            api, asked = ChatApi(backend, self._context, self._usage), ask(assistant, client.id)
            choices = [api.counted(asked(each), client) for each in _seeded(params, body.n)]
            written = form(
                id=f"{prefix}-{secrets.token_hex(12)}",
                created=now(),
                model=backend.name,
                kind=kinds[0],
                stream_kind=kinds[1],
                text_of=assistant.detokenize,
                has_logprobs=params.logprobs is not None,
            )
            if not body.stream:
                with place:
                    return JSONResponse(await answered(written, choices, request))
            # The first reply shows whether the request is accepted, while a status can still say so.
            begun = [await _begun(replies) for replies in choices]
            usage = body.stream_options is not None and body.stream_options.include_usage
            return EventStream(written, begun, include_usage=usage, release=place.release)
        except BaseException:
            place.release()
            raise


def _seeded(params: "SamplingParams", count: int) -> "list[SamplingParams]":
    """The parameters of each choice: the first has the request's seed, the others the next ones."""
    if params.seed is None:
        return [params] * count
    return [replace(params, seed=(params.seed + index) % 2**64) for index in range(count)]


async def _begun(replies: Replies) -> Replies:
    """The same replies, of which the first one has come.

    Raises:
        HfjaxError: the request is refused.
    """
    first = await anext(replies)

    async def all_replies() -> "AsyncGenerator[Reply, None]":
        try:
            yield first
            async for reply in replies:
                yield reply
        finally:
            await replies.aclose()

    return all_replies()
