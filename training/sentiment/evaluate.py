"""Accuracy, confusion and calibration of a saved classifier on labelled sentences, loaded as any user would load it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


@dataclass(frozen=True, kw_only=True)
class Report:
    """accuracy, mean_confidence: 0 to 1; confusion: (true, predicted) -> count.

    mistakes: (true label, predicted label, its probability, text).
    """

    count: int
    accuracy: float
    mean_confidence: float
    confusion: dict[tuple[str, str], int]
    mistakes: list[tuple[str, str, float, str]]

    def line(self, name: str) -> str:
        confidence = f"mean probability of the answer {self.mean_confidence:.2f}"
        return f"{name}: {self.accuracy:.1%} of {self.count} right, {confidence}"


def predict(folder: Path, texts: list[str], batch: int = 64) -> list[tuple[str, float]]:
    """(label, probability) of each text, by transformers in torch, float32."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for start in range(0, len(texts), batch):
        inputs = tokenizer(texts[start : start + batch], padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            best = model(**inputs).logits.softmax(-1).max(-1)
        answers += [
            (model.config.id2label[index], probability)
            for index, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    return answers


def evaluate(folder: Path, labelled: list[tuple[str, str]]) -> Report:
    """labelled: (label, text) pairs."""
    answers = predict(folder, [text for _, text in labelled])
    pairs = zip(labelled, answers, strict=True)
    rows = [(true, label, probability, text) for (true, text), (label, probability) in pairs]
    mistakes = [row for row in rows if row[0] != row[1]]
    return Report(
        count=len(rows),
        accuracy=1 - len(mistakes) / len(rows),
        mean_confidence=sum(row[2] for row in rows) / len(rows),
        confusion=dict(Counter((true, label) for true, label, _, _ in rows)),
        mistakes=mistakes,
    )
