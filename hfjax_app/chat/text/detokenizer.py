"""Token ids to text, piece by piece, as they arrive; and the strings that end an answer, also where they span
several pieces.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_STOP_CHARACTERS, CHAT_MAX_STOP_TOKENS, CHAT_MAX_STOPS
from hfjax_app.validation import checked_text, quoted


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


def checked_stop(stop: object) -> tuple[str, ...]:
    """The strings that end an answer, if they are valid.

    Raises:
        RequestRejected: not a list of strings, too many, too long, or an empty one.
    """
    if not isinstance(stop, list | tuple):
        raise RequestRejected(f"stop: must be a list of strings, not {type(stop).__name__}")
    if len(stop) > CHAT_MAX_STOPS:
        raise RequestRejected(f"stop of {len(stop):,} strings: at most {CHAT_MAX_STOPS}")
    texts = tuple(checked_text(text, "stop string", CHAT_MAX_STOP_CHARACTERS, may_be_blank=True) for text in stop)
    if "" in texts:
        raise RequestRejected("stop: an empty string would end every answer at once")
    return texts


def checked_stop_tokens(tokens: object) -> tuple[int, ...]:
    """The token ids that end an answer, if they are valid.

    Raises:
        RequestRejected: not a list of ids, or too many.
    """
    if not isinstance(tokens, list | tuple):
        raise RequestRejected(f"stop tokens: must be a list of token ids, not {type(tokens).__name__}")
    if len(tokens) > CHAT_MAX_STOP_TOKENS:
        raise RequestRejected(f"{len(tokens):,} stop tokens: at most {CHAT_MAX_STOP_TOKENS}")
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise RequestRejected(f"stop token {quoted(token)}: must be a whole number of at least 0")
    return tuple(tokens)


class StopStrings:
    """Ends an answer before the first of some strings. The answer arrives in pieces of any size.

    Strings are found in what is shown, and with the text of special tokens, which is not shown. The first string is
    the one that is complete first, as if characters arrived one by one; of several, the longest.

    Args:
        stop: the strings; none of them empty.
    """

    def __init__(self, stop: Sequence[str]):
        self._stop = stop
        self.found = False
        self.held_back: list[Piece] = []  # may begin a stop string; belongs to the answer if no more pieces follow

    def push(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Add pieces; returns those that can be shown now, none once a stop string was found."""
        if self.found:
            return []
        pieces, self.held_back = [*self.held_back, *pieces], []
        views = _views(pieces)
        found = [
            (places[at + len(stop) - 1], places[at])
            for text, places in views
            for stop in self._stop
            if (at := text.find(stop)) >= 0
        ]
        if found:
            self.found = True
            _, begin = min(found)
            return _split(pieces, begin)[0]
        begins = [places[start] for text, places in views if (start := self._beginning(text)) is not None]
        if not begins:
            return pieces
        ready, self.held_back = _split(pieces, min(begins))
        return ready

    def _beginning(self, text: str) -> int | None:
        """Where the longest end of a text begins that may become a stop string; None if there is none."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        ends = range(max(0, len(text) - longest), len(text))
        return next((at for at in ends if any(stop.startswith(text[at:]) for stop in self._stop)), None)


def _views(pieces: Sequence[Piece]) -> list[tuple[str, Sequence[int]]]:
    """The text with special tokens and, where it differs, as it is shown; and each character's place in the former."""
    text = "".join(piece.text for piece in pieces)
    views: list[tuple[str, Sequence[int]]] = [(text, range(len(text)))]
    if any(piece.special for piece in pieces):
        special = [piece.special for piece in pieces for _ in piece.text]
        places = [at for at, hidden in enumerate(special) if not hidden]
        views.append(("".join(text[at] for at in places), places))
    return views


def _split(pieces: Sequence[Piece], at: int) -> tuple[list[Piece], list[Piece]]:
    """The pieces before and after a place in their text."""
    before: list[Piece] = []
    for index, piece in enumerate(pieces):
        if at < len(piece.text):
            parts = [piece._replace(text=piece.text[:at])] if at else []
            return [*before, *parts], [piece._replace(text=piece.text[at:]), *pieces[index + 1 :]]
        before.append(piece)
        at -= len(piece.text)
    return before, []
