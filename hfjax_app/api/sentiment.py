"""The sentiment endpoints: classify a text, explain a label, and classify with the client's own labels (zero-shot).

The sentiment tab asks through the same object.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gradio as gr

from hfjax_app.api.concurrency import Concurrency
from hfjax_app.api.gradio_errors import errors_shown
from hfjax_app.api.usage import Usage
from hfjax_app.backends import Backend, Backends
from hfjax_app.backends.models import Models
from hfjax_app.errors import ModelUnavailable
from hfjax_app.limits import (
    EXPLAINED_AT_ONCE,
    LISTS_AT_ONCE,
    SENTIMENT_AT_ONCE,
    SENTIMENT_MAX_CHARACTERS,
    ZERO_SHOT_AT_ONCE,
)
from hfjax_app.sentiment import Explanation, Prediction
from hfjax_app.validation import checked_text

if TYPE_CHECKING:
    from hfjax_app.chat.interface import ChatModel
    from hfjax_app.sentiment.interface import SentimentModel

# For every event that classifies or explains one text, and for every one that asks the chat model for a label.
EVENT: Concurrency = {"concurrency_id": "sentiment", "concurrency_limit": SENTIMENT_AT_ONCE}
ZERO_SHOT_EVENT: Concurrency = {"concurrency_id": "zero-shot", "concurrency_limit": ZERO_SHOT_AT_ONCE}
_PIECE = 64  # texts of a list that are classified together
# Of all models. In the event loop's own threads, requests that wait for their turn would hold up everything else there.
_explainers = ThreadPoolExecutor(EXPLAINED_AT_ONCE, "why")
_lists = ThreadPoolExecutor(LISTS_AT_ONCE, "texts")
_judges = ThreadPoolExecutor(ZERO_SHOT_AT_ONCE, "zero-shot")


class SentimentApi:
    """Classifies texts.

    Args:
        backend: the classifier.
        chat: the chat models, for zero-shot classification.
    """

    def __init__(self, backend: "Backend[SentimentModel]", chat: "Models[ChatModel]"):
        self._backend, self._chat = backend, chat

    async def classify(self, text: str) -> dict[str, float]:
        """The probability of each sentiment for a text."""
        with errors_shown():
            scores: dict[str, float] = (await self.predict(text)).scores
            return scores

    async def explain(self, text: str, label: str | None = None) -> dict[str, Any]:
        """What each word contributed to a label's logit (null: the likeliest label's), as {"label", "words": [[word,
        contribution or null], ...], "logit", "baseline": the logit of a text of padding}."""
        with errors_shown():
            found = await self.explanation(text, label)
            words = [list(piece) for piece in found.pieces]
            return {"label": found.label, "words": words, "logit": found.logit, "baseline": found.baseline}

    async def zero_shot(self, text: str, labels: list[str]) -> dict[str, float]:
        """The probability of each of your own labels for a text, by the sentiment model if it is one for NLI, else by
        the chat model."""
        with errors_shown():
            return await self.label_scores(text, labels)

    def check_classify(self, text: Any) -> None:
        """Raise RequestRejected for values that /classify refuses, before the request is queued."""
        checked_text(text, "text", SENTIMENT_MAX_CHARACTERS)

    def check_explain(self, text: Any, label: Any) -> None:
        """The same for /explain."""
        self._backend.get().check(text, label)

    def check_zero_shot(self, text: Any, labels: Any) -> None:
        """The same for /zero_shot."""
        if (zero_shot := self.judge().get().zero_shot) is not None:
            zero_shot.check(text, labels)

    async def predict(self, text: Any) -> Prediction:
        """The classifier's prediction.

        Args:
            text: what a client sent, of any type.

        Raises:
            RequestRejected: the text is not text, blank or too long, or too many texts are waiting.
            ModelUnavailable: the backend is not ready.
        """
        return await asyncio.wrap_future(self._backend.get().submit(text))

    async def predict_all(self, texts: list[str]) -> list[Prediction]:
        """The predictions of several checked texts, in pieces that give way to single texts.

        Raises:
            ModelUnavailable: the backend is not ready, or its scores of a text are not finite.
        """
        found: list[Prediction] = []
        for begin in range(0, len(texts), _PIECE):
            piece, predict = texts[begin : begin + _PIECE], self._backend.get().predict
            for prediction in await asyncio.get_running_loop().run_in_executor(_lists, predict, piece):
                if isinstance(prediction, Exception):
                    raise prediction
                found.append(prediction)
        return found

    async def explanation(self, text: Any, label: Any) -> Explanation:
        """What each word contributed to a label's logit.

        Args:
            text: what a client sent, of any type.
            label: the same; None: the likeliest label.

        Raises:
            RequestRejected: as `predict`, or the classifier has no such label.
            ModelUnavailable: the backend is not ready.
        """
        explain = self._backend.get().explain
        return await asyncio.get_running_loop().run_in_executor(_explainers, explain, text, label)

    async def label_scores(
        self, text: Any, labels: Any, judge: "Backend[SentimentModel] | Backend[ChatModel] | None" = None
    ) -> dict[str, float]:
        """The probability of each label.

        Args:
            text: what a client sent, of any type.
            labels: the same.
            judge: the model that the client names; None: `judge()`.

        Raises:
            RequestRejected: the text or the labels are of another type, too long or too many.
            ModelUnavailable: the backend is not ready, or can't score labels.
        """
        judge = judge or self.judge()
        zero_shot = judge.get().zero_shot
        if zero_shot is None:
            needed = "only a model with a tokenizer and without recurrent layers can"
            raise ModelUnavailable(f"the chat model {judge.name} can't score labels: {needed}")
        return await asyncio.get_running_loop().run_in_executor(_judges, zero_shot.classify, text, labels)

    def judge(self) -> "Backend[SentimentModel] | Backend[ChatModel]":
        """The model for a client's own labels: the sentiment model if it is one for NLI, else the chat model."""
        with suppress(ModelUnavailable):  # the chat model can do it too
            if self._backend.get().zero_shot is not None:
                return self._backend
        return self._chat.usable


def register(backends: Backends, usage: Usage) -> SentimentApi:
    api = SentimentApi(backends.sentiment, backends.chat_models)
    gr.api(api.classify, api_name="classify", **EVENT)
    gr.api(api.explain, api_name="explain", **EVENT)
    gr.api(api.zero_shot, api_name="zero_shot", **ZERO_SHOT_EVENT)
    return api
