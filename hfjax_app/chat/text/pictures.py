"""Pictures in messages: the parts that come from outside, those that a chat template is given, and what it writes.

Between outside and template a message is a text, with each picture at a place in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hfjax_app.errors import RequestRejected
from hfjax_app.validation import quoted

DETAILS = ("auto", "low", "high")


class Shown(NamedTuple):
    """A picture in a message.

    Args:
        at: so many characters of the message's text are before it.
        file: untrusted.
        detail: one of DETAILS: how large the model sees it, where it leaves a choice.
    """

    at: int
    file: bytes
    detail: str = "auto"


def said_and_shown(parts: Sequence[object]) -> tuple[str, list[Shown]]:
    """The text of a message in parts, and its pictures.

    Args:
        parts: {"type": "text", "text": str} and {"type": "image", "image": bytes of a file}, of which the latter may
            have a "detail"; anything at all.

    Raises:
        RequestRejected: a part is none of these.
    """
    text, shown = "", list[Shown]()
    for part in parts:
        values = part if isinstance(part, dict) else {}
        kind = values.get("type")
        given = values.get(kind) if isinstance(kind, str) else None
        if kind == "text" and isinstance(given, str):
            text += given
        elif kind == "image" and isinstance(given, bytes):
            if (detail := values.get("detail", "auto")) not in DETAILS:
                raise RequestRejected(f"detail = {quoted(detail)}: one of {', '.join(DETAILS)}")
            shown.append(Shown(len(text), given, detail))
        else:
            raise RequestRejected(f"content of type {quoted(kind)}: a part must have a text, or an image as bytes")
    return text, shown


def template_parts(text: str, shown: Sequence[Shown], split: Callable[[str], str], mark: str) -> list[dict[str, str]]:
    """The content of a message as chat templates take it.

    Args:
        text, shown: as `said_and_shown` returns them.
        split: puts marks into special tokens that were typed.
        mark: that splits a token.
    """
    ends = [*(picture.at for picture in shown), len(text)]
    texts = [split(text[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    if split("".join(texts)) != "".join(texts):  # a token around a picture: some templates write all pictures first
        texts = [piece + mark for piece in texts]
    parts: list[dict[str, str]] = []
    for at, piece in enumerate(texts):
        parts += [{"type": "text", "text": piece}] if piece else []
        parts += [{"type": "image"}] if at < len(shown) else []
    return parts


@dataclass(frozen=True, kw_only=True)
class PictureMarkup:
    """What stands for a picture in a model's prompts: in the text of its chat template, and among the tokens.

    Args:
        mark: the text of a token that the chat template writes for each picture.
        written: the text that takes its place, with one placeholder.
        placeholder: the id of the token that stands for each of a picture's embeddings.
        tokens: what stands in the place of the placeholder for a picture: ids of tokens, and negative numbers for
            placeholders; raises RequestRejected for a file that can't be read.
    """

    mark: str
    written: str
    placeholder: int
    tokens: Callable[[Shown], Sequence[int]]
