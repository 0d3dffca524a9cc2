"""Sentiment: a sequence classifier as a handful of warm programs."""

from hfjax_app.lazy_import import on_demand

__all__ = ["Explanation", "Prediction", "SentimentClassifier"]

__getattr__ = on_demand(
    __name__,
    {"classifier": ("SentimentClassifier",), "explanation": ("Explanation",), "prediction": ("Prediction",)},
)
