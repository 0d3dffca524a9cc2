"""jax's private parts are there, and its cache is still as it was."""

import importlib.metadata
import importlib.util
import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax._src.lru_cache import LRUCache
from jax.experimental import serialize_executable

from hfjax_app.runtime.seams import jax as seam
from tests.runtime.seams.checks import Checks

check = Checks(seam)


@check("sealed cache entries")
def _entries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = LRUCache(str(tmp_path), max_size=-1)
    key = f"jit_f-{'0' * 64}"
    cache.put(key, b"damaged")
    cache.put(key, b"new")
    assert cache.get(key) == b"damaged"
    assert [path.name for path in tmp_path.glob(seam.CACHE_ENTRY)] == [f"{key}-cache"]


@check("programs as bytes")
def _bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seam.devices_of(compiled()) == [jax.devices()[0]]


@check("programs from bytes")
def _from_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: set[tuple[str, str]] = set()
    payload, *trees = serialize_executable.serialize(compiled())
    program = seam.read_program(payload, *trees, jax.devices()[:1], lambda *name: seen.add(name))
    assert program(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert ("jax._src.core", "ShapedArray") in seen


@check("names in programs")
def _names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, name in seam.ADMITTED:
        assert hasattr(importlib.import_module(module), name)


@check("inputs that are used")
def _used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert seam.used_inputs(jax.make_jaxpr(lambda x, y: x + 1)(1.0, 2.0).jaxpr) == [True, False]


@check("events of the compiler")
def _events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from jax._src import compiler, dispatch

    assert dispatch.BACKEND_COMPILE_EVENT == seam.COMPILED
    source = inspect.getsource(compiler)
    assert f"'{seam.CACHE_HIT}'" in source
    assert f"'{seam.SECONDS_SAVED}'" in source


def compiled() -> jax.stages.Compiled:
    """A program that doubles two numbers, compiled in this process: one out of jax's cache fails when it is run."""

    def doubled_by_this_test(x: jax.Array) -> jax.Array:
        return 2 * x

    option = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, option)
    jax.config.update(option, 3600.0)
    try:
        return jax.jit(doubled_by_this_test).lower(jax.ShapeDtypeStruct((2,), jnp.float32)).compile()
    finally:
        jax.config.update(option, before)


test_it_is_there_and_still_needed = check.test()
