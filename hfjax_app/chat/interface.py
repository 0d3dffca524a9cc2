"""What the studio and the API use of a chat model, whether it runs in this process or in another one.

`assistant.py` is the model itself; `serving/remote_chat.py` asks one in another process.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the page is served before jax is imported
    from hfjax_app.chat.engine.stats import EngineActivity, EngineStats
    from hfjax_app.chat.reply import Reply
    from hfjax_app.chat.sampling.params import SamplingParams
    from hfjax_app.chat.text.answer_form import AnswerForm


class LabelScorer(Protocol):
    """Classifies texts with the caller's own labels, see `zero_shot.py`."""

    def check(self, text: object, labels: object) -> object: ...

    def classify(self, text: str, labels: list[str]) -> dict[str, float]: ...


@dataclass(frozen=True)
class Answers:
    """Answers one prompt, each time it is called.

    Attributes:
        answer: makes one answer.
        close: gives back the memory of the prompt's pictures. Whoever asked calls it in every case, when the last
            answer has ended; called again it does nothing.
    """

    answer: "Callable[..., AsyncGenerator[Reply, None]]"
    close: Callable[[], None] = lambda: None

    def __call__(
        self, params: "SamplingParams", *, stop: Sequence[str] = (), client: str = ""
    ) -> "AsyncGenerator[Reply, None]":
        return self.answer(params, stop=stop, client=client)


class ChatModel(Protocol):
    """A chat model; `ChatAssistant` documents the members."""

    @property
    def recommended(self) -> "SamplingParams": ...

    @property
    def notices(self) -> list[str]: ...

    @property
    def sees(self) -> bool: ...

    @property
    def context(self) -> int: ...

    @property
    def zero_shot(self) -> LabelScorer | None: ...

    def stats(self) -> "EngineStats": ...

    def activity(self) -> "EngineActivity": ...

    def answer_once(self) -> None: ...

    def count(self, messages: list[dict[str, Any]], *, system_prompt: str = "") -> list[int]: ...

    def tokenize(self, text: str) -> list[int]: ...

    def detokenize(self, tokens: Sequence[int]) -> str: ...

    def reply(
        self,
        messages: list[dict[str, Any]],
        params: "SamplingParams",
        *,
        system_prompt: str = "",
        stop: Sequence[str] = (),
        client: str = "",
        form: "AnswerForm" = ...,
    ) -> "AsyncGenerator[Reply, None]": ...

    def complete(
        self, prompt: str | Sequence[int], params: "SamplingParams", *, stop: Sequence[str] = (), client: str = ""
    ) -> "AsyncGenerator[Reply, None]": ...

    async def asked(
        self,
        messages: list[dict[str, Any]],
        params: "SamplingParams",
        *,
        system_prompt: str = "",
        form: "AnswerForm" = ...,
    ) -> Answers: ...

    async def asked_text(
        self, prompt: str | Sequence[int], params: "SamplingParams", *, form: "AnswerForm" = ...
    ) -> Answers: ...
