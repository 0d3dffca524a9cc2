"""Strings that end an answer, also where they span several pieces of it.

Does not stop the engine: the assistant cancels the request.
"""

from collections.abc import Sequence

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_STOP_CHARACTERS, CHAT_MAX_STOPS
from hfjax_app.validation import checked_text


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


class StopStrings:
    """Ends a text before the first of some strings. The text arrives in pieces of any size.

    The first string is the one that is complete first, as if characters arrived one by one; of several, the longest.

    Args:
        stop: the strings; none of them empty.
    """

    def __init__(self, stop: Sequence[str]):
        self._stop = stop
        self.found = False
        self.held_back = ""  # may be the start of a stop string; belongs to the text if no more pieces follow

    def push(self, piece: str) -> str:
        """Add a piece; returns the text that can be shown now, empty once a stop string was found."""
        if self.found:
            return ""
        text, self.held_back = self.held_back + piece, ""
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self.found = True
            _, begin = min(found)
            return text[:begin]
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[at:]) for stop in self._stop):
                self.held_back = text[at:]
                return text[:at]
        return text
