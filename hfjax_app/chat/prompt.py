"""What the model gets of a request, made once for all its answers. `prompt_maker.py` makes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hfjax_app.chat.engine.request import Constraint
from hfjax_app.chat.text.response import Answer
from hfjax_app.chat.vision.picture import Picture


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A conversation or a text for the model.

    Args:
        tokens: the ids.
        pictures: in these, in order; they are read last of all, when nothing else can refuse the request.
        dropped_messages: how many of the oldest messages they leave out.
        new_answer: an empty answer.
        new_constraint: a constraint at its beginning; None: answers are free.
        one_call: whether an answer ends with its first call of a tool.
        release: gives back the memory of its pictures; called when its last answer has ended.
    """

    tokens: list[int]
    pictures: tuple[Picture, ...] = ()
    dropped_messages: int = 0
    new_answer: Callable[[], Answer]
    new_constraint: Callable[[], Constraint] | None = None
    one_call: bool = False
    release: Callable[[], None] = lambda: None

    def showing(self, pictures: Sequence[Picture], release: Callable[[], None]) -> "Prompt":
        """With pictures in the places -1, -2, ... that `ChatFormat.fit` left them."""
        ids = {-at: picture.id for at, picture in enumerate(pictures, 1)}
        tokens = [ids.get(token, token) for token in self.tokens]
        return replace(self, tokens=tokens, pictures=tuple(pictures), release=release)
