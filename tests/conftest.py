"""The environment of all tests: the CPU, no hub, and a separate cache of compiled programs that runs share."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hfjax_app.runtime.process import default_cache_folder

# Before the import of jax and huggingface_hub; subprocesses of the tests inherit it.
for name in [name for name in os.environ if name.startswith("HFJAX_")]:
    del os.environ[name]
os.environ.pop("PORT", None)
os.environ.pop("GLIBC_TUNABLES", None)  # make's pages of 2 MiB; tests count those of 4 KiB
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HFJAX_CHAT_MODEL"] = "chat-gemma"  # tests of several models name them
os.environ["JAX_PLATFORMS"] = "cpu"
# Kept between runs, for each kind of processor: code for another one may end in an illegal instruction.
_PROGRAMS = Path(__file__).parent.parent / ".pytest_cache" / "programs"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_PROGRAMS / default_cache_folder().name)
gc.set_threshold(50_000, 20, 100)  # as in the commands: most new objects stay
os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported, so too late for the commands that tests run in-process


# Only what hangs takes as long: a process of low priority gets little beside the other worker's tests.
HANG_S = 1200.0


@contextmanager
def ctrl_c_is_heard() -> Iterator[None]:
    """Processes started in the block are ended by Ctrl-C. A shell has those in its background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _compilations() -> Iterator[list[str]]:
    """The compilations of jax in this process, in all threads, while the block runs, including cache hits."""
    import jax

    seen: list[str] = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.jit(lambda x: x * 4.75 + 2)(1.0)
        assert seen, "the counter must be able to count"
        seen.clear()
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


# Two workers share the files. These take longest and come first, so that both workers end at about the same time.
# backends/test_registry.py finds the programs of the studio's server in the cache.
_LONGEST = ("studio/", "planning/test_together.py", "backends/", "chat/", "test_commands.py", "images/", "embedded/")
# Fixtures of studio/conftest.py that start a server, and the files that use them: test_NAME.py.
_SHARED_SERVERS = {
    "studio": {
        *("accessibility", "api", "attacks", "chat_page", "chat_tab", "gradio_routes", "images_tab", "mcp", "models"),
        *(
            "page",
            "request_hardening",
            "request_log",
            "sentiment_tab",
            "server",
            "shell",
            "uploads",
            "v1",
            "v1_clients",
        ),
    },
    "slow_studio": {"slots", "engine_tab"},
}


def _name(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).as_posix()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((at for at, long in enumerate(_LONGEST) if _name(item).startswith(long)), len(_LONGEST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all tests of a file, and all files of studio/ that share a server."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            name = file.removeprefix("tests/studio/test_").removesuffix(".py")
            return next((server for server, names in _SHARED_SERVERS.items() if name in names), file)

    return Scheduling(config, log)


@contextmanager
def quickly_compiled() -> Iterator[None]:
    """jax's own switch for tests: the compiler takes half the time and its code is slower.

    For the many small models that make a few tokens or one picture each, here and in subprocesses.
    """
    import jax

    before = jax.config.read("jax_disable_most_optimizations")  # one may be inside another
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            yield
        finally:
            jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def quick_compiler() -> Iterator[None]:
    with quickly_compiled():
        yield


@pytest.fixture
def compilations() -> Callable[[], AbstractContextManager[list[str]]]:
    """`with compilations() as seen:` collects every compilation of the block."""
    return _compilations


@pytest.fixture(scope="session")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of random weights that never ends an answer and takes seconds for a long one.

    One wide layer: several narrow ones would be as slow, and take longer to trace and to compile.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from hfjax_app.embedded import resolve

    folder = tmp_path_factory.mktemp("slow-model")
    tokenizer = AutoTokenizer.from_pretrained(resolve("chat-gemma"))
    tokenizer.eos_token = None  # an end token of its own or of its template would end answers
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=1024,
        intermediate_size=30_720,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
