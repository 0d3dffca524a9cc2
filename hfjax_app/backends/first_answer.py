"""The first answer of a model that is ready: whether it serves is known only after it."""

from collections.abc import Callable, Mapping
from typing import Any

from hfjax_app.chat.interface import ChatModel
from hfjax_app.images.interface import ImageModel
from hfjax_app.images.request import ImageRequest
from hfjax_app.sentiment.interface import SentimentModel


def _one_token(assistant: ChatModel) -> None:
    assistant.answer_once()


def _one_text(classifier: SentimentModel) -> None:
    classifier.classify(["ready"])


def _one_picture(generator: ImageModel) -> None:
    for _ in generator.generate(ImageRequest("ready", steps=2, seed=0), previews=False):
        pass


# By kind of model. Each blocks until its answer is there, and raises what a request would.
FIRST_ANSWERS: Mapping[str, Callable[[Any], None]] = {
    "chat": _one_token,
    "sentiment": _one_text,
    "images": _one_picture,
}
