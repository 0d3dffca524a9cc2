"""Programs compiled ahead of time, with a ledger of what each one cost.

A program is compiled once from shapes, before anyone is served; calling it with any other shape is an error, never a
silent recompilation. Tracing is Python and compiling is not, so where there are many, one is compiled while the next is
traced. Does not know what the programs compute.
"""

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime import compile_cache, compiled_text, tracing_lock
from hfjax_app.runtime.mesh import replicated

# What whoever serves can do, where no plan says how much of it.
_SMALLER = "fewer slots, a shorter context, smaller pictures or int8 weights need less memory"

# LLVM's third level, XLA's own choice on a CPU, takes a fifth longer for programs that are no faster.
# Of fast math only that sums may be added up in another order than written, without which LLVM adds one number after
# the other (see `linear.fused_gemv`), and that the sign of zero is not kept. NaN, infinity and divisions stay.
_CPU_OPTIONS = {
    "xla_backend_optimization_level": 2,
    "xla_cpu_enable_fast_math": True,
    "xla_cpu_fast_math_honor_nans": True,
    "xla_cpu_fast_math_honor_infs": True,
    "xla_cpu_fast_math_honor_division": True,
    "xla_cpu_fast_math_honor_functions": True,
}

# One for all models, so that those that were asked for first are ready first.
_compiler = ThreadPoolExecutor(1, "compile")


@dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """One line of the ledger: a program's name, seconds to trace and compile, and whether the cache had it.

    Where it had, `saved` is how many seconds longer compiling took when it was put there.

    The compiler's own figures, in bytes on each device, 0 where it gives none: `arguments` of the program, `temporary`
    memory while it runs, and `in_place`, those of its results that take the place of a donated argument. `constant`,
    bytes of its largest constant, `all_reduces`, how many it has written down, and `moved`, bytes of the largest array
    that a step of it only copies, transposes or converts, are read off its text, for planned programs only.
    """

    name: str
    seconds: float
    cached: bool
    saved: float = 0.0
    arguments: int = 0
    temporary: int = 0
    in_place: int = 0
    constant: int = 0
    all_reduces: int = 0
    moved: int = 0


class CompilerCount:
    """What jax asks its compiler for in this process after `start`, in any thread, and how much of it its cache has."""

    _COMPILED, _HIT = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_hits"

    def __init__(self) -> None:
        self._events: list[str] = []  # several threads append; a sum would lose some

    def start(self) -> None:
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        jax.monitoring.register_event_listener(self._listen)

    @property
    def compilations(self) -> int:
        """Also those that the cache had."""
        return self._events.count(self._COMPILED)

    @property
    def from_cache(self) -> int:
        return self._events.count(self._HIT)

    def _listen(self, event: str, *_: Any, **__: Any) -> None:
        if event in (self._COMPILED, self._HIT):
            self._events.append(event)


class ProgramTooLarge(ModelUnavailable):
    """A program that the compiler refuses, because its devices have too little memory for it."""


class Program:
    """A compiled program, otherwise what jax.stages.Compiled is; while it is still being compiled, using it waits.

    Any thread may call it, also on several devices. Each device computes what it is given in the order in which it is
    given it, and waits inside of a program for the others. Were two threads to give two devices two programs in
    different orders, both would wait for ever.
    """

    _handing_out = threading.Lock()  # the devices are the process's, and so is their order

    def __init__(self, compiled: Future[jax.stages.Compiled], mesh: jax.sharding.Mesh | None):
        self._compiled = compiled
        alone = mesh is None or mesh.size == 1
        self._order: AbstractContextManager[Any] = nullcontext() if alone else self._handing_out

    def __call__(self, *args: Any) -> Any:
        program = self._compiled.result()
        with self._order:
            return program(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled.result(), name)


def argument_bytes(program: Program) -> int:
    """Of a program's arguments on each device, by the compiler's figures."""
    return getattr(program.memory_analysis(), "argument_size_in_bytes", 0)


@contextmanager
def _cache_hits() -> Iterator[list[float]]:
    """Collects, for each hit of the persistent cache in this thread while the block runs, the seconds it saved."""
    saved: list[float] = []
    thread = threading.get_ident()

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/compilation_cache/compile_time_saved_sec" and threading.get_ident() == thread:
            saved.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield saved
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


