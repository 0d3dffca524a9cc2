"""What the studio and the API use of a chat model, whether it runs in this process or in another one.

`assistant.py` is the model itself; `serving/remote_models.py` asks one in another process.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hfjax_app.chat.engine.stats import EngineActivity, EngineStats
from hfjax_app.chat.reply import Reply
from hfjax_app.chat.request import ChatRequest
from hfjax_app.chat.sampling.params import SamplingParams


class LabelScorer(Protocol):
    """Classifies texts with the caller's own labels, see `zero_shot.py`."""

    def check(self, text: object, labels: object) -> object: ...

    def classify(self, text: str, labels: list[str]) -> dict[str, float]: ...


@dataclass(frozen=True, kw_only=True)
class Answers:
    """All answers to one request.

    Attributes:
        replies: of each answer, as it grows.
        close: releases the memory of the request's pictures. The caller must call it after the last answer has ended,
            also after an error; a second call does nothing.
    """

    replies: list[AsyncGenerator[Reply, None]]
    close: Callable[[], None] = lambda: None


class ChatModel(Protocol):
    """A chat model; `ChatAssistant` documents the members."""

    @property
    def recommended(self) -> SamplingParams: ...

    @property
    def notices(self) -> list[str]: ...

    @property
    def picture_sizes(self) -> list[list[tuple[int, int, int]]]: ...

    @property
    def thinks(self) -> bool | None: ...

    @property
    def context(self) -> int: ...

    @property
    def zero_shot(self) -> LabelScorer | None: ...

    def stats(self) -> EngineStats: ...

    def activity(self) -> EngineActivity: ...

    def answer_once(self) -> None: ...

    def count(self, request: ChatRequest) -> list[int]: ...

    def tokenize(self, text: str) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int]) -> str: ...

    async def answers(self, request: ChatRequest) -> Answers: ...
