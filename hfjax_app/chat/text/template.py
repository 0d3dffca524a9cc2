"""A tokenizer's chat template, tried out once: what it does with system prompts, how its turns begin and end.

Renders text only; `chat_template.py` makes tokens of it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from hfjax_app.chat.text.tools import Tool, checked_tools
from hfjax_app.errors import ModelUnavailable, RequestRejected, first_line

# Words that no template contains, in conversations that try a template out.
_QUESTION, _ANSWER, _NEXT, _TOOL = "zqxquestion", "zqxanswer", "zqxnext", "zqxtool"


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

    def shows_pictures(self, mark: str) -> bool:
        """Whether the template writes this mark in the place of a picture."""
        parts = [{"type": "image"}, {"type": "text", "text": _QUESTION}]
        try:
            text = self._rendered([{"role": "user", "content": parts}])
        except Exception:
            return False
        return text.count(mark) == 1 and _QUESTION in text

    def render(self, messages: Sequence[Mapping[str, Any]], system_prompt: str = "", tools: Sequence[Tool] = ()) -> str:
        """The conversation and the opening of the assistant's next turn.

        A system prompt that the template refuses or leaves out stands before the first message of the user.

        Args:
            messages: with a role and a content each.
            system_prompt: instructions before them; may be empty.
            tools: that the model may call, where `takes_tools`.

        Raises:
            RequestRejected: the template refuses this conversation.
        """
        try:
            if not system_prompt.strip():
                return self._rendered(messages, tools)
            try:
                text = self._rendered([{"role": "system", "content": system_prompt}, *messages], tools)
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
            return self._rendered([first, *messages[1:]], tools)
        except Exception as error:
            raise RequestRejected(
                f"this model's chat template refuses the conversation: {first_line(error)}"
            ) from error

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool] = (), *, opening: bool = True
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
        given: dict[str, Any] = {"tools": list(tools)} if tools else {}
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
