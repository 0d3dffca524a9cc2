"""Token ids to text, piece by piece, as they arrive. Does not look for stop strings: see stop_strings.py."""

from collections.abc import Sequence
from typing import Any


class Detokenizer:
    """Token ids to text, piece by piece. Never returns part of a character, nor a NUL, which no message may contain.

    Decodes a short tail again with every token and returns the added text (the streaming algorithm of Hugging Face's
    text-generation-inference), so that the result is right for tokenizers whose spaces depend on the next token.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # the tail begins here
        self._shown = 0  # text up to here has been returned

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids add, up to the last whole character."""
        return "".join(map(self._push_one, ids))

    def _push_one(self, token: int) -> str:
        self._ids.append(token)
        before = self._decode(self._ids[self._start : self._shown])
        now = self._decode(self._ids[self._start :])
        if len(now) <= len(before) or now.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return now[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text.replace("\0", "")
