"""The sentiment endpoints of Gradio's API: classify a text, explain a label, classify with the client's own labels."""

from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import Concurrency, errors_shown
from hfjax_app.limits import SENTIMENT_AT_ONCE, SENTIMENT_MAX_CHARACTERS, ZERO_SHOT_AT_ONCE
from hfjax_app.service.sentiment import SentimentService
from hfjax_app.service.service import Service
from hfjax_app.validation import checked_text

# For every event that classifies or explains one text, and for every one that asks the chat model for a label.
EVENT: Concurrency = {"concurrency_id": "sentiment", "concurrency_limit": SENTIMENT_AT_ONCE}
ZERO_SHOT_EVENT: Concurrency = {"concurrency_id": "zero-shot", "concurrency_limit": ZERO_SHOT_AT_ONCE}


class SentimentApi:
    """Answers the three endpoints.

    Args:
        service: of sentiment.
    """

    def __init__(self, service: SentimentService):
        self._service = service

    async def classify(self, text: str) -> dict[str, float]:
        """The probability of each sentiment for a text."""
        with errors_shown():
            scores: dict[str, float] = (await self._service.predict(text)).scores
            return scores

    async def explain(self, text: str, label: str | None = None) -> dict[str, Any]:
        """What each word contributed to a label's logit (null: the likeliest label's), as {"label", "words": [[word,
        contribution or null], ...], "logit", "baseline": the logit of a text of padding}."""
        with errors_shown():
            found = await self._service.explanation(text, label)
            words = [list(piece) for piece in found.pieces]
            return {"label": found.label, "words": words, "logit": found.logit, "baseline": found.baseline}

    async def zero_shot(self, text: str, labels: list[str]) -> dict[str, float]:
        """The probability of each of your own labels for a text, by the sentiment model if it is one for NLI, else by
        the chat model."""
        with errors_shown():
            return await self._service.label_scores(text, labels)

    def check_classify(self, text: Any) -> None:
        """Raise RequestRejected for values that /classify refuses, before the request is queued."""
        checked_text(text, "text", SENTIMENT_MAX_CHARACTERS)

    def check_explain(self, text: Any, label: Any) -> None:
        """The same for /explain."""
        self._service.of(None).get().check(text, label)

    def check_zero_shot(self, text: Any, labels: Any) -> None:
        """The same for /zero_shot."""
        if (zero_shot := self._service.judge().get().zero_shot) is not None:
            zero_shot.check(text, labels)


def register(service: Service) -> None:
    api = SentimentApi(service.sentiment)
    gr.api(api.classify, api_name="classify", **EVENT)
    gr.api(api.explain, api_name="explain", **EVENT)
    gr.api(api.zero_shot, api_name="zero_shot", **ZERO_SHOT_EVENT)
