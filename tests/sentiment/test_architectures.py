"""Architectures of AutoModelForSequenceClassification against torch, with random weights."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BartConfig,
    BertConfig,
    ConvBertConfig,
    DebertaV2Config,
    DistilBertConfig,
    FNetConfig,
    LlamaConfig,
    LongformerConfig,
    MBartConfig,
    MobileBertConfig,
    ModernBertConfig,
    PretrainedConfig,
    RobertaConfig,
    T5Config,
    XLMConfig,
    XLNetConfig,
    pipeline,
)

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.sentiment import SentimentClassifier
from hfjax_app.sentiment.classifier import entailment_of
from tests.sentiment.conftest import CLS, PAD, SEP, UNK, WORDS, word_tokenizer

pytestmark = pytest.mark.usefixtures("quick_compiler")

LIMIT = 16  # the shortest length of programs, so that there are few
BASE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": LIMIT,
    "initializer_range": 0.3,
    "pad_token_id": PAD,
    "num_labels": 3,
}
# What microsoft/deberta-v3-base has in its config.json, besides sizes.
DEBERTA_V3 = {
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "max_relative_positions": -1,
    "type_vocab_size": 0,
}
CONFIGS = [
    pytest.param(BertConfig(**BASE), marks=pytest.mark.slow),  # RoBERTa's layers are the same
    DistilBertConfig(
        vocab_size=64,
        dim=32,
        hidden_dim=64,
        n_layers=1,
        n_heads=2,
        max_position_embeddings=LIMIT,
        initializer_range=0.3,
        pad_token_id=PAD,
        num_labels=3,
        problem_type="multi_label_classification",
    ),
    RobertaConfig(**BASE),
    DebertaV2Config(**BASE, **DEBERTA_V3),
    ModernBertConfig(
        **BASE | {"num_hidden_layers": 2},  # a global one and a local one
        local_attention=8,
        global_attn_every_n_layers=2,
        cls_token_id=CLS,
        sep_token_id=SEP,
        bos_token_id=CLS,
    ),
]
TEXTS = [" ".join(WORDS[first : first + count]) for first, count in [(0, 1), (7, 3), (20, 12), (3, 29), (11, 40)]]


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda config: config.model_type)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[torch.nn.Module, SentimentClassifier]]:
    config: PretrainedConfig = request.param
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    classifier = SentimentClassifier(model, word_tokenizer(limit=10**30))
    yield model, classifier
    classifier.stop()


def test_equals_torch(pair: tuple[torch.nn.Module, SentimentClassifier]) -> None:
    """Each text alone and unpadded in torch, all in one padded batch here; one is longer than the model reads."""
    model, classifier = pair
    roberta = isinstance(model.config, RobertaConfig)
    assert classifier.token_limit == (LIMIT - 1 if roberta else LIMIT)
    tokenizer = word_tokenizer(classifier.token_limit)
    results = classifier.classify(TEXTS)
    first = [scores[classifier.labels[0]] for scores in results]
    assert max(first) - min(first) > 0.02, "the comparison needs texts that differ"
    for text, scores in zip(TEXTS, results, strict=True):
        encoded = tokenizer(text, truncation=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).logits[0]
        expected = logits.sigmoid() if classifier.multi_label else logits.softmax(-1)
        assert list(scores.values()) == pytest.approx(expected.tolist(), abs=1e-4)


def test_contributions_sum_to_the_change_of_the_logit(pair: tuple[torch.nn.Module, SentimentClassifier]) -> None:
    model, classifier = pair
    for text in TEXTS[1:3]:
        explanation = classifier.explain(text)
        ids = [CLS, *(4 + int(word[1:]) for word in text.split()), SEP]
        with torch.no_grad():
            rows = torch.tensor([ids])
            logit = model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits[0]
        target = classifier.labels.index(explanation.label)
        assert explanation.logit == pytest.approx(float(logit[target]), abs=1e-3)
        assert explanation.error < 0.02


def test_a_regression_is_refused() -> None:
    """Its output is not a probability."""
    model = AutoModelForSequenceClassification.from_config(
        BertConfig(**{**BASE, "num_labels": 1}, problem_type="regression")
    )
    with pytest.raises(ModelUnavailable, match="regression"):
        SentimentClassifier(model.eval(), word_tokenizer())


XLNET = {"vocab_size": 64, "d_model": 32, "d_inner": 64, "n_layer": 1, "n_head": 2, "initializer_range": 0.3}


def test_a_config_that_names_no_number_of_positions() -> None:
    """XLNet's says -1. Texts were cut to -1 tokens, and the tokenizer raised an OverflowError."""
    torch.manual_seed(1)
    config = XLNetConfig(**XLNET, num_labels=3, pad_token_id=PAD, summary_type="first")
    model = AutoModelForSequenceClassification.from_config(config).eval()
    classifier = SentimentClassifier(model, word_tokenizer(LIMIT), explains=False)
    assert classifier.token_limit == LIMIT
    try:
        [scores] = classifier.classify([TEXTS[2]])
    finally:
        classifier.stop()
    with torch.no_grad():
        logits = model(**word_tokenizer()(TEXTS[2], return_tensors="pt")).logits[0]
    assert list(scores.values()) == pytest.approx(logits.softmax(-1).tolist(), abs=1e-4)


SMALL = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": LIMIT,
    "init_std": 0.3,
    "pad_token_id": UNK,  # not the tokenizer's
    "eos_token_id": SEP,
    "num_labels": 3,
}
T5 = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 2,
    "initializer_factor": 3.0,
}
ENDS = [
    MobileBertConfig(
        **BASE | {"initializer_range": 0.1, "num_hidden_layers": 2},
        embedding_size=32,
        intra_bottleneck_size=32,
        true_hidden_size=32,
    ),
    BartConfig(**SMALL),
    pytest.param(MBartConfig(**SMALL), marks=pytest.mark.slow),
    T5Config(**T5, eos_token_id=SEP, pad_token_id=PAD, decoder_start_token_id=PAD, num_labels=3),
    XLNetConfig(**XLNET, num_labels=3),
]


