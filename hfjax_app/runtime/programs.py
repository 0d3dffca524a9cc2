"""Programs compiled ahead of time, with a ledger of what each one cost.

A program is compiled once from shapes, before anyone is served; calling it with any other shape is an error, never a
silent recompilation. Does not know what the programs compute.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from hfjax_app.runtime import compile_cache


@dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """One line of the ledger: a program's name, seconds to trace and compile, and whether the cache had it."""

    name: str
    seconds: float
    cached: bool


@contextmanager
def _cache_hits() -> Iterator[list[str]]:
    """Collects the persistent cache's hits of this thread while the block runs."""
    hits: list[str] = []
    thread = threading.get_ident()

    def listen(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits" and threading.get_ident() == thread:
            hits.append(event)

    jax.monitoring.register_event_listener(listen)
    try:
        yield hits
    finally:
        jax.monitoring.unregister_event_listener(listen)


class Programs:
    """Compiles programs and keeps their reports, in order.

    Args:
        on_report: called with each ProgramReport as soon as its program is ready.
    """

    def __init__(self, on_report: Callable[[ProgramReport], None] = lambda report: None):
        self.reports: list[ProgramReport] = []
        self._on_report = on_report

    def compile(
        self, name: str, function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()
    ) -> jax.stages.Compiled:
        """Compile `function` for the shapes and dtypes of `args`.

        Args:
            name: the program's name in the ledger, the cache and profiles.
            function: a pure function of JAX arrays.
            args: example arguments: arrays, numpy arrays or jax.ShapeDtypeStruct, in any pytree.
            donate: positions of the arguments whose buffers the result may reuse.

        Returns:
            The compiled program. It refuses arguments of other shapes with a TypeError.
        """
        started = time.perf_counter()

        def program(*args: Any) -> Any:
            return function(*args)

        program.__name__ = name
        with _cache_hits() as hits:
            compiled = jax.jit(program, donate_argnums=donate).lower(*args).compile()
        if jax.config.jax_compilation_cache_dir and not hits:
            compile_cache.seal(Path(jax.config.jax_compilation_cache_dir))
        report = ProgramReport(name=name, seconds=time.perf_counter() - started, cached=bool(hits))
        self.reports.append(report)
        self._on_report(report)
        return compiled
