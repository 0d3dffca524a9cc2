"""The replica of a sentiment model."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from hfjax_app.errors import ModelUnavailable
from hfjax_app.limits import EXPLAINED_AT_ONCE
from hfjax_app.sentiment.interface import SentimentModel
from hfjax_app.serving.refusal import Refusal, in_thread
from hfjax_app.serving.replica import Replica
from hfjax_app.settings import Settings

if TYPE_CHECKING:  # jax is imported when the model is loaded
    from hfjax_app.sentiment.interface import Explanation, Prediction


class SentimentReplica(Replica[SentimentModel]):
    """Classifies. `SentimentModel` says what the methods take; what they raise is returned as a Refusal."""

    kind = "sentiment"
    described = ("labels", "token_limit")

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._explainers = ThreadPoolExecutor(EXPLAINED_AT_ONCE, "why")

    async def predict_one(self, text: str) -> "Prediction | Refusal":
        """Texts that come within a few milliseconds share a device call."""
        try:
            return await asyncio.wrap_future(self.model.submit(text))
        except Exception as error:
            return Refusal.of(error)

    @in_thread
    def predict(self, texts: list[str], urgent: bool) -> "list[Prediction | Refusal]":
        found = self.model.predict(texts, urgent=urgent)
        return [Refusal.of(each) if isinstance(each, Exception) else each for each in found]

    @in_thread
    def classify(self, texts: list[str]) -> list[dict[str, float]]:
        return self.model.classify(texts)

    async def explain(self, text: str, label: str | None, urgent: bool) -> "Explanation | Refusal":
        explain = partial(self.model.explain, text, label, urgent=urgent)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._explainers if urgent else None, explain)
        except Exception as error:
            return Refusal.of(error)

    @in_thread
    def label_scores(self, text: str, labels: list[str]) -> dict[str, float]:
        if self.model.zero_shot is None:
            raise ModelUnavailable("this sentiment model can't score labels")
        return self.model.zero_shot.classify(text, labels)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"scores_labels": self.model.zero_shot is not None}

    def figures(self) -> dict[str, int]:
        return {"texts": self.model.texts}