@pytest.mark.parametrize("config", ENDS, ids=lambda config: config.model_type)
def test_the_end_of_a_text_is_that_of_the_text_alone(config: PretrainedConfig) -> None:
    """BART's and T5's states of end tokens had a shape that depends on values; jax's message about it was shown. XLNet
    reads the last position, which was padding, and MobileBERT the embedding behind the last token."""
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    tokenizer = word_tokenizer(LIMIT)
    classifier = SentimentClassifier(model, tokenizer)
    try:
        results = classifier.classify(TEXTS)
        if config.is_encoder_decoder:
            with pytest.raises(ModelUnavailable, match="no explanations"):
                classifier.explain(TEXTS[0])
        else:
            assert classifier.explain(TEXTS[1]).error < 0.02
    finally:
        classifier.stop()
    for text, scores in zip(TEXTS, results, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0]
        assert list(scores.values()) == pytest.approx(logits.softmax(-1).tolist(), abs=1e-4)


def test_a_tokenizer_without_the_end_token_that_is_pooled() -> None:
    """Refused when it is loaded, with torch's reason."""
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(BartConfig(**SMALL | {"eos_token_id": 60})).eval()
    with pytest.raises(ModelUnavailable, match=r"can't judge a text: .* at least one <eos>"):
        SentimentClassifier(model, word_tokenizer(LIMIT))


@pytest.mark.parametrize("where", ["tokenizer", "neither", "another"])
def test_the_padding_token_of_a_decoder(where: str) -> None:
    """Decoders pool the last token that is not padding. Where only the tokenizer had a padding token, or the config had
    another one, they pooled the padding: wrong probabilities, without a word."""
    torch.manual_seed(1)
    config = LlamaConfig(**BASE | {"pad_token_id": SEP if where == "another" else None}, bos_token_id=2, eos_token_id=3)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    tokenizer = word_tokenizer(LIMIT)
    expected = []
    for text in TEXTS:
        with torch.no_grad():
            logits = model(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0]
        expected.append(logits.softmax(-1).tolist())
    if where == "neither":
        tokenizer.pad_token = None
    classifier = SentimentClassifier(model, tokenizer, explains=where == "neither")
    try:
        results = [list(scores.values()) for scores in classifier.classify(TEXTS)]
        if where == "neither":
            assert classifier.explain(TEXTS[2]).error < 0.02
    finally:
        classifier.stop()
    assert model.config.pad_token_id == (SEP if where == "another" else None)
    for scores, alone in zip(results, expected, strict=True):
        assert scores == pytest.approx(alone, abs=1e-4)


NLI = {0: "contradiction", 1: "neutral", 2: "ENTAILMENT"}


def test_an_nli_model_judges_own_labels_as_transformers_pipeline() -> None:
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(
        BartConfig(**SMALL, id2label=NLI, label2id={label: index for index, label in NLI.items()})
    ).eval()
    tokenizer = word_tokenizer(LIMIT)
    classifier = SentimentClassifier(model, tokenizer, explains=False)
    classifier.stop()
    zero_shot = classifier.zero_shot
    assert zero_shot is not None
    oracle = pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    labels = ["w1 w2", "w40", "w7 w8 w9"]
    for text in TEXTS[1:4:2]:  # the second is cut
        want = oracle(text, labels)
        found = zero_shot.classify(text, labels)
        assert list(found) == labels
        assert found == pytest.approx(dict(zip(want["labels"], want["scores"], strict=True)), abs=1e-4)
    for wrong, says in [("w1", "not str"), (["w1"], "1 labels"), (["w1", "W1"], "twice"), (["w1", " "], "label")]:
        with pytest.raises(RequestRejected, match=says):
            zero_shot.classify("w1", wrong)
    with pytest.raises(RequestRejected, match=f"longer than the {LIMIT} tokens"):
        zero_shot.classify("w1", ["w1", " ".join("abcdefghijklmnopqrstuvwxyzabc")])


def test_which_models_judge_own_labels(pair: tuple[torch.nn.Module, SentimentClassifier]) -> None:
    """Those with the label entailment, and without BERT's embeddings of a pair's texts."""
    assert pair[1].zero_shot is None
    assert entailment_of(SimpleNamespace(config=RobertaConfig(**BASE, type_vocab_size=1, id2label=NLI))) == 2
    assert entailment_of(SimpleNamespace(config=BertConfig(**BASE, id2label=NLI))) is None


JUDGES_PADDING = "padding of a text too.* take a classifier of another architecture"
REFUSED = [
    (ConvBertConfig(**BASE | {"num_hidden_layers": 2}, embedding_size=32), JUDGES_PADDING),
    (FNetConfig(**BASE, tpu_short_seq_length=LIMIT), JUDGES_PADDING),
    (LongformerConfig(**BASE, attention_window=8), r"depends on the values of tensors \(modeling_longformer.py"),
    (XLMConfig(vocab_size=64, emb_dim=32, n_layers=1, n_heads=2, max_position_embeddings=LIMIT), "values of tensors"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED, ids=lambda part: getattr(part, "model_type", ""))
def test_what_cannot_be_right_is_refused(config: PretrainedConfig, reason: str) -> None:
    """In one line: convolutions and Fourier transforms along the text read its padding."""
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with pytest.raises(ModelUnavailable, match=rf"{type(model).__name__} .*{reason}") as caught:
        SentimentClassifier(model, word_tokenizer())
    assert len(str(caught.value)) < 250
