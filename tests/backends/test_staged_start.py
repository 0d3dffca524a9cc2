"""Models that serve with a few programs while a process of low priority compiles the others."""

import json
import logging
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from hfjax_app.backends import Backends
from hfjax_app.chat import SamplingParams
from hfjax_app.errors import ModelUnavailable
from hfjax_app.settings import Settings, load_settings
from tests.backends.checkpoints import save_chat
from tests.conftest import HANG_S
from tests.sentiment.conftest import save as save_classifier

GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4], [11, 300, 12]]


def unseen(folder: Path) -> str:
    """The folder with a line in its config that no bundle knows."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"made_for": secrets.token_hex(8)}))
    return str(folder)


@pytest.fixture
def settings(tmp_path: Path, quick_compiler: None, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """With quick compilation, beside which an app would not start in stages."""
    for module in ("loaders", "registry"):
        monkeypatch.setattr(f"hfjax_app.backends.{module}.is_staged", lambda: True)
    save_chat(tmp_path / "chat")
    save_classifier(tmp_path / "sentiment")
    return load_settings(
        chat_model=unseen(tmp_path / "chat"),
        sentiment_model=unseen(tmp_path / "sentiment"),
        image_model=str(tmp_path / "nothing"),
        slots=2,
        context=128,
    )


def expected(settings: Settings) -> list[list[int]]:
    model = LlamaForCausalLM.from_pretrained(settings.chat_model)
    with torch.no_grad():
        made = [
            model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :] for ids in PROMPTS
        ]
    return [tokens.tolist() for tokens in made]


def test_programs_join_while_requests_run(settings: Settings, compilations: Callable) -> None:
    """More requests than slots: a program joins when a slot is free for a moment. Requests compile nothing, and their
    tokens are those of a solo run before, while and after programs join. Until the last program, pauses leave a core to
    the process that compiles, whose priority is low; that one joins without any."""
    alone = expected(settings)
    backends = Backends(settings.model_copy(update={"sentiment_model": settings.image_model})).start()
    assert backends.wait(timeout=HANG_S)
    chat = backends.chat
    assert (chat.state, len(chat.reports)) == ("ready", 4)
    assert chat.progress == f"ready, 4 of {chat.expected} programs; getting faster"
    with pytest.raises(ModelUnavailable, match="the program that scores labels is still being compiled"):
        chat.get().zero_shot.classify("turn", ["user", "model"])
    with compilations() as seen:
        while not backends.wait_for_all_programs(0.3 if len(chat.reports) < chat.expected - 1 else 0):
            assert chat.get().engine.generate(PROMPTS, GREEDY) == alone
        assert chat.get().engine.generate(PROMPTS, GREEDY) == alone
        assert chat.get().zero_shot.classify("turn", ["user", "model"])
    assert seen == []
    assert len(chat.reports) == chat.expected
    assert [report.cached for report in chat.reports] == [n >= 4 for n in range(chat.expected)]
    assert chat.progress.startswith(f"ready; {chat.expected} programs in ")
    backends.stop()


@pytest.mark.slow
def test_a_second_model_joins_while_requests_run(settings: Settings, compilations: Callable) -> None:
    """Another process compiles it. Requests to the first compile nothing, and their tokens stay those of a solo run."""
    alone, second = expected(settings), f"{settings.chat_model}-second"
    shutil.copytree(settings.chat_model, second)
    unseen(Path(second))
    chosen = {"sentiment_model": settings.image_model, "chat_model": f"{settings.chat_model},{second}"}
    backends = Backends(settings.model_copy(update=chosen)).start()
    assert backends.wait(timeout=HANG_S)
    chat, other = backends.chat_models
    assert other.state in ("waiting", "preparing")
    with compilations() as seen:
        while not backends.wait_for_all_programs(0):
            assert chat.get().engine.generate(PROMPTS, GREEDY) == alone
        assert other.get().engine.generate(PROMPTS, GREEDY) == alone
    assert len(seen) < 5, "single operations beside the second model's programs"
    assert (other.state, other.compilations, len(other.reports)) == ("ready", 0, chat.expected)
    backends.stop()


@pytest.mark.slow
def test_a_classifier_serves_every_text_with_one_program(settings: Settings, compilations: Callable) -> None:
    backends = Backends(settings.model_copy(update={"chat_model": settings.image_model})).start()
    assert backends.wait(timeout=HANG_S)
    sentiment = backends.sentiment
    assert (sentiment.state, len(sentiment.reports)) == ("ready", 1)
    with pytest.raises(ModelUnavailable, match="the program that explains texts is still being compiled"):
        sentiment.get().explain("w1 w2")
    with compilations() as seen:
        scores = sentiment.get().classify(["w1 w2", "w3"])
        assert backends.wait_for_all_programs(timeout=HANG_S)
        for before, after in zip(scores, sentiment.get().classify(["w1 w2", "w3"]), strict=True):
            assert before == pytest.approx(after, abs=1e-5)
        assert sentiment.get().explain("w1 w2").pieces
    assert seen == []
    backends.stop()


@pytest.mark.slow
def test_without_the_other_process_this_one_compiles(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    no_chat = settings.model_copy(update={"chat_model": settings.image_model})
    with caplog.at_level(logging.WARNING):
        backends = Backends(no_chat).start()
        assert backends.wait_for_all_programs(timeout=HANG_S)
    sentiment = backends.sentiment
    assert len(sentiment.reports) == sentiment.expected
    assert not any(report.cached for report in sentiment.reports)
    assert "the process that compiles programs failed, so this one does it: exit status 1" in caplog.messages
    assert sentiment.get().explain("w1 w2").pieces
    backends.stop()
