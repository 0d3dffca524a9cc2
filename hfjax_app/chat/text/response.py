"""The parts of an answer, by transformers' streaming parser for responses: reasoning, text, and calls of tools.

A checkpoint's own response template is used; for known families that have none there are those in the folder
`response_templates`, each with the texts by which a tokenizer or its chat template shows the family. Reasoning and
calls may be of two families, because a fine-tune learns one in addition to the other.
"""

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import (
    ResponseTemplate,
    ResponseTemplateField,
    load_response_template,
)

from hfjax_app.chat.text.answer_grammar import AnswerGrammar
from hfjax_app.chat.text.detokenizer import Piece, visible_text
from hfjax_app.chat.text.tools import Tool, ToolCall, schema_of_calls
from hfjax_app.errors import RequestRejected

_log = logging.getLogger(__name__)

_FAMILIES = Path(__file__).with_name("response_templates")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of the field
_CALLS = "tool_calls"
_PARAGRAPH = "\n\n"
# What the parser raises where a call is not as its template says.
_BROKEN_CALL = (ValueError, KeyError, TypeError, AttributeError)


class _Family(NamedTuple):
    """A file of the folder.

    Attributes:
        texts: that a tokenizer or its chat template has.
        template: how answers are written.
        call: how calls are that can be forced: the texts around an object of the name and the arguments, and how the
            latter are called; None where they are no such object.
    """

    texts: tuple[str, ...]
    template: ResponseTemplate
    call: dict[str, str] | None


class ResponseFormat:
    """How a model's answers are written.

    Args:
        tokenizer: of transformers. Without a chat template, answers are plain text.

    Attributes:
        reasoning_field: the name under which its chat template expects the reasoning of an earlier answer; None where
            answers have no such part.
        calls_tools: whether it is known how calls of tools are written.
    """

    def __init__(self, tokenizer: Any):
        found, self._call = _template_of(tokenizer)
        self._with_calls = None if found is None else _with_fields(found, (*_REASONING, _CALLS, "content"))
        self._template = None if found is None else _with_fields(found, (*_REASONING, "content"))
        fields = self._with_calls.fields if self._with_calls is not None else {}
        self.reasoning_field = next((name for name in _REASONING if name in fields), None)
        self.calls_tools = _CALLS in fields
        self._closes = fields[self.reasoning_field].close_literals if self.reasoning_field is not None else None
        special = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._anchors = frozenset(text for text in special if _is_part_of(text, fields.values()))

    def free_until(self, answer: "Answer") -> str | None:
        """The text after which a constraint on an answer holds: the end of reasoning that has begun; None: at once.

        Raises:
            RequestRejected: no single text says where the answer begins.
        """
        if self._template is None or (not answer.is_reasoning and self._template.implicit == "content"):
            return None
        if self._template.implicit == "content" and self._closes is not None and len(self._closes) == 1:
            return self._closes[0]
        raise RequestRejected("this model writes its answers in parts of its own form, which can't be constrained")

    def forced_call(self, tools: Sequence[Tool]) -> AnswerGrammar:
        """The grammar of answers that call one of these tools, and say nothing else.

        Raises:
            RequestRejected: this family's calls are no JSON, or the tools' schemas can't be put into one.
        """
        if self._call is None:
            raise RequestRejected("tool_choice: this model's calls can't be forced; only 'auto' and 'none'")
        schema = schema_of_calls(tools, arguments=self._call["arguments"])
        return replace(
            AnswerGrammar.of_schema(schema, "tools"), opening=self._call["open"], closing=self._call["close"]
        )

    def answer(self, opening: str = "", tools: Sequence[Tool] = ()) -> "Answer":
        """A new answer.

        Args:
            opening: how the prompt begins the answer; it may open the reasoning.
            tools: that the model may call; without any, what looks like a call is text.
        """
        template = self._with_calls if tools else self._template
        parser = None if template is None else ResponseParser(template, prefix=opening, tools=list(tools))
        return Answer(parser, self.reasoning_field, self._anchors)


