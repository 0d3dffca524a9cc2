"""A compiled program as it is called: dispatched in one order on several devices, and watched at its first run.

`programs.py` compiles it.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

from hfjax_app.errors import HfjaxError, first_line


class LoadedProgramFailed(HfjaxError):
    """A program from a bundle failed at its first run. The bundle is dropped: loading the model again compiles it."""


class Program:
    """A compiled program with the interface of jax.stages.Compiled; its use waits until it is compiled.

    Any thread may call it, also on several devices. Each device runs programs in the order of their dispatch and waits
    inside a program for the other devices. If two threads dispatched two programs to two devices in different orders,
    both would wait for ever.
    """

    _dispatching = threading.Lock()  # one order of dispatch for all devices of the process

    def __init__(
        self,
        compiled: Future[jax.stages.Compiled],
        mesh: jax.sharding.Mesh | None,
        on_failure: Callable[[], None] | None = None,
    ):
        self._compiled = compiled
        self._on_failure = on_failure  # of a program that another process made and that has not run here yet
        on_one_device = mesh is None or mesh.size == 1
        self._order: AbstractContextManager[Any] = nullcontext() if on_one_device else self._dispatching

    def __call__(self, *args: Any) -> Any:
        program = self._compiled.result()
        with self._order:
            return program(*args) if self._on_failure is None else self._first_run(program, args, self._on_failure)

    def _first_run(self, program: jax.stages.Compiled, args: tuple[Any, ...], on_failure: Callable[[], None]) -> Any:
        """Some programs load and fail when they run: found out now, in the warm-up, and not by a request."""
        try:
            result = jax.block_until_ready(program(*args))
        except jax.errors.JaxRuntimeError as error:
            on_failure()
            raise LoadedProgramFailed(
                f"a program from the bundle can't run and was removed, start again: {first_line(error)}"
            ) from error
        self._on_failure = None
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled.result(), name)
