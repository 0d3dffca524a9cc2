"""OpenAI's bodies -> ChatRequest."""

from collections.abc import Sequence
from typing import Any

from hfjax_app.api.v1.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    Message,
    NamedTool,
    Part,
    Sampling,
)
from hfjax_app.chat import SamplingParams
from hfjax_app.chat.request import ChatRequest
from hfjax_app.chat.text.answer_form import AnswerForm
from hfjax_app.chat.text.answer_grammar import AnswerGrammar
from hfjax_app.chat.text.tools import checked_tools
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_PICTURES
from hfjax_app.validation import quoted

_SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "max_tokens",
)


_OF_TOOLS = ("tool_calls", "tool_call_id")


def turns_of(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], str]:
    """The conversation, and the system prompt: the system messages at its beginning.

    Raises:
        RequestRejected: a system message stands later, where templates have no place for it; or a part of a message
            is none that is taken.
    """
    first = next((at for at, message in enumerate(messages) if not _is_system(message)), len(messages))
    if any(map(_is_system, messages[first:])):
        raise RequestRejected("messages: a system message must come before the conversation")
    turns, pictures = [], sum(part.image_url is not None for message in messages for part in _parts(message))
    if pictures > CHAT_MAX_PICTURES:  # before any is decoded
        raise RequestRejected(f"messages with {pictures} pictures: at most {CHAT_MAX_PICTURES}; leave out the oldest")
    for message in messages[first:]:
        turn: dict[str, Any] = {"role": str(message.role), "content": _content(message)}
        if message.reasoning_content is not None:
            turn["reasoning"] = message.reasoning_content
        turns.append(turn | {name: value for name in _OF_TOOLS if (value := getattr(message, name)) is not None})
    return turns, "\n".join(_text(message) for message in messages[:first])


def request_of_chat(body: ChatCompletionRequest, client: str) -> ChatRequest:
    """A chat completion. Raises: as `ChatRequest`, `form_of` and `_sampling`."""
    turns, system_prompt = turns_of(body.messages)
    return ChatRequest(
        messages=turns,
        system_prompt=system_prompt,
        sampling=_sampling(body),
        stop=_stop(body),
        form=form_of(body),
        model=body.model,
        count=body.n,
        client=client,
    )


def request_of_text(body: CompletionRequest, client: str) -> ChatRequest:
    """A completion. Raises: as `ChatRequest`, and for a list of several prompts."""
    prompt: Any = body.prompt
    if isinstance(prompt, list) and (len(prompt) != 1 if prompt and isinstance(prompt[0], str) else not prompt):
        raise RequestRejected(f"prompt: a list of {len(prompt)}; send one text, or the token ids of one text")
    return ChatRequest(
        text=prompt[0] if isinstance(prompt, list) and isinstance(prompt[0], str) else prompt,
        sampling=_sampling(body),
        stop=_stop(body),
        form=AnswerForm(grammar=grammar_of(body)),
        model=body.model,
        count=body.n,
        client=client,
    )


def _sampling(body: Sampling) -> SamplingParams:
    """The sampling parameters that a body has.

    Raises:
        RequestRejected: a value is out of range; says which, and the limit.
    """
    given: dict[str, Any] = {name: getattr(body, name) for name in _SAME_NAMES}
    if body.logit_bias is not None:
        given["logit_bias"] = {_token(token): bias for token, bias in body.logit_bias.items()}
    if isinstance(body, ChatCompletionRequest):
        if body.max_completion_tokens is not None:
            given["max_tokens"] = body.max_completion_tokens
        if body.top_logprobs is not None and not body.logprobs:
            raise RequestRejected(f"top_logprobs = {body.top_logprobs}: logprobs must be true then")
        if body.logprobs:
            given["logprobs"] = body.top_logprobs or 0
    elif isinstance(body, CompletionRequest):
        given["logprobs"] = body.logprobs
    return SamplingParams.given(given)


def form_of(request: ChatCompletionRequest) -> AnswerForm:
    """The form of the answer.

    Raises:
        RequestRejected: a tool is not as it should be, the chosen one is not there, or as `grammar_of`.
    """
    tools, choice = checked_tools(request.tools or []), request.tool_choice
    if isinstance(choice, NamedTool):
        tools = tuple(tool for tool in tools if tool["function"]["name"] == choice.function.name)
    must_call = isinstance(choice, NamedTool) or choice == "required"
    if must_call and not tools:
        raise RequestRejected("tool_choice: there is no such tool in tools")
    form = AnswerForm(
        grammar=grammar_of(request),
        tools=() if choice == "none" else tools,
        must_call=must_call,
        one_call=request.parallel_tool_calls is False,
    )
    if must_call and form.grammar is not None:
        raise RequestRejected("tool_choice: a call that must be made leaves no other form of the answer")
    return form


def grammar_of(request: Sampling) -> AnswerGrammar | None:
    """What the answer must be; None: any text.

    Raises:
        RequestRejected: the schema or the expression is no such thing or too large, or there are both.
    """
    wanted = request.response_format if isinstance(request, ChatCompletionRequest) else None
    if wanted is None or wanted.type == "text":
        return None if request.guided_regex is None else AnswerGrammar.of_regex(request.guided_regex, "guided_regex")
    if request.guided_regex is not None:
        raise RequestRejected("response_format and guided_regex: send one of them")
    if wanted.type == "json_object":
        return AnswerGrammar.of_schema({"type": "object"}, "response_format")
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise RequestRejected("response_format of type 'json_schema' needs json_schema.schema")
    return AnswerGrammar.of_schema(wanted.json_schema.schema_, "response_format")


def _stop(body: Sampling) -> list[str]:
    return [body.stop] if isinstance(body.stop, str) else body.stop or []


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _parts(message: Message) -> list[Part]:
    return message.content if isinstance(message.content, list) else []


def _content(message: Message) -> str | list[dict[str, Any]]:
    """A text; of the user, with pictures, a list of parts."""
    if message.role != "user" or not any(part.type == "image_url" for part in _parts(message)):
        return _text(message)
    return [
        {"type": "image", "image": _picture(part), "detail": (part.image_url and part.image_url.detail) or "auto"}
        if part.type == "image_url"
        else {"type": "text", "text": _text_of(part)}
        for part in _parts(message)
    ]


def _picture(part: Part) -> bytes:
    from hfjax_app.pictures import from_data_url  # Pillow, which most requests don't need

    if part.image_url is None or not part.image_url.url.startswith("data:"):
        raise RequestRejected("image_url: must have the url of a picture as data:image/...;base64,...; none is fetched")
    return from_data_url(part.image_url.url, "image_url")


def _text(message: Message) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    return "".join(map(_text_of, message.content))


def _text_of(part: Part) -> str:
    if part.type != "text" or part.text is None:
        raise RequestRejected(
            f"content of type {quoted(part.type)}: a message is text here, and the user's may have pictures (image_url)"
        )
    return part.text


def _token(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise RequestRejected(f"logit_bias for {quoted(name)}: a token id must be a whole number") from None
