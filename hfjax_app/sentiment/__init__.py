"""Sentiment: a sequence classifier as a handful of warm programs."""

from hfjax_app.public import on_demand

__all__ = ["Explanation", "SentimentClassifier", "Verdict"]

__getattr__ = on_demand(
    __name__,
    {"classifier": ("SentimentClassifier",), "explanation": ("Explanation",), "verdict": ("Verdict",)},
)
