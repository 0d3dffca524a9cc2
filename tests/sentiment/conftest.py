"""Tiny classifiers with random weights, and a tokenizer whose words are w0, w1, ..."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

from hfjax_app.sentiment import SentimentClassifier
from tests.conftest import quickly_compiled

WORDS = [f"w{i}" for i in range(60)]
PAD, UNK, CLS, SEP = range(4)
CONFIG = DistilBertConfig(
    vocab_size=64,
    dim=32,
    hidden_dim=64,
    n_layers=2,
    n_heads=2,
    max_position_embeddings=64,
    initializer_range=0.5,
    id2label={0: "negative", 1: "neutral", 2: "positive"},
    label2id={"negative": 0, "neutral": 1, "positive": 2},
    pad_token_id=PAD,
)


def word_tokenizer(limit: int = 64) -> PreTrainedTokenizerFast:
    """One token a word, between [CLS] and [SEP], padded with id 0."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=limit
    )


def save(folder: Path, kind: type = DistilBertForSequenceClassification, config: DistilBertConfig = CONFIG) -> Path:
    """A checkpoint with random weights, large enough that probabilities differ."""
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="session")
def made(folder: Path) -> Iterator[tuple[SentimentClassifier, list[str]]]:
    """A classifier, and the names of its programs in the order in which they were compiled."""
    names: list[str] = []
    with quickly_compiled():  # made before a module's own fixtures
        classifier = SentimentClassifier.from_pretrained(folder, on_report=lambda report: names.append(report.name))
    yield classifier, names
    classifier.stop()


@pytest.fixture(scope="session")
def classifier(made: tuple[SentimentClassifier, list[str]]) -> SentimentClassifier:
    """Shared by tests, which must leave it as it is."""
    return made[0]
