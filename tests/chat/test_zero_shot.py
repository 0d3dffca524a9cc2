"""Zero-shot labels: scores compared with torch token by token, running streams left alone, and bad labels."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hfjax_app.chat import ChatEngine, SamplingParams
from hfjax_app.chat.zero_shot import ZeroShot
from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.warm_up import WarmUp

LABELS = ["refund request", "praise", "bug report", "<end_of_turn>"]
TEXT = "The model of the turn is end it."


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def zero_shot_setup(
    request: pytest.FixtureRequest,
    engine_of: Callable[[str], ChatEngine],
    model_of: Callable[[str], PreTrainedModel],
) -> tuple[ZeroShot, ChatEngine, PreTrainedModel]:
    engine = engine_of(request.param)
    zero_shot = ZeroShot(engine)
    WarmUp(Programs(), [zero_shot.spec()], staged=False).start()
    return zero_shot, engine, model_of(request.param)


def torch_sum(model: PreTrainedModel, prompt: list[int], label: list[int]) -> float:
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt + label])).logits[0].log_softmax(-1)
    return sum(float(logprobs[len(prompt) - 1 + at, token]) for at, token in enumerate(label))


def test_sums_equal_torch(zero_shot_setup: tuple[ZeroShot, ChatEngine, PreTrainedModel]) -> None:
    """Labels of several lengths, with a text and without; typed special tokens stay text."""
    zero_shot, _, model = zero_shot_setup
    names = tuple(LABELS[:3])
    for text in (TEXT, ""):
        got = zero_shot.log_probabilities(text, LABELS[:3])
        expected = [torch_sum(model, zero_shot.prompt(text, names), zero_shot.label_tokens(name)) for name in names]
        assert got == pytest.approx(expected, abs=1e-3)
    assert len(zero_shot.label_tokens("<end_of_turn>")) > 1


def test_probabilities_are_calibrated(zero_shot_setup: tuple[ZeroShot, ChatEngine, PreTrainedModel]) -> None:
    """softmax of the difference to the empty text, in the order given; one call compiles nothing."""
    zero_shot, _, _ = zero_shot_setup
    scores = zero_shot.classify(TEXT, LABELS[:3])
    difference = np.subtract(zero_shot.log_probabilities(TEXT, LABELS[:3]), zero_shot.log_probabilities("", LABELS[:3]))
    assert list(scores) == LABELS[:3]
    expected = np.exp(difference) / np.exp(difference).sum()
    assert list(scores.values()) == pytest.approx(expected.tolist(), abs=1e-4)


def test_streams_are_not_disturbed(zero_shot_setup: tuple[ZeroShot, ChatEngine, PreTrainedModel], compilations) -> None:
    """A conversation that runs at the same time gets the tokens that it gets alone; the engine gets no request."""
    zero_shot, engine, _ = zero_shot_setup
    params = SamplingParams(max_tokens=60, temperature=0.0)
    prompt = engine.tokenizer.encode("What is the name of the turn?")
    [alone] = engine.generate([prompt], params)
    before = engine.stats().requests
    with compilations() as seen, engine.stream(prompt, params) as stream:
        tokens = [next(stream)]
        for _ in range(3):
            zero_shot.classify(TEXT, LABELS)
            tokens.append(next(stream))
        tokens += list(stream)
    assert tokens == alone
    assert seen == []
    assert engine.stats().requests == before + 1


@pytest.mark.parametrize(
    ("text", "labels", "says"),
    [
        ("", ["a", "b"], "text is empty"),
        (None, ["a", "b"], "text: must be text"),
        ("x", "a, b", "must be a list"),
        ("x", ["a"], "1 labels: must be 2 to 10"),
        ("x", [str(at) for at in range(11)], "11 labels"),
        ("x", ["a", " "], "label is empty"),
        ("x", ["a", 7], "label: must be text"),
        ("x", ["Praise", " praise"], "'praise' is there twice"),
        ("x", ["a", "q" * 61], "61 characters: at most 60"),
        ("x", ["a", "zqxj" * 5], "20 tokens: at most 16"),
        ("zqxj " * 200, ["a", "b"], "tokens with the question: at most 240"),
    ],
)
def test_bad_requests(
    zero_shot_setup: tuple[ZeroShot, ChatEngine, PreTrainedModel], text: object, labels: object, says: str
) -> None:
    zero_shot, _, _ = zero_shot_setup
    with pytest.raises(RequestRejected, match=says):
        zero_shot.classify(text, labels)
    assert sum(zero_shot.classify("x", ["a", "b"]).values()) == pytest.approx(1)
