"""Sentiment: a sequence classifier as a handful of warm programs."""

from hfjax_app.sentiment.classifier import SentimentClassifier

__all__ = ["SentimentClassifier"]
