"""Classifiers as people have them: LoRA adapters with a head of their own, and models that read long texts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    ModernBertConfig,
    ModernBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
)

from hfjax_app.errors import ModelUnavailable
from hfjax_app.line import FairLine
from hfjax_app.runtime.module import weights_of
from hfjax_app.runtime.parallel_calls import Calls
from hfjax_app.sentiment import SentimentClassifier, encoding
from hfjax_app.sentiment.classifier import ClassifierCheckpoint
from hfjax_app.sentiment.encoding import LENGTHS, Encoder, Lengths
from hfjax_app.sentiment.explanation import Explainer
from hfjax_app.sentiment.plan import SentimentPlanner
from tests.sentiment.conftest import word_tokenizer

pytestmark = [
    pytest.mark.usefixtures("quick_compiler"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # peft's
]

ROBERTA = RobertaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    pad_token_id=0,
    max_position_embeddings=64,
    initializer_range=0.3,
    type_vocab_size=1,
)
THREE = ["bad", "so-so", "good"]
TEXT = "w1 w2 w3 w40"


def adapted(folder: Path, base: Any = RobertaModel, **options: Any) -> list[float]:
    """An adapter and its base in `folder`; returns peft's probabilities of TEXT."""
    torch.manual_seed(0)
    base(ROBERTA).save_pretrained(folder / "base")
    word_tokenizer(60).save_pretrained(folder / "base")
    model = RobertaForSequenceClassification.from_pretrained(
        folder / "base", num_labels=3, ignore_mismatched_sizes=True
    )
    chosen = {"target_modules": ["query"], "init_lora_weights": False} | options
    tuned = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=2, **chosen)).eval()
    tuned.save_pretrained(folder / "adapter")
    ids = torch.tensor([word_tokenizer()(TEXT).input_ids])
    with torch.no_grad():
        return tuned(input_ids=ids, attention_mask=ids * 0 + 1).logits.softmax(-1)[0].tolist()


@pytest.mark.parametrize(
    ("base", "options"),
    [
        (RobertaModel, {}),
        (RobertaModel, {"target_modules": "all-linear", "use_rslora": True}),
        (RobertaForSequenceClassification, {}),  # whose own head has two labels
    ],
    ids=["plain", "all linear layers", "a base with another head"],
)
def test_an_adapter_of_a_classifier_is_merged_with_its_head(base: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """It was refused as a model without weights. The tokenizer is the base's."""
    expected = adapted(tmp_path, base, **options)
    classifier = SentimentClassifier.from_pretrained(tmp_path / "adapter", explains=False)
    try:
        assert classifier.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
        [scores] = classifier.classify([TEXT])
        np.testing.assert_allclose([*scores.values()], expected, atol=1e-4)
    finally:
        classifier.stop()


def test_an_adapter_s_labels(tmp_path: Path) -> None:
    """Of a configuration beside it, which trainers save; a folder with weights of a whole model is that model."""
    adapted(tmp_path)
    config = tmp_path / "adapter" / "config.json"
    config.write_text(json.dumps({"model_type": "roberta", "id2label": dict(enumerate(THREE))}))
    checkpoint = ClassifierCheckpoint(tmp_path / "adapter")
    assert [*checkpoint.model().config.id2label.values()] == THREE
    assert SentimentPlanner(tmp_path / "adapter").facts.has_tokenizer
    config.write_text('{"id2label": {"0": "one"}}')
    assert ClassifierCheckpoint(tmp_path / "adapter").model().config.num_labels == 3
    config.write_text("[")
    assert ClassifierCheckpoint(tmp_path / "adapter").model().config.num_labels == 3


def test_an_adapter_without_a_head(tmp_path: Path) -> None:
    adapted(tmp_path)
    settings = tmp_path / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"use_dora": True}))
    with pytest.raises(ModelUnavailable, match="a LoRA adapter with use_dora"):
        SentimentClassifier.from_pretrained(tmp_path / "adapter")


def modern_bert(positions: int, **options: Any) -> ModernBertConfig:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 2, "sep_token_id": 3}
    config: dict[str, Any] = {"num_attention_heads": 2, "local_attention": 16, "initializer_range": 0.3}
    return ModernBertConfig(max_position_embeddings=positions, **{**sizes, **ids, **config, **options})


def test_a_long_text_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text was cut at 512 tokens, and no page said so. Long texts are attended to in blocks of queries."""
    monkeypatch.setattr(encoding, "LENGTHS", (128, 512, 1_024, 2_048))  # a few of them
    torch.manual_seed(0)
    model = ModernBertForSequenceClassification(modern_bert(1_300)).eval()
    model.save_pretrained(tmp_path)
    tokenizer = word_tokenizer(1_300)
    tokenizer.save_pretrained(tmp_path)
    classifier = SentimentClassifier.from_pretrained(tmp_path, explains=False)
    try:
        assert classifier.token_limit == 1_300
        draw = np.random.default_rng(0)
        texts = [" ".join(f"w{number}" for number in draw.integers(0, 60, words)) for words in (3, 500, 700, 1_290)]
        texts.append(" ".join([texts[-1], texts[0]]))  # a few tokens of it are read
        for text, prediction in zip(texts, classifier.predict(texts), strict=True):
            ids = torch.tensor([tokenizer(text, truncation=True).input_ids])
            with torch.no_grad():
                expected = model(input_ids=ids, attention_mask=ids * 0 + 1).logits.softmax(-1)[0]
            assert not isinstance(prediction, Exception)
            np.testing.assert_allclose([*prediction.scores.values()], expected.numpy(), atol=1e-4)
            assert prediction.cut == (len(text.split()) > 1_298)
    finally:
        classifier.stop()
    explainer = Explainer(model, Encoder(tokenizer, model), weights_of(model), FairLine(1), Calls("calls", 1))
    with pytest.raises(ModelUnavailable, match="the words of a text of 702 tokens are not explained: of 512"):
        explainer.explain(texts[2], 0, "LABEL_0", urgent=True)


@pytest.mark.parametrize(
    ("options", "attention", "limit"),
    [
        ({}, "sdpa", 8_192),
        ({"num_attention_heads": 16}, "sdpa", 8_192),
        ({"num_attention_heads": 16}, "eager", 4_096),
        ({"num_attention_heads": 1024, "hidden_size": 2048}, "eager", 512),
    ],
)
def test_the_limit_is_what_the_model_and_the_memory_have_room_for(
    options: dict[str, Any], attention: str, limit: int
) -> None:
    with torch.device("meta"):
        model = ModernBertForSequenceClassification(modern_bert(16_384, **options))
    model.set_attn_implementation(attention)
    assert Lengths(model, 10**30).token_limit == limit
    assert Lengths(model, 1_000).lengths[-2:] == [768, 1_000] if limit > 512 else True
    assert Lengths(model).lengths == [length for length in LENGTHS if length <= limit]
