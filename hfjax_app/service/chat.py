"""Chat for every kind of client: a ChatRequest in, replies out; what an answer takes is counted for its client."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from dataclasses import replace

from hfjax_app.backends import Backend
from hfjax_app.backends.backend import Models
from hfjax_app.chat import SamplingParams
from hfjax_app.chat.interface import Answers, ChatModel
from hfjax_app.chat.reply import Reply
from hfjax_app.chat.request import ChatRequest
from hfjax_app.client import Client
from hfjax_app.errors import RequestRejected
from hfjax_app.service.usage import Usage
from hfjax_app.validation import quoted


class ChatService:
    """Answers requests with the chat models.

    Args:
        models: the chat models.
        context: tokens that one slot of an engine holds.
        usage: the clients' tokens.

    Attributes:
        max_tokens: of an answer whose length a client leaves open.
    """

    def __init__(self, models: Models[ChatModel], context: int, usage: Usage):
        self._models, self._context, self._usage = models, context, usage
        self.max_tokens = min(SamplingParams().max_tokens, context)

    def find(self, request: ChatRequest) -> Backend[ChatModel]:
        """The model of a request, which may not be ready.

        Raises:
            NotFound: there is none of its name.
            RequestRejected: an answer could not be as long as the request says.
        """
        longest = request.sampling.max_tokens
        if "max_tokens" not in request.sampling.left_out and longest > self._context:
            raise RequestRejected(f"max tokens = {quoted(longest)}: at most {self._context}, the context")
        return self._models.find(request.model)

    async def reply(self, request: ChatRequest, client: Client) -> AsyncGenerator[Reply, None]:
        """The first answer to a request, as it grows; `ChatAssistant.answers` says how.

        Raises:
            NotFound, RequestRejected: as `find`.
            ModelUnavailable: the model is not ready.
        """
        with closing(await self.find(request).get().answers(request)) as answers, self._count(client) as count:
            async with aclosing(answers.replies[0]) as replies:
                async for reply in replies:
                    count.add(reply)
                    yield reply

    async def answers(self, request: ChatRequest, client: Client) -> Answers:
        """Each answer to a request; the caller closes them. Raises: as `reply`, and what the model refuses."""
        answers = await self.find(request).get().answers(request)
        return replace(answers, replies=[self._counted(each, client) for each in answers.replies])

    async def _counted(self, replies: AsyncGenerator[Reply, None], client: Client) -> AsyncGenerator[Reply, None]:
        with self._count(client) as count:
            async with aclosing(replies):
                async for reply in replies:
                    count.add(reply)
                    yield reply

    def _count(self, client: Client) -> "_Count":
        return _Count(self._usage, client)


class _Count:
    """What one answer takes, as it grows, and at the end of the block its rate."""

    def __init__(self, usage: Usage, client: Client):
        self._usage, self._client = usage, client
        self._came, self._place, self._tokens = time.monotonic(), 1, 0
        self._last: Reply | None = None

    def add(self, reply: Reply) -> None:
        if self._place and not reply.place:
            self._usage.add_wait("slot", time.monotonic() - self._came)
        if reply.tokens and not self._tokens and reply.ttft_s is not None:
            self._usage.began(self._client, reply.prompt_tokens, reply.ttft_s)
        self._usage.add_tokens(self._client, reply.tokens - self._tokens)
        self._place, self._tokens, self._last = reply.place, reply.tokens, reply

    def __enter__(self) -> "_Count":
        return self

    def __exit__(self, *error: object) -> None:
        if self._last is not None:
            self._usage.ended(self._last.tokens_per_s)
