"""OpenAI's bodies -> ChatRequest."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hfjax_app.api.v1.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    Message,
    NamedTool,
    OfTemplate,
    Part,
    Sampling,
)
from hfjax_app.chat import SamplingParams
from hfjax_app.chat.request import AnswerForm, ChatRequest
from hfjax_app.chat.text.answer_grammar import AnswerGrammar
from hfjax_app.chat.text.tools import checked_tools
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_PICTURES, CHAT_MAX_PROMPTS
from hfjax_app.pictures import from_data_url
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
    "min_tokens",
    "ignore_eos",
)
_OTHER_NAMES = {
    "repeat_penalty": "repetition_penalty",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
}
# By which vLLM's and llama.cpp's clients leave a value open.
_OPEN = {"top_k": 0, "seed": None, "max_tokens": None}
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~]")  # of regular expressions
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
        if (reasoning := message.reasoning_content or message.reasoning) is not None:
            turn["reasoning"] = reasoning
        turns.append(turn | {name: value for name in _OF_TOOLS if (value := getattr(message, name)) is not None})
    return turns, "\n".join(_text(message) for message in messages[:first])


def request_of_chat(body: ChatCompletionRequest, client: str) -> ChatRequest:
    """A chat completion. Raises: as `ChatRequest`, `conversation_of`, `form_of` and `_sampling`."""
    conversation, beginning = conversation_of(body, body.messages)
    _check_best_of(body)
    return ChatRequest(
        **conversation,
        sampling=_sampling(body),
        stop=_stop(body),
        stop_tokens=body.stop_token_ids or (),
        form=replace(form_of(body), beginning=beginning),
        model=body.model,
        count=body.n,
        client=client,
    )


def conversation_of(body: OfTemplate, messages: Sequence[Message]) -> tuple[dict[str, Any], str]:
    """Fields of a ChatRequest that its prompt is made of, and the beginning of the answer.

    Raises:
        RequestRejected: as `turns_of`, or there is no beginning to go on from.
    """
    beginning = ""
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise RequestRejected("add_generation_prompt and continue_final_message: one of them must be false")
        *messages, last = messages
        if last.role != "assistant" or last.tool_calls or last.reasoning_content or last.reasoning:
            raise RequestRejected("continue_final_message: the last message must be the assistant's, of text only")
        beginning = _text(last)
    turns, system_prompt = turns_of(messages)
    fields = {
        "messages": turns,
        "system_prompt": system_prompt,
        "effort": body.reasoning_effort,
        "variables": body.chat_template_kwargs or {},
        "opens": body.add_generation_prompt is not False or bool(body.continue_final_message),
    }
    return fields, beginning


def requests_of_texts(body: CompletionRequest, client: str) -> list[ChatRequest]:
    """The completions of each prompt. Raises: as `ChatRequest`, and for no prompt or too many."""
    prompt: Any = body.prompt
    one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
    prompts: list[Any] = [prompt] if one else prompt
    if not 1 <= len(prompts) <= CHAT_MAX_PROMPTS:
        raise RequestRejected(f"prompt: a list of {len(prompts)}; send 1 to {CHAT_MAX_PROMPTS}")
    _check_best_of(body)
    sampling, stop, form = _sampling(body), _stop(body), AnswerForm(grammar=grammar_of(body))
    return [
        ChatRequest(
            text=text,
            sampling=sampling,
            stop=stop,
            stop_tokens=body.stop_token_ids or (),
            form=form,
            model=body.model,
            count=body.n,
            client=client,
        )
        for text in prompts
    ]


def _check_best_of(body: Sampling) -> None:
    if body.best_of is not None and body.best_of != body.n:
        raise RequestRejected(f"best_of = {body.best_of}: must be n, {body.n}; all answers that are made are sent")


def _sampling(body: Sampling) -> SamplingParams:
    """The sampling parameters that a body has.

    Raises:
        RequestRejected: a value is out of range; says which, and the limit.
    """
    options: dict[str, Any] = {name: getattr(body, name) for name in _SAME_NAMES}
    for other, name in _OTHER_NAMES.items():
        if (value := getattr(body, other, None)) is not None:
            options[name] = value
    options |= {name: left for name, left in _OPEN.items() if options[name] == -1}
    if body.logit_bias is not None:
        options["logit_bias"] = {_token(token): bias for token, bias in body.logit_bias.items()}
    if isinstance(body, ChatCompletionRequest):
        if body.top_logprobs is not None and not body.logprobs:
            raise RequestRejected(f"top_logprobs = {body.top_logprobs}: logprobs must be true then")
        if body.logprobs:
            options["logprobs"] = body.top_logprobs or 0
    elif isinstance(body, CompletionRequest):
        options["logprobs"] = body.logprobs
        if body.echo:
            options["prompt_logprobs"] = body.logprobs
            options["max_tokens"] = 1 if options["max_tokens"] == 0 else options["max_tokens"]  # which is not sent
    return SamplingParams.from_options(options)


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
        RequestRejected: a schema or an expression is no such thing or too large, or there are several.
    """
    outputs = request.structured_outputs
    schemas: dict[str, Any] = {
        "response_format": _schema_of_format(request) if isinstance(request, ChatCompletionRequest) else None,
        "guided_json": request.guided_json,
        "json_schema": request.json_schema,
        "structured_outputs.json": outputs and outputs.json_,
    }
    expressions: dict[str, Any] = {
        "guided_regex": request.guided_regex,
        "regex": request.regex,
        "structured_outputs.regex": outputs and outputs.regex,
    }
    choices = {"guided_choice": request.guided_choice, "structured_outputs.choice": outputs and outputs.choice}
    found = {name: each for name, each in {**schemas, **expressions, **choices}.items() if each is not None}
    if len(found) > 1:
        raise RequestRejected(f"{' and '.join(found)}: send one of them")
    for name, value in found.items():
        if name in schemas:
            return AnswerGrammar.of_schema(_as_json(value, name), name)
        return AnswerGrammar.of_regex(value if name in expressions else _one_of(value, name), name)
    return None


def _schema_of_format(request: ChatCompletionRequest) -> Any:
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise RequestRejected("response_format of type 'json_schema' needs json_schema.schema")
    return wanted.json_schema.schema_


def _as_json(schema: Any, name: str) -> Any:
    """A schema, which may be JSON as text."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise RequestRejected(f"{name}: must be a JSON schema, an object, also as text") from None


def _one_of(texts: Sequence[str], name: str) -> str:
    """The regular expression of these texts."""
    if not texts or not all(texts):
        raise RequestRejected(f"{name}: must be a list of texts, none of them empty")
    return "|".join(_META.sub(lambda mark: f"\\{mark[0]}", text) for text in texts)


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
