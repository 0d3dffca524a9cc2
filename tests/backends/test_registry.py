"""The three backends on the embedded models: warm one by one, then serve without compiling anything."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from hfjax_app.backends import Backends
from hfjax_app.backends.snapshot import take
from hfjax_app.chat import SamplingParams
from hfjax_app.chat.request import ChatRequest
from hfjax_app.errors import ModelUnavailable
from hfjax_app.images import ImageRequest
from hfjax_app.runtime.process import prepare
from hfjax_app.settings import load_settings
from tests.backends.checkpoints import save_classifier
from tests.conftest import quickly_compiled

SENTENCES = [
    "I loved it.",
    "The room was cold, the staff were rude and no one said sorry for any of it.",
    "It opens at nine.",
    "Not bad at all!",
    "word " * 100,
    "Is it any good?",
    "A great cast, but a dull story.",
    "fine",
    "I would not buy this again.",
    "The best coffee in town.",
]


START = """
import json
import jax
from hfjax_app.backends import Backends
from hfjax_app.chat import SamplingParams
from hfjax_app.settings import load_settings

traced = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **about: traced.append(about.get("fun_name")) if "jaxpr_trace" in event else None
)
backends = Backends(load_settings()).start()
assert backends.wait(timeout=300)
print(json.dumps(traced))
print(all(report.cached for backend in backends.all for report in backend.reports))
print(backends.chat.get().engine.generate([[5, 6, 7]], SamplingParams(max_tokens=12, temperature=0.0)))
print(backends.compiler.compilations, backends.compiler.from_cache)
backends.stop()
"""

UNPREPARED = """
from hfjax_app.backends import Backends
from hfjax_app.settings import load_settings

backends = Backends(load_settings()).start()
assert backends.wait(timeout=60)
for backend in backends.all:
    print(backend.progress)
