"""The chat endpoint: a conversation in, a streamed answer out. The chat tab asks through the same object."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from hfjax_app.api.concurrency import Concurrency
from hfjax_app.api.gradio_errors import streamed
from hfjax_app.api.usage import Usage
from hfjax_app.backends import Backends
from hfjax_app.backends.models import Models
from hfjax_app.chat import SamplingParams
from hfjax_app.client import Client, sender
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_AT_ONCE, CHAT_MAX_CHARACTERS
from hfjax_app.validation import checked_text, quoted

if TYPE_CHECKING:
    from hfjax_app.chat.interface import ChatModel
    from hfjax_app.chat.reply import Reply

# For every event that asks the chat model for an answer.
EVENT: Concurrency = {"concurrency_id": "chat", "concurrency_limit": CHAT_AT_ONCE}
_ONLY_OF_V1 = ("new_tokens", "new_logprobs", "tool_calls")
_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed", "min_p", "repetition_penalty")


class ChatApi:
    """Answers conversations.

    Args:
        models: the chat models.
        context: tokens that one slot of the engine holds, and so the upper bound of an answer.
        usage: the clients' tokens.
    """

    def __init__(self, models: "Models[ChatModel]", context: int, usage: Usage):
        self._models, self._context, self._usage = models, context, usage
        self.max_tokens = min(SamplingParams().max_tokens, context)

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
        options = (max_tokens, temperature, top_p, top_k, seed, min_p, repetition_penalty)
        replies = self.replies(messages, system_prompt, *options, stop=() if stop is None else stop, model=model)
        async with aclosing(replies):
            async for reply in replies:
                yield {name: value for name, value in asdict(reply).items() if name not in _ONLY_OF_V1}

    def check_chat(self, messages: Any, system_prompt: Any, max_tokens: Any, *options: Any) -> None:
        """Raise RequestRejected for values that /chat refuses, before the request is queued; tokenizes nothing.

        Args:
            messages, system_prompt, max_tokens: as for `chat`.
            options: the other arguments of `chat`, in its order.
        """
        from hfjax_app.chat.text.messages import checked_messages
        from hfjax_app.chat.text.stop_strings import checked_stop

        *sampling, stop, model = options
        params = SamplingParams(**_given((max_tokens, *sampling)))
        if max_tokens is not None and params.max_tokens > self._context:
            raise RequestRejected(f"max tokens = {quoted(max_tokens)}: at most {self._context}, the context")
        self._models.find(model)
        checked_messages(messages)
        checked_text(system_prompt, "system prompt", CHAT_MAX_CHARACTERS, may_be_blank=True)
        checked_stop(() if stop is None else stop)

    def replies(
        self, messages: Any, system_prompt: Any, *options: Any, stop: Any = (), model: Any = None, begun: str = ""
    ) -> "AsyncGenerator[Reply, None]":
        """The answer as it grows. Every value is what a client sent, of any type.

        Args:
            messages: the conversation, as `ChatAssistant.reply` takes it.
            system_prompt: instructions ahead of the conversation.
            options: max tokens, temperature, top-p, top-k, seed, min-p and repetition penalty; None: the default.
            stop: the strings that end the answer.
            model: the name of the model; None: the first one.
            begun: the first part of the answer, which the replies leave out.

        Raises:
            RequestRejected: a parameter is wrong (at once), or the messages are (with the first reply).
            NotFound: there is no such model.
            ModelUnavailable: the model is not ready.
        """
        from hfjax_app.chat.text.answer_form import AnswerForm

        given = _given(options)
        SamplingParams(**given)  # refuses a wrong value also while the model is not ready
        assistant = self._models.find(model).get()
        params = replace(assistant.recommended, **{"max_tokens": self.max_tokens, **given})
        options_of_reply = {"system_prompt": system_prompt, "stop": stop, "client": sender().id}
        replies = assistant.reply(messages, params, **options_of_reply, form=AnswerForm(begun=begun))
        return self.counted(replies, sender())

    async def counted(self, replies: "AsyncGenerator[Reply, None]", client: Client) -> "AsyncGenerator[Reply, None]":
        """The replies, with the tokens that they took counted for the client."""
        made, place, came = 0, 1, time.monotonic()
        last: Reply | None = None
        try:
            async with aclosing(replies):
                async for last in replies:
                    if place and not last.place:
                        self._usage.waited("slot", time.monotonic() - came)
                    place = last.place
                    if last.tokens and not made and last.ttft_s is not None:
                        self._usage.began(client, last.prompt_tokens, last.ttft_s)
                    self._usage.made(client, last.tokens - made)
                    made = last.tokens
                    yield last
        finally:
            if last is not None:
                self._usage.ended(last.tokens_per_s)


def _given(options: Sequence[Any]) -> dict[str, Any]:
    """The sampling parameters that are not None, by name."""
    return {name: value for name, value in zip(_SAMPLING, options, strict=True) if value is not None}


def register(backends: Backends, usage: Usage) -> ChatApi:
    api = ChatApi(backends.chat_models, backends.settings.context, usage)
    gr.api(api.chat, api_name="chat", **EVENT)
    return api
