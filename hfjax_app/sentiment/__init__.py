"""Sentiment: a sequence classifier as a handful of warm programs."""

from typing import TYPE_CHECKING

from hfjax_app.lazy_import import on_demand

if TYPE_CHECKING:  # for type checkers, which can't follow `__getattr__`
    from hfjax_app.sentiment.classifier import SentimentClassifier
    from hfjax_app.sentiment.explanation import Explanation
    from hfjax_app.sentiment.prediction import Prediction

__all__ = ["Explanation", "Prediction", "SentimentClassifier"]

__getattr__ = on_demand(
    __name__,
    {"classifier": ("SentimentClassifier",), "explanation": ("Explanation",), "prediction": ("Prediction",)},
)
