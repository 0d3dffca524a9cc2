"""Sentiment: a sequence classifier as a handful of warm programs."""

from typing import TYPE_CHECKING

from hfjax_app.lazy_import import on_demand
from hfjax_app.sentiment.interface import Explanation, Prediction

if TYPE_CHECKING:  # for type checkers, which can't follow `__getattr__`
    from hfjax_app.sentiment.classifier import SentimentClassifier

__all__ = ["Explanation", "Prediction", "SentimentClassifier"]

__getattr__ = on_demand(__name__, {"classifier": ("SentimentClassifier",)})
