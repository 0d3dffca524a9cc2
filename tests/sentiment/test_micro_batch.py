"""Micro-batching: which requests share a call, and which fail."""

import threading
import time
from concurrent.futures import wait

import pytest

from hfjax_app.errors import EngineStopped, ModelUnavailable, RequestRejected
from hfjax_app.sentiment import Prediction, SentimentClassifier
from hfjax_app.sentiment.classifier import MicroBatcher
from tests.conftest import HANG_S


def prediction(text: str) -> Prediction:
    return Prediction(scores={text: 1.0})


def test_requests_within_the_window_share_a_call() -> None:
    """The window is an hour, so that a busy machine can't miss it; `stop` closes it."""
    calls: list[list[str]] = []

    def predict_all(texts: list[str]) -> list[Prediction | Exception]:
        calls.append(texts)
        return [prediction(text) for text in texts]

    batcher = MicroBatcher(predict_all, window_s=3600)
    futures = [batcher.submit(f"t{i}") for i in range(8)]
    batcher.stop()
    assert [future.result(0).top for future in futures] == [f"t{i}" for i in range(8)]
    assert calls == [[f"t{i}" for i in range(8)]]


def test_requests_that_come_during_a_call_share_the_next() -> None:
    calls: list[list[str]] = []
    begun, go_on = threading.Event(), threading.Event()

    def predict_all(texts: list[str]) -> list[Prediction | Exception]:
        calls.append(texts)
        begun.set()
        assert go_on.wait(HANG_S)
        return [prediction(text) for text in texts]

    batcher = MicroBatcher(predict_all, window_s=0.0)
    first = batcher.submit("a")
    assert begun.wait(HANG_S)
    others = [batcher.submit(text) for text in "bcd"]
    cancelled = batcher.submit("e")
    assert cancelled.cancel()
    go_on.set()
    wait([first, *others], HANG_S)
    batcher.stop()
    assert calls == [["a"], ["b", "c", "d"]]


def test_an_exception_fails_every_waiting_request() -> None:
    batcher = MicroBatcher(lambda texts: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            batcher.submit("a").result(HANG_S)
    batcher.stop()
    with pytest.raises(EngineStopped):
        batcher.submit("a")
    batcher.stop()


def test_stop_answers_waiting_requests() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def predict_all(texts: list[str]) -> list[Prediction | Exception]:
        begun.set()
        assert go_on.wait(HANG_S)
        return [prediction(text) for text in texts]

    batcher = MicroBatcher(predict_all, window_s=0.0)
    futures = [batcher.submit("a")]
    assert begun.wait(HANG_S)
    stopping = threading.Thread(target=batcher.stop)
    futures += [batcher.submit(text) for text in "bc"]
    stopping.start()
    while batcher._open:
        time.sleep(0.001)
    go_on.set()
    stopping.join(HANG_S)
    assert [future.result(HANG_S).top for future in futures] == ["a", "b", "c"]


def test_a_poisoned_text_fails_alone(classifier: SentimentClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text makes the tokenizer raise, one the model's numbers NaN: the other texts of the call are classified."""
    expected = classifier.classify(["w1", "w2 w3"])
    encode, of_scores = classifier._encoder.encode, classifier._prediction

    def poisoned(texts: list[str]) -> list:
        if any("poison" in text for text in texts):
            raise RuntimeError("the tokenizer choked")
        return encode(texts)

    def not_a_number(scores: list[float], cut: bool) -> Prediction | ModelUnavailable:
        return of_scores([float("nan")] * 3 if cut else scores, cut)

    monkeypatch.setattr(classifier._encoder, "encode", poisoned)
    monkeypatch.setattr(classifier, "_prediction", not_a_number)
    texts = ["w1", "poison", "w2 w3", "w1 " * 80]
    futures = [classifier.submit(text) for text in texts]
    assert futures[0].result(HANG_S).scores == pytest.approx(expected[0], abs=1e-5)
    assert futures[2].result(HANG_S).scores == pytest.approx(expected[1], abs=1e-5)
    with pytest.raises(RuntimeError, match="choked"):
        futures[1].result(HANG_S)
    with pytest.raises(ModelUnavailable, match="no numbers"):
        futures[3].result(HANG_S)
    with pytest.raises(RequestRejected, match="empty"):
        classifier.submit(" ")
