"""Sentiment: a sequence classifier as a handful of warm programs."""

from hfjax_app.sentiment.classifier import SentimentClassifier
from hfjax_app.sentiment.explanation import Explanation
from hfjax_app.sentiment.verdict import Verdict

__all__ = ["Explanation", "SentimentClassifier", "Verdict"]