class Programs:
    """Compiles programs and keeps their reports, in order.

    Args:
        on_report: called with each ProgramReport as soon as its program is ready.
        mesh: the devices that the programs run on together; None: jax's default device.
        planned: the devices need not be here: programs are compiled and never run.
    """

    def __init__(
        self,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
        mesh: jax.sharding.Mesh | None = None,
        *,
        planned: bool = False,
    ):
        self.mesh, self.planned = mesh, planned
        self.reports: list[ProgramReport] = []
        self._on_report = on_report
        self._together: list[Future[jax.stages.Compiled]] | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside, `compile` returns once a program is traced, and another thread compiles them one by one, in order.

        At the end of the block all are ready. While they are waited for, another model may be loaded and traced
        (`tracing_lock.turn`); its programs are compiled after these.

        Raises:
            Exception: at the end of the block, what the first one that could not be compiled raised.
        """
        pending: list[Future[jax.stages.Compiled]] = []
        self._together = pending
        try:
            yield
            with tracing_lock.others_first():
                for compiled in pending:
                    compiled.result()
        finally:
            self._together = None
            for compiled in pending:
                compiled.cancel()
            wait(pending)

    def compile(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        donate: tuple[int, ...] = (),
        shardings: Any = None,
    ) -> Program:
        """Compile `function` for the shapes and dtypes of `args`.

        Args:
            name: the program's name in the ledger, the cache and profiles.
            function: a pure function of JAX arrays.
            args: example arguments: arrays, numpy arrays or jax.ShapeDtypeStruct, in any pytree.
            donate: positions of the arguments whose buffers the result may reuse.
            shardings: of the results, a pytree or a prefix of one; only read where there is a mesh. Give donated arrays
                the sharding they came with: left to choose another one, the compiler copies instead of reusing them.

        Returns:
            The program. It refuses arguments of other shapes with a TypeError.

        Raises:
            ProgramTooLarge: what the compiler says, in one line.
        """
        started = time.perf_counter()

        def program(*args: Any) -> Any:
            return function(*args)

        program.__name__ = name
        options: dict[str, Any] = {"donate_argnums": donate}
        if self.mesh is not None:
            args = jax.tree.map(partial(_placed, self.mesh), args)
            options["out_shardings"] = shardings
        with warnings.catch_warnings():
            # torch code asks for int64 where jax has int32; positions and ids fit
            warnings.filterwarnings("ignore", "Explicitly requested dtype int64", UserWarning)
            lowered = jax.jit(program, **options).lower(*args)
        traced = time.perf_counter() - started
        if self._together is not None:
            compiled = _compiler.submit(self._finish, name, lowered, traced)
            self._together.append(compiled)
        else:
            compiled = Future()
            compiled.set_result(self._finish(name, lowered, traced))
        return Program(compiled, self.mesh)

    def _finish(self, name: str, lowered: jax.stages.Lowered, traced: float) -> jax.stages.Compiled:
        """Compile what has been traced in `traced` seconds, and report it."""
        started = time.perf_counter()
        with _cache_hits() as hits:
            try:
                compiled = lowered.compile(compiler_options=self._compiler_options)  # type: ignore[arg-type]
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                line = str(error).splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ")
                advice = "" if self.planned else f"; {_SMALLER}"
                raise ProgramTooLarge(f"the compiler refuses {name}: {line}{advice}") from error
        if (folder := jax.config.jax_compilation_cache_dir) and not hits:  # type: ignore[attr-defined]
            compile_cache.seal(Path(folder))
        memory = compiled.memory_analysis()
        text = (compiled.as_text() or "") if self.planned else ""
        report = ProgramReport(
            name=name,
            seconds=traced + time.perf_counter() - started,
            cached=bool(hits),
            saved=sum(hits),
            arguments=getattr(memory, "argument_size_in_bytes", 0),
            temporary=getattr(memory, "temp_size_in_bytes", 0),
            in_place=getattr(memory, "alias_size_in_bytes", 0),
            constant=compiled_text.largest_constant(text),
            all_reduces=compiled_text.all_reduces(text),
            moved=compiled_text.largest_move(text),
        )
        self.reports.append(report)
        self._on_report(report)
        return compiled

    @property
    def _compiler_options(self) -> dict[str, int] | None:
        platform = jax.default_backend() if self.mesh is None else self.mesh.devices.flat[0].platform
        # jax's switch for tests asks for less still, and an option would go before it
        return _CPU_OPTIONS if platform == "cpu" and not jax.config.read("jax_disable_most_optimizations") else None


def _placed(mesh: jax.sharding.Mesh, arg: Any) -> Any:
    """An argument's shape with its place on the mesh: its own, or for what comes from the host, everywhere."""
    if isinstance(getattr(arg, "sharding", None), jax.sharding.NamedSharding):
        return arg
    return jax.ShapeDtypeStruct(np.shape(arg), arg.dtype, sharding=replicated(mesh))
