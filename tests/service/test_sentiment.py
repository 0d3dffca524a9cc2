"""Explanations run in threads of their own: they and the shared threads don't wait for each other."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from hfjax_app.backends import Backend
from hfjax_app.backends.backend import Models
from hfjax_app.backends.loaders import ChatLoader, SentimentLoader
from hfjax_app.sentiment import Explanation
from hfjax_app.service.sentiment import SentimentService
from hfjax_app.settings import load_settings
from tests.conftest import quickly_compiled
from tests.sentiment.conftest import save


def test_an_explanation_takes_no_shared_thread(tmp_path: Path) -> None:
    """The explanation of a long text takes seconds. As many of them as threads blocked all visitors' lists."""
    folder = save(tmp_path)
    backend = Backend(kind="sentiment", name="tiny", model=str(folder), loader=SentimentLoader(load_settings()))
    models = SimpleNamespace(find=lambda name: backend, first=backend)
    no_chat = Models("chat", ChatLoader(load_settings()))
    with quickly_compiled():
        backend.warm_up()

    async def explained() -> Explanation:
        service = SentimentService(models, no_chat)
        loop, release = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.create_task(asyncio.to_thread(release.wait))
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(service.explanation("w1 w2", None), timeout=60)
        finally:
            release.set()
            await busy

    assert asyncio.run(explained()).label in ("negative", "neutral", "positive")
    # Five lists of 256 texts filled the line of single texts, and others were told that it is full.
    backend.get().stop()
    texts = [f"w{number}" for number in range(70)]
    predictions = asyncio.run(SentimentService(models, no_chat).predict_all(texts))
    assert [found.scores for found in predictions[-2:]] == backend.get().classify(texts[-2:])


def test_labels_that_wait_take_no_shared_thread() -> None:
    """60 requests of one client for its own labels held up another's long prompt for eleven seconds."""
    threads: list[str] = []

    class Scorer:
        def check(self, text: object, labels: object) -> None: ...

        def classify(self, text: str, labels: list[str]) -> dict[str, float]:
            threads.append(threading.current_thread().name)
            return dict.fromkeys(labels, 0.5)

    judge = SimpleNamespace(name="judge", get=lambda: SimpleNamespace(zero_shot=Scorer()))
    models = SimpleNamespace(first=judge)
    service = SentimentService(models, Models("chat", ChatLoader(load_settings())))  # type: ignore[arg-type]
    assert asyncio.run(service.label_scores("text", ["a", "b"])) == {"a": 0.5, "b": 0.5}
    assert [name.startswith("zero-shot") for name in threads] == [True]
