"""Texts of a conversation as Markdown that the page draws without losing a word, and back.

Gradio draws Markdown with HTML in it: `<div>` disappears, and so does the backslash before a bracket. Outside of code,
such characters become numbers of HTML in answers. In messages of the user, which the page also lets them edit, an
invisible character does the same. Formulas get delimiters of their own, because Gradio looks for delimiters also in
code, and takes every second `$` for one.
"""

import re
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt

_JOINER = "\N{WORD JOINER}"  # invisible, should a formula stay undrawn
_PAIRS = (("$$", "$$", True), (r"\[", r"\]", True), (r"\(", r"\)", False), ("$", "$", False))

# For gr.Chatbot: the delimiters between which KaTeX draws.
LATEX_DELIMITERS: list[dict[str, str | bool]] = [
    {"left": _JOINER + left, "right": right + _JOINER, "display": display} for left, right, display in _PAIRS
]

_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_NEEDS_CARE = re.compile(r"<[a-zA-Z/!?]|\\[()\[\]]|\$|&#00|\]:|[`~]{3}\s*mermaid")
_PART = re.compile(
    r"""
    (?P<code> (?<!`)(?P<ticks>`+)(?!`) (?:(?!\n[ \t]*\n).)+? (?<!`)(?P=ticks)(?!`) )
    | (?P<formula> \$\$(?!\$).+?\$\$ | \\\[.+?\\\] | \\\((?:(?!\n[ \t]*\n).)+?\\\)
        | (?<![\\$\w])\$(?![\s$])(?:[^$\n\\]|\\.)*?(?<![\s\\])\$(?![\d$]) )
    | (?P<escape> \\[^&] )
    | (?P<tag> <(?=[a-zA-Z/!?]) )
    | (?P<number> &(?=\#00\d\d;) )
    """,
    re.DOTALL | re.VERBOSE,
)
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

    def part(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "formula":
                return f"{_JOINER}{_in_code(found[0])}{_JOINER}"
            case "code":
                return _in_code(found[0])
            case "escape" if found[0][1] in "()[]":
                return escaped(found[0], "\\")
            case "tag" | "number":
                return escaped(found[0], found[0])
        return found[0]

    lines = _LINE.findall(text)
    for line, kind in zip(lines, _kinds(text, len(lines)), strict=True):
        if kind == "prose":
            prose.append(line)
            continue
        pieces.append(_PART.sub(part, "".join(prose)))
        if kind == "code":
            pieces.append(_in_code(line))
        else:
            before, bracket, after = line.partition("[")
            pieces += [before, escaped(bracket, bracket), _PART.sub(part, after)]
        prose.clear()
    return "".join([*pieces, _PART.sub(part, "".join(prose))])


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