class Answer:
    """An answer that grows, in its parts.

    Attributes:
        text: what is said, without the reasoning.
        reasoning: empty if there is none.
        is_reasoning: whether the reasoning is growing.
        calls: of tools, each when it is complete.
    """

    def __init__(self, parser: ResponseParser | None, reasoning_field: str | None, anchors: Collection[str]):
        self._parser, self._reasoning_field, self._anchors = parser, reasoning_field, anchors
        self.text = self.reasoning = ""
        self.is_reasoning = self._is_new = False
        self.calls: list[ToolCall] = []
        self._call = ""  # what was written of one that is growing
        self._whole: list[Piece] = []
        if parser is not None:
            self._follow(event for event in parser.initial_events if event["type"] != "region_chunk")

    def push(self, pieces: Sequence[Piece]) -> None:
        if self._parser is None:
            self.text += visible_text(pieces)
            return
        self._whole += pieces
        text = "".join(piece.text for piece in pieces if self._is_parsed(piece))
        try:
            self._follow(self._parser.feed(text))
        except _BROKEN_CALL:
            self._give_up(visible_text(pieces))

    def end(self) -> None:
        """No more pieces follow."""
        if self._parser is not None:
            try:
                self._follow(self._parser.finalize()[1])
            except _BROKEN_CALL:
                self._give_up("")
            self.reasoning = self.reasoning.rstrip()
            if self.calls:
                self.text = self.text.rstrip()  # white space before calls
            elif not self.text and not self.reasoning:  # nothing was where the template expects it
                self.text = visible_text(self._whole)

    def _is_parsed(self, piece: Piece) -> bool:
        """Whether the parser gets a piece: special tokens only if its template knows them."""
        return not piece.special or piece.text in self._anchors

    def _give_up(self, text: str) -> None:
        """Show what should have been a call as text, and all that follows."""
        self.text, self._call, self._parser = f"{self.text}{self._call}{text}", "", None

    def _follow(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            is_reasoning, is_call = event["field"] == self._reasoning_field, event["field"] == _CALLS
            match event["type"]:
                case "region_open":
                    self.is_reasoning, self._is_new, self._call = is_reasoning, True, ""
                case "region_close" if is_call:
                    self._end_call(event["value"])
                case "region_close":
                    self.is_reasoning = False
                case "region_chunk" if is_call:
                    self._call += event["text"]
                case "region_chunk" if is_reasoning:
                    self.reasoning += self._chunk(event["text"], self.reasoning)
                case "region_chunk":
                    self.text += self._chunk(event["text"], self.text)

    def _end_call(self, value: Any) -> None:
        """Add the call, or the calls, that a template has read; what is none stays text."""
        calls = [_call_of(each) for each in (value if isinstance(value, list) else [value])]
        if None in calls or not calls:
            self.text += self._call
        self.calls += filter(None, calls)
        self._call = ""

    def _chunk(self, chunk: str, before: str) -> str:
        """What a chunk adds to a text: the first one of a part stands in a paragraph of its own."""
        if not self._is_new:
            return chunk
        if self.reasoning or before.strip() or self.is_reasoning or self.calls:
            chunk = chunk.lstrip()
        self._is_new = not chunk
        return _PARAGRAPH + chunk if chunk and before.strip() else chunk


def _call_of(value: Any) -> ToolCall | None:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict):
        return None
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False))


def _template_of(tokenizer: Any) -> tuple[ResponseTemplate | None, dict[str, str] | None]:
    """A tokenizer's response template, and how a call can be forced."""
    template = tokenizer.chat_template
    if template is None:
        return None, None
    own = getattr(tokenizer, "response_template", None)
    if own is not None:
        try:
            loaded = load_response_template(own)
            if any(loaded.fields[name].content != "text" for name in (*_REASONING, "content") if name in loaded.fields):
                raise ValueError("its reasoning or its content is no text")
            return loaded, None
        except (ValueError, TypeError, AttributeError) as error:
            _log.warning("the checkpoint's response template can't be used: %s", error)
    known = {*map(str, tokenizer.added_tokens_decoder.values())}
    written = template if isinstance(template, str) else "\n".join(template.values())
    here = [family for family in _families() if all(text in known or text in written for text in family.texts)]
    calling = next((family for family in here if _CALLS in family.template.fields), None)
    reasoning = next((family for family in here if family.template.fields.keys() & {*_REASONING}), None)
    if reasoning is None or calling is None:
        found = reasoning or calling
        return (None, None) if found is None else (found.template, found.call)
    fields = {_CALLS: calling.template.fields[_CALLS]} | reasoning.template.fields
    return replace(reasoning.template, fields=fields), calling.call


def _with_fields(template: ResponseTemplate, names: Collection[str]) -> ResponseTemplate | None:
    """The template with these fields only; what it says of others stays text. None where that leaves plain text."""
    kept = {name: _tolerant(field) for name, field in template.fields.items() if name in names}
    implicit = template.implicit if template.implicit in kept else None
    if kept.keys() == {implicit}:
        return None
    return replace(template, fields=kept, defaults={}, implicit=implicit)


def _tolerant(field: ResponseTemplateField) -> ResponseTemplateField:
    """The field, for calls that are no JSON: then its value is text, which is no call."""
    if field.name != _CALLS or field.content != "json":
        return field
    return replace(field, content_args=field.content_args | {"allow_non_json": True})


@cache
def _families() -> tuple[_Family, ...]:
    """The families, those with the most texts first."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(_FAMILIES.glob("*.json"))]
    files.sort(key=lambda file: -len(file["when"]))
    return tuple(
        _Family(tuple(file["when"]), load_response_template(file["response_template"]), file.get("call"))
        for file in files
    )


def _is_part_of(text: str, fields: Iterable[ResponseTemplateField]) -> bool:
    """Whether a special token is a whole anchor of some field, a part of one, or a part of how its content is read."""
    for field in fields:
        for literals, pattern in ((field.open_literals, field.open_re), (field.close_literals, field.close_re)):
            if any(text in literal for literal in literals or ()):
                return True
            if pattern is not None and (text in pattern.pattern.replace("\\", "") or pattern.search(text)):
                return True
        if any(text in each for each in _texts(field.content_args)):
            return True
    return False


def _texts(value: Any) -> Iterator[str]:
    """The texts in JSON data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
