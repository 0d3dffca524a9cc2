"""What every test runs under: the CPU, no hub, and a cache of compiled programs of its own that runs share."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

# Before jax and huggingface_hub are imported; subprocesses of the tests inherit it.
for name in [name for name in os.environ if name.startswith("HFJAX_")]:
    del os.environ[name]
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(__file__).parent.parent / ".pytest_cache" / "programs")
os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported, so too late for the commands that tests run in-process


@contextmanager
def _compilations() -> Iterator[list[str]]:
    """What jax asks its compiler for in this process, in any thread, while the block runs; cache hits count too."""
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


@pytest.fixture
def compilations() -> Callable[[], AbstractContextManager[list[str]]]:
    """`with compilations() as seen:` collects every compilation of the block."""
    return _compilations