print(backends.device())
"""


@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    with quickly_compiled():  # as the server of studio/, whose programs are in the cache
        jax.clear_caches()  # single operations of earlier tests, compiled in another way, would not reach the folder
        warm = Backends(load_settings()).start()
        assert warm.wait(timeout=1200)
        yield warm
        warm.stop()


def test_a_snapshot_tells_what_the_models_hold_and_do(backends: Backends) -> None:
    engine = backends.chat.get().engine
    before = take(backends)
    assert [(model.kind, model.name) for model in before.models] == [(each.kind, each.name) for each in backends.all]
    for model, backend in zip(before.models, backends.all, strict=True):
        assert model.programs == tuple(backend.reports)
        assert model.compiled_by_requests == 0
        assert model.temporary == max(report.temporary for report in backend.reports)
        assert model.memory is not None
        assert model.memory.weights > 3 << 20
        assert (model.memory.cache > 0) == (model.chat is not None) == (model.kind == "chat")
    chat = before.models[0].chat
    assert chat is not None
    assert {slot.doing for slot in chat.slots} == {"free"}
    assert len(chat.slots) == chat.stats.slots

    engine.generate([[5, 6, 7]], SamplingParams(max_tokens=12, temperature=0.0))
    after = take(backends).models[0].chat
    assert after is not None
    assert after.stats == engine.stats()
    assert after.stats.prefilled_tokens > chat.stats.prefilled_tokens
    assert len(after.first_token_s) == len(chat.first_token_s) + 1
    assert all(0 < seconds < 60 for seconds in after.first_token_s)
    assert any(slot.reused for slot in after.slots), "a free slot keeps what a follow-up may reuse"


def test_a_second_start_compiles_nothing(backends: Backends) -> None:
    """All three backends, in a second process: programs come from bundles, and the few single operations besides from
    jax's cache. The chat model gives the same tokens.

    Gemma's programs were traced in the order of a set of strings, which differs between processes, and every other
    start compiled them again.
    """
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for _ in range(2):  # this process, where other tests ran before, compiles some operations otherwise than a start
        again = subprocess.run([sys.executable, "-c", START], env=environment, capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
        *_, traced, all_loaded, tokens, counts = again.stdout.splitlines()
        compilations, from_cache = map(int, counts.split())
        if from_cache == compilations:
            break
    assert all_loaded == "True"
    models = ("chat_", "classify", "explain", "denoise", "decode_", "encode_", "_write")
    assert [name for name in json.loads(traced) if name.startswith(models)] == [], "nothing of a model is traced"
    assert from_cache == compilations < 20
    greedy = SamplingParams(max_tokens=12, temperature=0.0)
    assert tokens == str(backends.chat.get().engine.generate([[5, 6, 7]], greedy))


def test_all_are_ready_and_every_program_is_in_the_ledger(backends: Backends) -> None:
    assert [(b.kind, b.state, b.error) for b in backends.all] == [
        (name, "ready", None) for name in ("chat", "sentiment", "images")
    ]
    for backend in backends.all:
        names = [report.name for report in backend.reports]
        assert len(names) == len(set(names)) >= 2
        assert backend.progress.startswith(f"ready; {len(names)} programs in ")
    assert backends.device()
    assert gc.get_freeze_count() > 100_000, "a full collection holds up everybody"


def test_serving_compiles_nothing(backends: Backends, compilations: Callable) -> None:
    """A whole conversation, two images and ten sentences use the programs of the warm-up."""

    async def converse() -> list[str]:
        chat, messages = backends.chat.get(), []
        for text in ("Hello!", "My name is Ada.", "What is JAX?", "What's my name?", "Tell me a story about a fox."):
            messages.append({"role": "user", "content": text})
            params = SamplingParams(max_tokens=120, temperature=0.7 if "story" in text else 0.0, top_p=0.9)
            request = ChatRequest(messages=messages, sampling=params, system_prompt="Be kind.")
            replies = [reply async for reply in chat.reply(request)]
            messages.append({"role": "assistant", "content": replies[-1].text})
        return [message["content"] for message in messages]

    with compilations() as seen:
        replies = asyncio.run(converse())
        scores = [backends.sentiment.get().classify([sentence])[0] for sentence in SENTENCES[:5]]
        scores += backends.sentiment.get().classify(SENTENCES[5:])
        for seed, steps, guidance in ((1, 4, 7.5), (2, 7, 1.0)):
            made = list(
                backends.images.get().generate(
                    ImageRequest("a red circle", steps=steps, guidance_scale=guidance, seed=seed)
                )
            )
            assert made[-1].image is not None
    assert all(replies)
    assert len(scores) == 10
    assert seen == []


def test_a_backend_that_is_not_ready_reports_its_progress() -> None:
    backends = Backends(load_settings())
    with pytest.raises(ModelUnavailable, match=r"chat is warming up \(waiting for its turn\)"):
        backends.chat.get()


def test_a_backend_that_fails_says_why_and_the_others_come_up(tmp_path: Path) -> None:
    save_classifier(tmp_path / "sentiment")
    models = {"chat_model": tmp_path, "sentiment_model": tmp_path / "sentiment", "image_model": tmp_path}
    with quickly_compiled():
        backends = Backends(load_settings(**{name: str(folder) for name, folder in models.items()})).start()
        assert backends.wait(timeout=300)
    assert [backend.state for backend in backends.all] == ["failed", "ready", "failed"]
    for backend in (backends.chat, backends.images):
        assert tmp_path.name in backend.progress
        assert str(tmp_path) not in backend.progress, "visitors see it"
        assert "\n" not in backend.progress
        with pytest.raises(ModelUnavailable, match=f"{backend.kind} is not available: "):
            backend.get()
    backends.stop()


def test_a_panic_in_a_library_is_a_failure_like_others(tmp_path: Path) -> None:
    """A panic in Rust is no Exception. This tokenizer loads, and panics at its first text, after the compilation."""
    folder = save_classifier(tmp_path / "sentiment")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    pieces = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*pieces, {"Sequence": {"id": "B", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": {}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": template}))
    nothing = str(tmp_path)
    with quickly_compiled():
        settings = load_settings(chat_model=nothing, image_model=nothing, sentiment_model=str(folder))
        backends = Backends(settings).start()
        assert backends.wait(timeout=300)
    assert backends.sentiment.state == "failed"
    assert "PanicException" in backends.sentiment.progress
    backends.stop()


def test_other_compilations_of_jax_get_checksums_when_all_are_ready(tmp_path: Path) -> None:
    """They got them at the end of the process, and most servers are killed: each start compiled them again."""
    prepare()
    folder = jax.config.jax_compilation_cache_dir
    entry = tmp_path / f"jit_add-{'0' * 64}-cache"
    entry.write_text("compiled")
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        nothing = str(tmp_path)
        backends = Backends(load_settings(chat_model=nothing, sentiment_model=nothing, image_model=nothing)).start()
        assert backends.wait(timeout=60)
    finally:
        jax.config.update("jax_compilation_cache_dir", folder)
    assert [backend.state for backend in backends.all] == ["failed"] * 3
    assert entry.with_name(f"{entry.name}.sha256").exists()


def test_where_nothing_can_be_prepared_every_backend_says_why() -> None:
    """In a new process whose cache is a bucket: jax can write to some; here it became a folder "gs:".

    The error ended the warm-up's thread, and the page waited for ever.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "JAX_COMPILATION_CACHE_DIR": "gs://bucket/programs",
    }
    ran = subprocess.run([sys.executable, "-c", UNPREPARED], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    *progress, device = ran.stdout.splitlines()
    assert len(progress) == 3
    for line in progress:
        assert line.startswith("failed: JAX_COMPILATION_CACHE_DIR = 'gs://bucket/programs': compiled programs are kept")
    assert device == "none"


def test_the_device_is_known_while_hosts_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page and /health show it; they had to wait as long as the hosts did."""
    met = threading.Event()

    def prepare(folder: Path | None) -> None:
        met.wait()
        raise ModelUnavailable("no hosts here")

    monkeypatch.setattr("hfjax_app.backends.registry.prepare", prepare)
    backends = Backends(load_settings()).start()
    assert backends.device() == "starting"
    met.set()
    assert backends.wait(timeout=60)
    assert backends.device() == "none"


def test_a_broken_or_stopped_backend_is_not_ready(backends: Backends) -> None:
    """The last test, because it stops the backends; /health and the page use the state."""
    backends.chat.get().engine.stop()
    assert [backend.state for backend in backends.all] == ["failed", "ready", "ready"]
    with pytest.raises(ModelUnavailable, match="the chat engine is not running"):
        backends.chat.get()
    backends.stop()
    assert backends.images.error == "the server is stopping"
