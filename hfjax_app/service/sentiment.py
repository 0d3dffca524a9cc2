"""Sentiment for every kind of client: classify texts, explain a label, and judge by the client's own labels."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from hfjax_app.backends import Backend
from hfjax_app.backends.backend import Models
from hfjax_app.chat.interface import ChatModel
from hfjax_app.errors import ModelUnavailable
from hfjax_app.limits import EXPLAINED_AT_ONCE, LISTS_AT_ONCE, ZERO_SHOT_AT_ONCE
from hfjax_app.sentiment import Explanation, Prediction
from hfjax_app.sentiment.interface import SentimentModel

_PIECE = 64  # texts of a list that are classified together
# Of all models. In the event loop's own threads, requests that wait for their turn would hold up everything else there.
_explainers = ThreadPoolExecutor(EXPLAINED_AT_ONCE, "why")
_lists = ThreadPoolExecutor(LISTS_AT_ONCE, "texts")
_judges = ThreadPoolExecutor(ZERO_SHOT_AT_ONCE, "zero-shot")


class SentimentService:
    """Judges texts.

    Args:
        models: the classifiers.
        chat: the chat models, for a client's own labels.
    """

    def __init__(self, models: Models[SentimentModel], chat: Models[ChatModel]):
        self._models, self._chat = models, chat

    def of(self, model: str | None) -> Backend[SentimentModel]:
        """The classifier of this name, which may not be ready; None: the first one. Raises: NotFound."""
        return self._models.find(model)

    async def predict(self, text: Any, model: str | None = None) -> Prediction:
        """A classifier's prediction.

        Args:
            text: what a client sent, of any type.
            model: the classifier's name; None: the first one.

        Raises:
            RequestRejected: the text is not text, blank or too long.
            ModelUnavailable: the backend is not ready.
        """
        return await asyncio.wrap_future(self.of(model).get().submit(text))

    async def predict_all(self, texts: list[str], model: str | None = None) -> list[Prediction]:
        """The predictions of several checked texts, in pieces that give way to single texts.

        Raises:
            ModelUnavailable: the backend is not ready, or its scores of a text are not finite.
        """
        found: list[Prediction] = []
        for begin in range(0, len(texts), _PIECE):
            piece, predict = texts[begin : begin + _PIECE], self.of(model).get().predict
            for prediction in await asyncio.get_running_loop().run_in_executor(_lists, predict, piece):
                if isinstance(prediction, Exception):
                    raise prediction
                found.append(prediction)
        return found

    async def explanation(self, text: Any, label: Any, model: str | None = None) -> Explanation:
        """What each word contributed to a label's logit.

        Args:
            text: what a client sent, of any type.
            label: the same; None: the likeliest label.
            model: the classifier's name; None: the first one.

        Raises:
            RequestRejected: as `predict`, or the classifier has no such label.
            ModelUnavailable: the backend is not ready.
        """
        explain = self.of(model).get().explain
        return await asyncio.get_running_loop().run_in_executor(_explainers, explain, text, label)

    async def label_scores(
        self, text: Any, labels: Any, judge: Backend[SentimentModel] | Backend[ChatModel] | None = None
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

    def judge(self) -> Backend[SentimentModel] | Backend[ChatModel]:
        """The model for a client's own labels: the sentiment model if it is one for NLI, else the chat model."""
        with suppress(ModelUnavailable):  # the chat model can do it too
            if self._models.first.get().zero_shot is not None:
                return self._models.first
        return self._chat.usable
