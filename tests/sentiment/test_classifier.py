"""The classifier against torch, its limits and its errors, on a checkpoint with random weights made on the spot."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
)

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.sentiment import SentimentClassifier
from hfjax_app.sentiment.bulk import classify_rows
from hfjax_app.sentiment.encoding import Encoder
from hfjax_app.sentiment.table import Cell
from tests.sentiment.conftest import CONFIG, WORDS, save, word_tokenizer

pytestmark = pytest.mark.usefixtures("quick_compiler")

SHORT = DistilBertConfig(**{**CONFIG.to_dict(), "max_position_embeddings": 16})  # one length, so two programs


def sentences(count: int) -> list[str]:
    """Random words, from one to more than the model reads."""
    pick = random.Random(0)
    return [" ".join(pick.choices(WORDS, k=1 + i * 80 // count)) for i in range(count)]


def torch_scores(folder: Path, texts: list[str]) -> list[list[float]]:
    """The probabilities by transformers in torch, each text alone, without padding."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scores = []
    for text in texts:
        encoded = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            logits = model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).logits
        scores.append(logits.softmax(-1)[0].tolist())
    return scores


def test_equals_torch_on_fifty_sentences(folder: Path, classifier: SentimentClassifier) -> None:
    """Of every length, short ones in batches: padding and batching must not show in the numbers."""
    texts = sentences(50)
    results = classifier.classify(texts)
    for scores, expected in zip(results, torch_scores(folder, texts), strict=True):
        assert list(scores) == ["negative", "neutral", "positive"]
        assert list(scores.values()) == pytest.approx(expected, abs=1e-4)
    assert len({max(scores, key=scores.get) for scores in results}) > 1, "the comparison needs texts that differ"


def test_a_long_text_is_cut_and_says_so(classifier: SentimentClassifier) -> None:
    text = " ".join(WORDS * 2)
    assert classifier.token_limit == 64
    assert classifier.count_tokens(text) == 122
    assert classifier.count_tokens("w1 w2") == 4
    beginning = " ".join((WORDS * 2)[:62])
    assert classifier.classify([text]) == classifier.classify([beginning])
    assert classifier.classify([text]) != classifier.classify([" ".join((WORDS * 2)[:61])])


def test_where_a_text_is_cut_is_the_tokenizer_s_choice(folder: Path) -> None:
    """Some models are trained on the ends of texts."""
    tokenizer = word_tokenizer()
    tokenizer.truncation_side = "left"
    encoder = Encoder(tokenizer, AutoModelForSequenceClassification.from_pretrained(folder))
    text = " ".join(WORDS * 2)
    [encoded] = encoder.encode([text])
    assert encoded.cut
    assert encoded.ids == encoder.trace(text).ids == tokenizer(text, truncation=True)["input_ids"]
    assert encoded.ids[1:-1] == tokenizer(text, add_special_tokens=False)["input_ids"][-62:]


def test_one_text_goes_before_long_lists(classifier: SentimentClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every method; else a visitor would wait for the end of other people's files."""
    asked: list[bool] = []
    hold = classifier._line.hold

    def noted(*, urgent: bool) -> AbstractContextManager[None]:
        asked.append(urgent)
        return hold(urgent=urgent)

    monkeypatch.setattr(classifier._line, "hold", noted)
    classifier.submit("w1").result(120)
    classifier.classify(["w1"])
    classifier.explain("w1 w2")
    assert len(asked) > 3
    assert all(asked)
    asked.clear()
    classifier.classify(["w1", "w2"])
    list(classify_rows(classifier, [Cell(text="w1")]))
    assert asked
    assert not any(asked)


def test_serving_compiles_nothing(classifier: SentimentClassifier, compilations: Callable) -> None:
    """Eleven calls of various lengths and sizes."""
    with compilations() as seen:
        for text in sentences(10):
            classifier.classify([text])
        classifier.classify(sentences(40))
    assert seen == []


def test_several_users_at_once_get_their_own_answers(classifier: SentimentClassifier) -> None:
    """Fast tokenizers are not thread-safe ("Already borrowed"), and answers must not be mixed up."""
    groups = [sentences(50)[i::8] for i in range(8)]
    alone = [classifier.classify(group) for group in groups]

    def work(group: list[str]) -> list[dict[str, float]]:
        for text in group:
            classifier.count_tokens(text)
        return classifier.classify(group)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, groups * 3)) == alone * 3


