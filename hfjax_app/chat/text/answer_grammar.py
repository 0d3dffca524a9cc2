"""What a client wants an answer to be: JSON of a schema, or what a regular expression matches.

Checks sizes and texts only, and imports nothing that computes; `grammar.py` compiles.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import lcm
from typing import Any

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import (
    GRAMMAR_MAX_CHARACTERS,
    GRAMMAR_MAX_DEPTH,
    GRAMMAR_MAX_MULTIPLE,
    GRAMMAR_MAX_STRING_CHARACTERS,
)
from hfjax_app.validation import checked_text

_FOR_PEOPLE = {"title", "description", "$comment"}  # texts in a schema that constrain nothing


@dataclass(frozen=True, kw_only=True)
class AnswerGrammar:
    """What an answer must be.

    Args:
        kind: "json_schema", or "regex": a regular expression of the whole answer, in the syntax of Rust's crate.
        source: the schema as JSON, or the expression.
        name: of the client's argument, for messages.
        opening, closing: texts around it, whose special tokens count.
    """

    kind: str
    source: str
    name: str
    opening: str = ""
    closing: str = ""

    @classmethod
    def of_schema(cls, schema: object, name: str) -> "AnswerGrammar":
        """Answers that are JSON of this schema, without white space between its parts: weak models repeat it forever.

        Raises:
            RequestRejected: it is no schema, or too large.
        """
        if not isinstance(schema, Mapping):
            raise RequestRejected(f"{name}: must be a JSON schema, an object, not {type(schema).__name__}")
        check_size(schema, name)
        kept = {key: value for key, value in schema.items() if key != "x-guidance"}  # llguidance's own options
        source = json.dumps(kept)
        if len(source) > GRAMMAR_MAX_CHARACTERS:
            raise RequestRejected(f"{name} of {len(source):,} characters: at most {GRAMMAR_MAX_CHARACTERS:,}")
        return cls(kind="json_schema", source=source, name=name)

    @classmethod
    def of_regex(cls, expression: object, name: str) -> "AnswerGrammar":
        """Answers that a regular expression matches as a whole.

        Raises:
            RequestRejected: it is no text, or too long.
        """
        return cls(kind="regex", source=checked_text(expression, name, GRAMMAR_MAX_STRING_CHARACTERS), name=name)


def check_size(value: Any, name: str, *, longest: int = GRAMMAR_MAX_STRING_CHARACTERS) -> None:
    """Refuse JSON data that is large or deep, or has a long or broken text. Without recursion, because it may be deep.

    Args:
        value: what came from outside, as Python's json reads it.
        name: in messages.
        longest: characters of a text, keys included; what a schema says to people may be longer.

    Raises:
        RequestRejected: says what is too much.
    """
    stack: list[tuple[Any, int, int]] = [(value, 0, longest)]
    most, values, multiple = max(longest, GRAMMAR_MAX_CHARACTERS), 0, 1
    while stack:
        each, depth, characters = stack.pop()
        values += 1
        if depth > GRAMMAR_MAX_DEPTH:
            raise RequestRejected(f"{name}: nested more than {GRAMMAR_MAX_DEPTH} levels deep; make it flatter")
        if values + (len(each) if isinstance(each, Mapping | list) else 0) > most:  # each has a character at least
            raise RequestRejected(f"{name} of more than {most:,} values: more than {most:,} characters are not taken")
        if isinstance(each, Mapping):
            for key, inner in each.items():
                told = key in _FOR_PEOPLE and isinstance(inner, str)
                stack += [(key, depth, longest), (inner, depth + 1, GRAMMAR_MAX_CHARACTERS if told else longest)]
            multiple = lcm(multiple, _multiple(each))
            if multiple > GRAMMAR_MAX_MULTIPLE:
                raise RequestRejected(
                    f"{name}: the least common multiple of all multipleOf, without the decimal point, is more than "
                    f"{GRAMMAR_MAX_MULTIPLE:,}"
                )
        elif isinstance(each, list):
            stack += [(inner, depth + 1, longest) for inner in each]
        elif isinstance(each, str):
            checked_text(each, f"{name}: a text", characters, may_be_blank=True)


def _multiple(schema: Mapping[str, Any]) -> int:
    """The digits of its multipleOf, without zeros at the end: llguidance makes so many states, and of two the product.

    One of 3,000,017 took a minute and 1.5 GB; larger ones end the process.
    """
    value = schema.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        return 1  # llguidance refuses these
    digits = Decimal(str(value)).normalize().as_tuple().digits
    return int("".join(map(str, digits))) or 1
