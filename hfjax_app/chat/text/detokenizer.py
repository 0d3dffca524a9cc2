"""Token ids to text, piece by piece, as they arrive."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Piece(NamedTuple):
    """A part of an answer.

    Attributes:
        text: what it adds.
        special: whether it is a special token, which is no part of what is shown.
    """

    text: str
    special: bool = False


def visible_text(pieces: Sequence[Piece]) -> str:
    """The text of the pieces that are shown."""
    return "".join(piece.text for piece in pieces if not piece.special)


class Detokenizer:
    """Token ids to text, piece by piece. Never returns part of a character, nor a NUL, which no message may contain.

    Decodes a short tail again with every token and returns the added text (the streaming algorithm of Hugging Face's
    text-generation-inference), so that the result is right for tokenizers whose spaces depend on the next token.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._special = {id_: str(token) for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._ids: list[int] = []
        self._start = 0  # the tail begins here
        self._shown = 0  # text up to here has been returned

    def push(self, ids: Sequence[int]) -> list[Piece]:
        """What these ids add, up to the last whole character."""
        return [piece for token in ids for piece in self._push_one(token)]

    def _push_one(self, token: int) -> Iterator[Piece]:
        self._ids.append(token)
        if token in self._special:
            yield Piece(self._special[token], special=True)
        before = self._decode(self._ids[self._start : self._shown])
        now = self._decode(self._ids[self._start :])
        if len(now) > len(before) and not now.endswith("\N{REPLACEMENT CHARACTER}"):
            self._start, self._shown = self._shown, len(self._ids)
            yield Piece(now[len(before) :])

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.replace("\0", "")
