"""A tokenizer's chat template, tried out once: what it does with system prompts, how its turns begin and end.

Renders text only; `chat_template.py` makes tokens of it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from hfjax_app.chat.text.answer_grammar import check_size
from hfjax_app.chat.text.tools import Tool, checked_tools
from hfjax_app.errors import ModelUnavailable, RequestRejected, first_line
from hfjax_app.limits import TEMPLATE_MAX_CHARACTERS, TEMPLATE_MAX_VARIABLES
from hfjax_app.validation import quoted

# Words that no template contains, in conversations that try a template out.
_QUESTION, _ANSWER, _NEXT, _TOOL = "zqxquestion", "zqxanswer", "zqxnext", "zqxtool"

Variables = Mapping[str, Any]
NO_VARIABLES: Variables = MappingProxyType({})
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_EFFORT = "reasoning_effort"
_SWITCHES = ("enable_thinking", "thinking")  # names of the variable that switches reasoning on and off
# What is passed to a template or to `apply_chat_template` besides, and what templates call.
_RESERVED = {
    *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt", "tokenize"),
    *("continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict", "self"),
    *("return_assistant_tokens_mask", "tokenizer_kwargs", "kwargs", "raise_exception", "strftime_now", "tojson"),
    *("range", "dict", "lipsum", "cycler", "joiner", "namespace", "loop", "caller", "varargs"),
}


def checked_variables(values: object) -> dict[str, Any]:
    """A client's variables for a chat template, if they are none that this app or transformers passes.

    Raises:
        RequestRejected: not an object, too many or too large, or a name that is taken.
    """
    name = "chat_template_kwargs"
    if not isinstance(values, Mapping):
        raise RequestRejected(f"{name}: must be an object, not {type(values).__name__}")
    if len(values) > TEMPLATE_MAX_VARIABLES:
        raise RequestRejected(f"{name} of {len(values)} variables: at most {TEMPLATE_MAX_VARIABLES}")
    for key in values:
        if not isinstance(key, str) or not key.isidentifier() or key.startswith("_"):
            raise RequestRejected(f"{name}: {quoted(key)} is no name of a variable")
        if key in _RESERVED or key.endswith(("_token", "_tokens")):
            raise RequestRejected(f"{name}: {key} is not the client's to set")
    check_size(values, name, longest=TEMPLATE_MAX_CHARACTERS)
    if (size := len(json.dumps(dict(values)))) > TEMPLATE_MAX_CHARACTERS:
        raise RequestRejected(f"{name} of {size:,} characters: at most {TEMPLATE_MAX_CHARACTERS:,}")
    return dict(values)


class Template:
    """Renders conversations with a tokenizer's chat template.

    Args:
        tokenizer: of transformers, with a chat template.

    Raises:
        ModelUnavailable: the template fails, or leaves out what the user says.
    """

    def __init__(self, tokenizer: Any):
        self._apply: Callable[..., str] = tokenizer.apply_chat_template
        self._in_parts = self._wants_parts()

    def _wants_parts(self) -> bool:
        """Whether contents must be lists of parts, as templates of models with pictures want them.

        Such a template takes a plain text letter by letter and writes none of it.
        """
        failures: list[Exception] = []
        for self._in_parts in (False, True):
            try:
                if _QUESTION in self._rendered([{"role": "user", "content": _QUESTION}]):
                    return self._in_parts
            except Exception as error:  # templates may raise anything
                failures.append(error)
        if not failures:
            raise ModelUnavailable(
                "this model's chat template leaves out what the user says: put another one in its place"
            )
        why = first_line(failures[0])
        raise ModelUnavailable(
            f"this model's chat template can't be used ({why}): correct it, or put another in its place"
        )

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the template tells the model which tools there are."""
        tools = checked_tools([{"type": "function", "function": {"name": _TOOL, "description": _NEXT}}])
        try:
            return _TOOL in self._rendered([{"role": "user", "content": _QUESTION}], tools)
        except Exception:
            return False

    @cached_property
    def switch(self) -> tuple[str, bool] | None:
        """The variable that switches reasoning on and off, and whether it is on by itself; None: there is none."""
        question = [{"role": "user", "content": _QUESTION}]
        for name in _SWITCHES:
            try:
                on, off, unset = (
                    self._rendered(question, variables=values) for values in ({name: True}, {name: False}, {})
                )
            except Exception:
                continue
            if on != off:
                return name, unset == on
        return None

    def variables(self, *, thinks: bool | None, effort: str | None, others: Variables) -> Variables:
        """The variables of a request.

        Args:
            thinks: whether the model reasons before it answers, where the template can switch that; None: as it does.
            effort: one of EFFORTS; None: as the template has it. It switches reasoning too.
            others: the client's own, which go before these.
        """
        found: dict[str, Any] = {}
        if thinks is None and effort is not None:
            thinks = effort != "none"
        if thinks is not None and self.switch is not None:
            found[self.switch[0]] = thinks
        if effort is not None and not (effort == "none" and found):
            found[_EFFORT] = effort
        return {**found, **others}

    def shows_pictures(self, mark: str) -> bool:
        """Whether the template writes this mark in the place of a picture."""
        parts = [{"type": "image"}, {"type": "text", "text": _QUESTION}]
        try:
            text = self._rendered([{"role": "user", "content": parts}])
        except Exception:
            return False
        return text.count(mark) == 1 and _QUESTION in text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        system_prompt: str = "",
        tools: Sequence[Tool] = (),
        variables: Variables = NO_VARIABLES,
        *,
        opening: bool = True,
    ) -> str:
        """The conversation and the opening of the assistant's next turn.

        A system prompt that the template refuses or leaves out stands before the first message of the user.

        Args:
            messages: with a role and a content each.
            system_prompt: instructions before them; may be empty.
            tools: that the model may call, where `takes_tools`.
            variables: of the template.
            opening: whether the assistant's next turn is opened.

        Raises:
            RequestRejected: the template refuses this conversation.
        """

        def rendered(turns: Sequence[Mapping[str, Any]]) -> str:
            return self._rendered(turns, tools, variables, opening=opening)

        try:
            if not system_prompt.strip():
                return rendered(messages)
            try:
                text = rendered([{"role": "system", "content": system_prompt}, *messages])
                if system_prompt.strip() in text:
                    return text
            except Exception:  # usually because it knows no such role
                pass
            asked = messages[0]["content"]
            if isinstance(asked, list):
                asked = [{"type": "text", "text": f"{system_prompt}\n\n"}, *asked]
            else:
                asked = f"{system_prompt}\n\n{asked}"
            first = {**messages[0], "content": asked}
            return rendered([first, *messages[1:]])
        except Exception as error:
            raise RequestRejected(
                f"this model's chat template refuses the conversation: {first_line(error)}"
            ) from error

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool] = (),
        variables: Variables = NO_VARIABLES,
        *,
        opening: bool = True,
    ) -> str:
        if self._in_parts:
            turns: list[Any] = [
                message
                if isinstance(message["content"], list)
                else {**message, "content": [{"type": "text", "text": message["content"]}]}
                for message in messages
            ]
        else:
            turns = [*messages]
        given: dict[str, Any] = {**variables, **({"tools": list(tools)} if tools else {})}
        return self._apply(turns, tokenize=False, add_generation_prompt=opening, **given)

    def answer_endings(self) -> list[str]:
        """The texts that follow an answer: of the last turn, and of one that another turn follows."""
        question, answer = {"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}
        endings = []
        for others in ([], [{"role": "user", "content": _NEXT}]):
            try:
                text = self._rendered([question, answer, *others], opening=False)
            except Exception:  # some take one question only
                continue
            _, found, after = text.rpartition(_ANSWER)
            endings += [after.partition(_NEXT)[0]] if found else []
        return endings
