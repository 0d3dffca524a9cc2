"""The chat endpoint of Gradio's API: a conversation in, a streamed answer out."""

import inspect
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import Concurrency, streamed
from hfjax_app.chat import SamplingParams
from hfjax_app.chat.request import ChatRequest
from hfjax_app.client import sender
from hfjax_app.limits import CHAT_AT_ONCE
from hfjax_app.service.chat import ChatService
from hfjax_app.service.service import Service

# For every event that asks the chat model for an answer.
EVENT: Concurrency = {"concurrency_id": "chat", "concurrency_limit": CHAT_AT_ONCE}
_ONLY_OF_V1 = ("new_tokens", "new_logprobs", "tool_calls")


class ChatApi:
    """Answers /chat.

    Args:
        service: of chat.
    """

    def __init__(self, service: ChatService):
        self._service = service

    @streamed
    async def chat(
        self,
        messages: list[dict[str, str]],
        system_prompt: str = "",
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        stop: list[str] | None = None,
        model: str | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Answer a conversation: messages are {"role": "user" or "assistant", "content": text}, the last one the
        user's. Streams the answer so far with its speed; the last one has a finish_reason. The answer ends before
        the first of the strings in `stop`. `max_tokens` null: as the tab has it; any other null: as the model's
        generation_config recommends, or the tab's value. `model`: one of /v1/models; null: the first."""
        request = _request(
            messages,
            system_prompt,
            stop,
            model,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
        )
        async with aclosing(self._service.reply(request, sender())) as replies:
            async for reply in replies:
                yield {name: value for name, value in asdict(reply).items() if name not in _ONLY_OF_V1}

    def check_chat(self, *values: Any) -> None:
        """Raise RequestRejected for values that /chat refuses, before the request is queued; tokenizes nothing.

        Args:
            values: the arguments of `chat`, in its order.
        """
        self._service.find(_request(**inspect.signature(self.chat).bind(*values).arguments))


def _request(
    messages: Any, system_prompt: Any = "", stop: Any = None, model: Any = None, **sampling: Any
) -> ChatRequest:
    return ChatRequest(
        messages=messages,
        system_prompt=system_prompt,
        sampling=SamplingParams.from_options(sampling),
        stop=() if stop is None else stop,
        model=model,
        client=sender().id,
    )


def register(service: Service) -> None:
    api = ChatApi(service.chat)
    gr.api(api.chat, api_name="chat", **EVENT)
