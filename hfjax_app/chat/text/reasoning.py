"""The reasoning of an answer apart from its text, by transformers' streaming parser for responses.

A checkpoint's own response template is used; for known families that have none there are those in the folder
`response_templates`, each with the texts by which a tokenizer or its chat template shows the family.
"""

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import (
    ResponseTemplate,
    ResponseTemplateField,
    load_response_template,
)

from hfjax_app.chat.text.detokenizer import Piece, shown

_log = logging.getLogger(__name__)

_FAMILIES = Path(__file__).with_name("response_templates")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of the field
_PARAGRAPH = "\n\n"


class ResponseFormat:
    """How a model's answers are written.

    Args:
        tokenizer: of transformers. Without a chat template, answers are plain text.

    Attributes:
        reasoning_field: the name under which its chat template expects the reasoning of an earlier answer; None where
            answers have no such part.
    """

    def __init__(self, tokenizer: Any):
        self._template = _template_of(tokenizer)
        fields = self._template.fields if self._template is not None else {}
        self.reasoning_field = next((name for name in _REASONING if name in fields), None)
        special = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._anchors = frozenset(text for text in special if _is_part_of(text, fields.values()))

    def answer(self, opening: str = "") -> "Answer":
        """A new answer.

        Args:
            opening: how the prompt begins the answer; it may open the reasoning.
        """
        parser = None if self._template is None else ResponseParser(self._template, prefix=opening)
        return Answer(parser, self.reasoning_field, self._anchors)


class Answer:
    """An answer that grows, apart from its reasoning.

    Attributes:
        text: what is said, without the reasoning.
        reasoning: empty if there is none.
        is_reasoning: whether the reasoning is growing.
    """

    def __init__(self, parser: ResponseParser | None, reasoning_field: str | None, anchors: Collection[str]):
        self._parser, self._reasoning_field, self._anchors = parser, reasoning_field, anchors
        self.text = self.reasoning = ""
        self.is_reasoning = self._is_new = False
        self._whole: list[Piece] = []
        if parser is not None:
            self._follow(event for event in parser.initial_events if event["type"] != "region_chunk")

    def push(self, pieces: Sequence[Piece]) -> None:
        if self._parser is None:
            self.text += shown(pieces)
            return
        self._whole += pieces
        self._follow(self._parser.feed("".join(piece.text for piece in pieces if self._is_parsed(piece))))

    def end(self) -> None:
        """No more pieces follow."""
        if self._parser is not None:
            self._follow(self._parser.finalize()[1])
            self.reasoning = self.reasoning.rstrip()
            if not self.text and not self.reasoning:  # nothing was where the template expects it
                self.text = shown(self._whole)

    def _is_parsed(self, piece: Piece) -> bool:
        """Whether the parser gets a piece: special tokens only if its template knows them."""
        return not piece.special or piece.text in self._anchors

    def _follow(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            is_reasoning = event["field"] == self._reasoning_field
            match event["type"]:
                case "region_open":
                    self.is_reasoning, self._is_new = is_reasoning, True
                case "region_close":
                    self.is_reasoning = False
                case "region_chunk" if is_reasoning:
                    self.reasoning += self._chunk(event["text"], self.reasoning)
                case "region_chunk":
                    self.text += self._chunk(event["text"], self.text)

    def _chunk(self, chunk: str, before: str) -> str:
        """What a chunk adds to a text: the first one of a part stands in a paragraph of its own."""
        if not self._is_new:
            return chunk
        if self.reasoning or before.strip() or self.is_reasoning:
            chunk = chunk.lstrip()
        self._is_new = not chunk
        return _PARAGRAPH + chunk if chunk and before.strip() else chunk


def _template_of(tokenizer: Any) -> ResponseTemplate | None:
    template = tokenizer.chat_template
    if template is None:
        return None
    own = getattr(tokenizer, "response_template", None)
    if own is not None:
        try:
            return _without_others(load_response_template(own))
        except (ValueError, TypeError, AttributeError) as error:
            _log.warning("the checkpoint's response template can't be used: %s", error)
    known = {*map(str, tokenizer.added_tokens_decoder.values())}
    written = template if isinstance(template, str) else "\n".join(template.values())
    for texts, family in _families():
        if all(text in known or text in written for text in texts):
            return family
    return None


def _without_others(template: ResponseTemplate) -> ResponseTemplate:
    """A template that finds reasoning and text only: calls of tools stay text, because nothing here makes them."""
    kept = {name: field for name, field in template.fields.items() if name in (*_REASONING, "content")}
    if any(field.content != "text" for field in kept.values()):
        raise ValueError("its reasoning or its content is no text")
    template.fields, template.defaults = kept, {}
    template.implicit = template.implicit if template.implicit in kept else None
    return template


@cache
def _families() -> tuple[tuple[list[str], ResponseTemplate], ...]:
    """The families' texts and templates, those with the most texts first."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(_FAMILIES.glob("*.json"))]
    files.sort(key=lambda file: -len(file["when"]))
    return tuple((file["when"], load_response_template(file["response_template"])) for file in files)


def _is_part_of(text: str, fields: Iterable[ResponseTemplateField]) -> bool:
    """Whether a special token is a whole anchor of some field, or a part of one."""
    for field in fields:
        for literals, pattern in ((field.open_literals, field.open_re), (field.close_literals, field.close_re)):
            if any(text in literal for literal in literals or ()):
                return True
            if pattern is not None and (text in pattern.pattern.replace("\\", "") or pattern.search(text)):
                return True
    return False
