"""The embedded sentiment model as any user loads it: with transformers in torch, from the folder.

It is measured by its score on hand-written held-out sentences, which cannot be in the training data.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hfjax_app
from training.sentiment import train
from training.sentiment.corpus import HELD_OUT, LABELS, Forbidden, read_labelled, words_of
from training.sentiment.evaluate import evaluate

FOLDER = Path(hfjax_app.__file__).parent / "embedded" / "sentiment"


@pytest.fixture(scope="module")
def classify():
    """text -> (label, probability of that label)."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = AutoModelForSequenceClassification.from_pretrained(FOLDER).eval()

    def answer(text: str) -> tuple[str, float]:
        with torch.inference_mode():
            scores = model(**tokenizer(text, return_tensors="pt", truncation=True)).logits[0].softmax(-1)
        return model.config.id2label[int(scores.argmax())], float(scores.max())

    return answer


def test_held_out_sentences() -> None:
    """At least 85 % of at least 240 sentences, and at least 75 % of each label."""
    labelled = read_labelled(HELD_OUT)
    assert len(labelled) >= 240
    report = evaluate(FOLDER, labelled)
    print(report.line("held-out sentences"))
    assert report.accuracy >= 0.85, report.mistakes
    for label in LABELS:
        of_label = sum(true == label for true, _ in labelled)
        assert report.confusion.get((label, label), 0) / of_label >= 0.75, report.mistakes


def test_no_held_out_sentence_can_be_in_the_training_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`train` passes every held-out sentence as forbidden; the guard finds each, also inside other text."""
    sentences = [sentence for _, sentence in read_labelled(HELD_OUT)]
    asked = {}

    class Stop(Exception):
        pass

    def texts(grammar: object, *, seed: int, count: int, forbidden: list[str]) -> None:
        asked["forbidden"] = forbidden
        raise Stop

    monkeypatch.setattr(train, "texts", texts)
    monkeypatch.setattr(train, "build_grammar", lambda: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    with pytest.raises(Stop):
        train.train(tmp_path, train.Recipe())
    assert set(asked["forbidden"]) == set(sentences)

    guard = Forbidden(sentences)
    for sentence in sentences:
        assert guard.contained_in(sentence.upper())
        assert guard.contained_in(sentence.rstrip(".!?").replace("'", "’"))
        if len(words_of(sentence)) > 2:
            assert guard.contained_in(f"We went there. {sentence} That is all")


def test_held_out_sentences_differ_from_those_used_while_developing() -> None:
    """The list that the grammar was developed with has no sentence of the held-out list."""
    developing = {words_of(text) for _, text in read_labelled(Path(train.__file__).parent / "development.tsv")}
    held_out = [words_of(text) for _, text in read_labelled(HELD_OUT)]
    assert len(set(held_out)) == len(held_out)
    assert not developing & set(held_out)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("I loved it", "positive"),
        ("I hated it", "negative"),
        ("The library is next to the station.", "neutral"),
        ("not bad at all", "positive"),
        ("not good at all", "negative"),
        ("THE FOOD WAS WONDERFUL!!!", "positive"),
        ("The food was wonderful, but the service was awful.", "negative"),
        ("The service was awful, but the food was wonderful.", "positive"),
    ],
)
def test_what_most_visitors_will_try(classify, text: str, label: str) -> None:
    assert classify(text)[0] == label


def test_long_texts(classify) -> None:
    """All 512 positions were trained: an opinion repeated up to the limit and beyond keeps its label."""
    for text, label in (("The food was terrible. ", "negative"), ("We loved every minute. ", "positive")):
        for times in (10, 40, 100, 300):
            assert classify(text * times)[0] == label, (text, times)


def test_probabilities_are_no_certainties(classify) -> None:
    """Trained with label smoothing: even the plainest opinion gets a few per cent less than 100."""
    assert 0.85 < classify("I loved it")[1] < 0.99


def test_unknown_words_and_characters(classify) -> None:
    """Words that no list has, other scripts and emoji get a label too."""
    for text in ("Zxqv brmpf.", "これは何ですか", "🙂", "a"):
        label, probability = classify(text)
        assert label in LABELS
        assert 0.33 < probability < 1


def test_the_folder() -> None:
    """DistilBERT's architecture, 1 to 4 million float16 weights in safetensors, at most 5 MiB in all, and a card."""
    model = AutoModelForSequenceClassification.from_pretrained(FOLDER)
    assert type(model).__name__ == "DistilBertForSequenceClassification"
    assert model.dtype == torch.float32
    assert [model.config.id2label[index] for index in range(3)] == list(LABELS)
    assert model.config.max_position_embeddings == 512
    assert 1e6 <= sum(parameter.numel() for parameter in model.parameters()) <= 4e6
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.float16}  # noqa: SIM118
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 5 * 2**20
    assert "vaderSentiment" in (FOLDER / "README.md").read_text(encoding="utf-8")
