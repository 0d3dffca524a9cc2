"""The replica of a chat model."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hfjax_app.chat.interface import ChatModel
from hfjax_app.errors import ModelUnavailable
from hfjax_app.serving.refusal import Refusal, in_thread
from hfjax_app.serving.replica import Replica

if TYPE_CHECKING:  # jax is imported when the model is loaded
    from hfjax_app.chat.reply import Reply
    from hfjax_app.chat.request import ChatRequest


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A reply on its way to the ingress.

    Attributes:
        reply: as the model gave it.
        texts: of the tokens in its log-probabilities, by id, which the ingress can't decode.
    """

    reply: "Reply"
    texts: Mapping[int, str]


class ChatReplica(Replica[ChatModel]):
    """Answers with a chat model. `ChatModel` says what the methods take; what they raise is returned as a Refusal."""

    kind = "chat"
    described = ("recommended", "notices", "sees", "context")

    async def reply(self, request: "ChatRequest") -> AsyncGenerator[Piece | Refusal, None]:
        """Closed when the ingress cancels the call, which frees the slot."""
        try:
            async with aclosing(self.model.reply(request)) as replies:
                async for reply in replies:
                    yield Piece(reply=reply, texts=self._texts(reply))
        except Exception as error:
            yield Refusal.of(error)

    def _texts(self, reply: "Reply") -> dict[int, str]:
        if not reply.new_logprobs:
            return {}
        likeliest = (token for logprobs in reply.new_logprobs for token, _ in logprobs.top)
        return {token: self.model.detokenize([token]) for token in {*reply.new_tokens, *likeliest}}

    @in_thread
    def answer_once(self) -> None:
        self.model.answer_once()

    @in_thread
    def count(self, request: "ChatRequest") -> list[int]:
        return self.model.count(request)

    @in_thread
    def tokenize(self, text: str) -> list[int]:
        return self.model.tokenize(text)

    @in_thread
    def detokenize(self, tokens: Sequence[int]) -> str:
        return self.model.detokenize(tokens)

    @in_thread
    def label_scores(self, text: str, labels: list[str]) -> dict[str, float]:
        if self.model.zero_shot is None:
            raise ModelUnavailable("this chat model can't score labels")
        return self.model.zero_shot.classify(text, labels)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"scores_labels": self.model.zero_shot is not None}

    def figures(self) -> dict[str, int]:
        return asdict(self.model.stats())

    def activity(self) -> dict[str, Any]:
        return asdict(self.model.activity())