def test_reports_each_program(made: tuple[SentimentClassifier, list[str]], tmp_path: Path) -> None:
    ones, batches = (
        [f"classify_{shape}" for shape in shapes]
        for shapes in (["1x64", "1x16", "1x32", "1x48"], ["32x16", "16x32", "10x48", "8x64"])
    )
    assert made[1] == [*ones, "explain_16x64", "explain_32x16", "explain_32x32", *batches]
    names: list[str] = []
    plain = SentimentClassifier.from_pretrained(
        save(tmp_path, config=SHORT), explains=False, on_report=lambda report: names.append(report.name)
    )
    plain.stop()
    assert names == ["classify_1x16", "classify_32x16"]
    with pytest.raises(ModelUnavailable, match="no explanations"):
        plain.explain("w1")


def test_texts_of_similar_length_share_calls(classifier: SentimentClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 short texts are two batches, also when they are mixed with a long one; a single text is not padded to a batch,
    and a few texts go one by one. Two calls run at once, so their order varies."""
    calls: list[tuple[int, int]] = []
    programs = {
        shape: lambda *args, shape=shape, program=program: calls.append(shape) or program(*args)
        for shape, program in classifier._programs.of_shape.items()
    }
    monkeypatch.setattr(classifier._programs, "of_shape", programs)
    long = " ".join(WORDS[:50])
    classifier.classify(["w1", *["w2 w3"] * 30, long, *["w4 w5 w6"] * 29])
    assert sorted(calls) == [(1, 64), (32, 16), (32, 16)]
    calls.clear()
    classifier.classify(["w1"] * 5)
    assert calls == [(1, 16)] * 5
    calls.clear()
    classifier.classify([*[long] * 5, *["w1"] * 5])  # three of eight rows are short texts, the others are alone
    assert sorted(calls) == [(1, 16), (1, 16), (8, 64)]
    calls.clear()
    classifier.classify([long])
    classifier.classify(["w1"])
    assert calls == [(1, 64), (1, 16)]


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    """Tracing does not change it: torch still runs it afterwards, with the same results."""
    folder = save(tmp_path, config=SHORT)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    before = model.config._attn_implementation
    classifier = SentimentClassifier(model, AutoTokenizer.from_pretrained(folder), explains=False)
    classifier.stop()
    assert model.config._attn_implementation == before
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[2, 5, 3]]), attention_mask=torch.ones(1, 3, dtype=torch.long)).logits
    assert list(classifier.classify(["w1"])[0].values()) == pytest.approx(logits.softmax(-1)[0].tolist(), abs=1e-4)


def test_no_texts_no_answers(classifier: SentimentClassifier) -> None:
    assert classifier.classify([]) == []


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("w1", "list"),
        (None, "list"),
        ([""], "empty"),
        (["  \n\t"], "empty"),
        (["w1", ""], "text 2"),
        ([7], "int"),
        (["w" * 60_001], "60,001 characters: at most 60,000"),
        (["w1"] * 257, "at most 256"),
        (["w\ud800"], "surrogate"),
        (["w1\0"], "NUL"),
    ],
)
def test_bad_input_is_refused(classifier: SentimentClassifier, texts: object, message: str) -> None:
    """Each limit is named, and the classifier goes on working."""
    with pytest.raises(RequestRejected, match=message):
        classifier.classify(texts)
    assert len(classifier.classify(["w1"])) == 1


def test_the_longest_allowed_text_is_taken(classifier: SentimentClassifier) -> None:
    assert classifier.classify(["w1 " * 3333 + "w"])


def damage_none(folder: Path) -> None:
    """Leave only the configuration."""
    (folder / "model.safetensors").unlink()


def damage_truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "message"),
    [(damage_none, "has no weights"), (damage_truncate, "truncated"), (damage_pickle, "only safetensors")],
)
def test_a_bad_folder_says_why(tmp_path: Path, damage: object, message: str) -> None:
    damage(save(tmp_path))
    with pytest.raises(ModelUnavailable, match=message) as caught:
        SentimentClassifier.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_a_classifier_is_refused(tmp_path: Path) -> None:
    """transformers would add a random classifier and only warn, and its scores would look real."""
    with pytest.raises(
        ModelUnavailable, match=r"no trained DistilBertForSequenceClassification: its checkpoint lacks \w"
    ):
        SentimentClassifier.from_pretrained(save(tmp_path, DistilBertForMaskedLM))


def test_labels_are_the_checkpoints(tmp_path: Path) -> None:
    """In the order of the model's outputs, whatever the order in config.json."""
    torch.manual_seed(0)
    save(tmp_path, config=SHORT)
    config = DistilBertConfig.from_pretrained(tmp_path, id2label={2: "c", 0: "a", 1: "b"}, label2id={})
    DistilBertForSequenceClassification(config).save_pretrained(tmp_path)
    classifier = SentimentClassifier.from_pretrained(tmp_path, explains=False)
    classifier.stop()
    got = classifier.classify(["w1 w2 w3"])[0]
    assert list(got) == ["a", "b", "c"]
    assert list(got.values()) == pytest.approx(torch_scores(tmp_path, ["w1 w2 w3"])[0], abs=1e-4)
