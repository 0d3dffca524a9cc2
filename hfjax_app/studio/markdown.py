"""Texts of a conversation as Markdown that the page draws without losing a word, and back.

Gradio draws Markdown with HTML in it: `<div>` disappears, and so does the backslash before a bracket. Outside of code,
such characters become numbers of HTML in answers. In messages of the user, which the page also lets them edit, an
invisible character does the same. Formulas get delimiters of their own, because Gradio looks for delimiters also in
code, and takes every second `$` for one.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt

_JOINER = "\N{WORD JOINER}"  # invisible, should a formula stay undrawn
_PAIRS = (("$$", "$$", True), (r"\[", r"\]", True), (r"\(", r"\)", False), ("$", "$", False))

# For gr.Chatbot: the delimiters between which KaTeX draws.
LATEX_DELIMITERS: list[dict[str, str | bool]] = [
    {"left": _JOINER + left, "right": right + _JOINER, "display": display} for left, right, display in _PAIRS
]

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable("inline")  # only blocks are looked for
_NEEDS_CARE = re.compile(r"<[a-zA-Z/!?]|\\[()\[\]]|\$|&#00|\]:|[`~]{3}\s*mermaid")
_PART = re.compile(
    r"""
    (?P<code> (?<!`)`+ )
    | (?P<formula> \$\$(?!\$) | \\[\[(] )
    | (?P<inline> (?<![\\$\w])\$(?![\s$])(?:[^$\n\\]|\\.)*?(?<![\s\\])\$(?![\d$]) )
    | (?P<escape> \\[^&] )
    | (?P<tag> <(?=[a-zA-Z/!?]) )
    | (?P<number> &(?=\#00\d\d;) )
    """,
    re.DOTALL | re.VERBOSE,
)
_TICKS, _BLANK_LINE = re.compile("`+"), re.compile(r"\n[ \t]*\n")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_NUMBER = re.compile(r"&#(00\d\d);")
_FENCE = re.compile(r"[`~]{3,}[ \t]*(?=mermaid)")


@lru_cache(maxsize=256)
def drawable(text: str, *, editable: bool = False) -> str:
    """A text as Gradio's Markdown draws it whole.

    Args:
        text: the answer, or the user's message.
        editable: whether the page shows the result itself too, in a field.
    """
    if not _NEEDS_CARE.search(text):
        return text
    escaped = _with_joiner if editable else _as_number
    pieces: list[str] = []
    prose: list[str] = []

    def part(kind: str, found: str) -> str:
        match kind:
            case "formula":
                return f"{_JOINER}{_in_code(found)}{_JOINER}"
            case "code":
                return _in_code(found)
            case "escape" if found[1] in "()[]":
                return escaped(found, "\\")
            case "tag" | "number":
                return escaped(found, found)
        return found

    lines = _LINE.findall(text)
    for line, kind in zip(lines, _kinds(text, len(lines)), strict=True):
        if kind == "prose":
            prose.append(line)
            continue
        pieces.append(_replaced("".join(prose), part))
        if kind == "code":
            pieces.append(_in_code(line))
        else:
            before, bracket, after = line.partition("[")
            pieces += [before, escaped(bracket, bracket), _replaced(after, part)]
        prose.clear()
    return "".join([*pieces, _replaced("".join(prose), part)])


def _replaced(text: str, part: Callable[[str, str], str]) -> str:
    """The text with what `part` makes of its code, formulas, escapes, tags and numbers of HTML.

    Args:
        text: prose in Markdown.
        part: takes the kind of a part, a group of _PART, and its text.
    """
    pieces, at = [], 0
    for kind, start, end in _parts(text):
        pieces += [text[at:start], part(kind, text[start:end])]
        at = end
    return "".join([*pieces, text[at:]])


def _parts(text: str) -> Iterator[tuple[str, int, int]]:
    """The kind, start and end of each part, in order; code and formulas without an end are none."""
    ends, at = _Ends(text), 0
    while (found := _PART.search(text, at)) is not None:
        kind, start, at = str(found.lastgroup), *found.span()
        match kind:
            case "inline":
                yield "formula", start, at
            case "code" | "formula" if (end := ends.of(found[0], at)) is not None:
                yield kind, start, end
                at = end
            case "formula" if found[0] != "$$":
                yield "escape", start, at
            case "escape" | "tag" | "number":
                yield kind, start, at


class _Ends:
    """Where code and formulas of a text end.

    A search that has found nothing until the end of a text is not made again. By one regular expression, a text of
    100,000 beginnings took minutes.
    """

    def __init__(self, text: str):
        self._text = text
        self._next: dict[str, int] = {}
        self._ticks: dict[int, list[int]] = {}
        for ticks in _TICKS.finditer(text):
            self._ticks.setdefault(len(ticks[0]), []).append(ticks.start())

    def of(self, opening: str, start: int) -> int | None:
        """The end of what this has opened; None: it has none.

        Args:
            opening: ticks, or the beginning of a formula.
            start: behind it; not before an earlier call's.
        """
        if opening[0] == "`":
            places = self._ticks[len(opening)]
            at = bisect_left(places, start)
            closing, place = opening, places[at] if at < len(places) else len(self._text)
        else:
            closing = {"$$": "$$", r"\[": r"\]", r"\(": r"\)"}[opening]
            place = self._found(closing, start + 1)
        if place == len(self._text) or (opening not in ("$$", r"\[") and self._found("", start) < place):
            return None
        return place + len(closing)

    def _found(self, what: str, start: int) -> int:
        """The next place of a text, or if it is empty, of an empty line; else the end."""
        if self._next.get(what, -1) < start:
            if what:
                place = self._text.find(what, start)
            else:
                blank = _BLANK_LINE.search(self._text, start)
                place = -1 if blank is None else blank.start()
            self._next[what] = len(self._text) if place < 0 else place
        return self._next[what]


def as_typed(text: str) -> str:
    """The message that `drawable` was given, if it was editable."""
    return text.replace(_JOINER, "")


def as_written(text: str) -> str:
    """The answer that `drawable` was given."""
    return as_typed(_NUMBER.sub(lambda found: chr(int(found[1])), text))


def _kinds(text: str, count: int) -> list[str]:
    """For each line "prose", "code", or "definition": of a link, which Markdown does not show."""
    kinds = ["prose"] * count
    env: dict[str, Any] = {}
    for token in _MARKDOWN.parse(text, env):
        if token.type in ("fence", "code_block") and token.map is not None:
            kinds[token.map[0] : token.map[1]] = ["code"] * len(kinds[token.map[0] : token.map[1]])
    for definition in (*env.get("references", {}).values(), *env.get("duplicate_refs", [])):
        kinds[definition["map"][0]] = "definition"
    return kinds


def _as_number(text: str, character: str) -> str:
    """The text with the first such character as a number."""
    return text.replace(character, f"&#{ord(character):04d};", 1)


def _with_joiner(text: str, character: str) -> str:
    """The text with an invisible character at the first such character: before a bracket, else behind it."""
    return text.replace(character, _JOINER + character if character == "[" else character + _JOINER, 1)


def _in_code(text: str) -> str:
    """Code or a formula, where numbers of HTML would stay numbers.

    Gradio would draw a block that is called mermaid, and show an error in place of a wrong one.
    """
    return _FENCE.sub(rf"\g<0>{_JOINER}", _NUMBER.sub(rf"&{_JOINER}#\1;", text), count=1)
