"""Programs compiled ahead of time, with a ledger of what each one cost.

A program is compiled once from shapes, before the first request; a call with any other shape is an error, never a
silent recompilation. Tracing holds Python's lock and compiling does not, so one program is compiled while the next is
traced. A `Program` is dispatched in one order on several devices, and watched at its first run.
"""

import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hfjax_app.errors import HfjaxError, ModelUnavailable, first_line
from hfjax_app.runtime import compile_cache, tracing
from hfjax_app.runtime.bundle import NO_COST, Bundle, Cost, watch_origin
from hfjax_app.runtime.compiler_events import cache_hits
from hfjax_app.runtime.fingerprint import signature_of
from hfjax_app.runtime.memory import is_on_host
from hfjax_app.runtime.mesh import replicated
from hfjax_app.runtime.program_report import ProgramReport, Source, report_of


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


# Advice for the operator of a server; a plan gives numbers instead.
_SMALLER = "fewer slots, a shorter context, smaller pictures or int8 weights need less memory"

# LLVM's level 3, XLA's default on a CPU, compiles a fifth longer and gives programs that are no faster.
# Of fast math only reordered sums and the ignored sign of zero are allowed; without the former LLVM does not vectorise
# sums (see `linear.fused_gemv`). NaN, infinity and divisions are exact.
_CPU_OPTIONS = {
    "xla_backend_optimization_level": 2,
    "xla_cpu_enable_fast_math": True,
    "xla_cpu_fast_math_honor_nans": True,
    "xla_cpu_fast_math_honor_infs": True,
    "xla_cpu_fast_math_honor_division": True,
    "xla_cpu_fast_math_honor_functions": True,
}
# Beside jax's switch that turns most optimisations off, which an optimisation level here would override: XLA's older
# emitters, in whose code LLVM has half as much to do.
_QUICK_CPU_OPTIONS = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}

# Percent of a TPU's memory for copies ahead of their use: else the scheduler copies all weights that lie in the host's
# memory at once, and the program needs room for them.
_TPU_STREAMING_OPTIONS = {"xla_tpu_scheduler_percent_shared_memory_limit": 3}

# One thread for all models: programs are ready in the order in which they were requested.
_compiler = ThreadPoolExecutor(1, "compile")


class ProgramTooLarge(ModelUnavailable):
    """The compiler refuses a program, because its devices have too little memory."""


class Programs:
    """Compiles programs and keeps their reports, in order.

    Args:
        on_report: called with each ProgramReport as soon as its program is ready.
        mesh: the devices that run the programs together; None: jax's default device.
        planned: whether programs are compiled only and never run; the devices need not exist here.
        bundle: programs that other processes compiled for the same model and settings; None: there are none.

    Attributes:
        refused: why the compiler refused a program in `as_far_as_possible`; None if it refused none.
        interrupted: whether the user interrupted there.
    """

    refused: str | None = None
    interrupted = False

    def __init__(
        self,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
        mesh: jax.sharding.Mesh | None = None,
        *,
        planned: bool = False,
        bundle: Bundle | None = None,
    ):
        self.mesh, self.planned, self.bundle = mesh, planned, bundle
        self.reports: list[ProgramReport] = []
        self._on_report = on_report
        self._together: list[Future[jax.stages.Compiled]] | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Inside the block `compile` returns when a program is traced; another thread compiles them in this order.

        At the end of the block all are ready. Until then another model may be loaded and traced (`tracing.hold`);
        its programs are compiled after these.

        Raises:
            Exception: at the end of the block, the exception of the first program that could not be compiled.
        """
        pending: list[Future[jax.stages.Compiled]] = []
        self._together, left = pending, pending
        try:
            yield
            with tracing.release():
                for compiled in pending:
                    compiled.result()
        except KeyboardInterrupt:
            left = [] if self.planned else pending  # what a plan knows is printed now, not after the compiler's minutes
            raise
        finally:
            self._together = None
            for compiled in pending:
                compiled.cancel()
            wait(left)

    @contextmanager
    def as_far_as_possible(self) -> Iterator[None]:
        """Keep what was compiled when the compiler refuses a program or the user interrupts: the block ends there."""
        try:
            yield
        except ProgramTooLarge as error:
            self.refused = str(error)
        except KeyboardInterrupt:
            self.interrupted = True

    def compile(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        donate: tuple[int, ...] = (),
        shardings: Any = None,
        static: str = "",
    ) -> Program:
        """Compile `function` for the shapes and dtypes of `args`, or take the program from the bundle.

        Args:
            name: the program's name in the ledger, the cache and profiles.
            function: a pure function of JAX arrays.
            args: example arguments: arrays, numpy arrays or jax.ShapeDtypeStruct, in any pytree.
            donate: positions of the arguments whose buffers the result may reuse.
            shardings: of the results, a pytree or a prefix of one; used only with a mesh. A donated array must keep its
                sharding: with another one the compiler copies it instead of reusing it.
            static: what the function takes from outside of its arguments, if neither the name nor the model's files and
                settings say it.

        Returns:
            The program. It refuses arguments of other shapes with a TypeError.

        Raises:
            ProgramTooLarge: the compiler's message in one line.
        """
        started = time.perf_counter()
        if (found := self.load(name, *args, donate=donate, shardings=shardings, static=static)) is not None:
            program, report = found
            self.report(report)
            return program
        options: dict[str, Any] = {"donate_argnums": donate}
        if self.mesh is not None:
            args = jax.tree.map(partial(_placed, self.mesh), args)
            options["out_shardings"] = shardings
        signature = (
            "" if self.bundle is None else signature_of(args, donate, options.get("out_shardings"), static=static)
        )

        def traced_function(*args: Any) -> Any:
            return function(*args)

        # A name that jax's cache can't know: a program out of that cache can't be kept in a bundle.
        traced_function.__name__ = name if self.bundle is None else f"{name}_{secrets.token_hex(4)}"
        with warnings.catch_warnings():
            # torch code asks for int64 where jax has int32; positions and ids fit
            warnings.filterwarnings("ignore", "Explicitly requested dtype int64", UserWarning)
            with self._several_devices():
                lowered = jax.jit(traced_function, **options).lower(*args)
        traced = time.perf_counter() - started
        compiler_options = self._compiler_options(any(map(is_on_host, _arrays(args))))
        if self._together is not None:
            compiled = _compiler.submit(self._finish, name, lowered, compiler_options, traced, signature)
            self._together.append(compiled)
        else:
            compiled = Future()
            compiled.set_result(self._finish(name, lowered, compiler_options, traced, signature))
        return Program(compiled, self.mesh)

    def load(
        self, name: str, *args: Any, donate: tuple[int, ...] = (), shardings: Any = None, static: str = ""
    ) -> tuple[Program, ProgramReport] | None:
        """A program from the bundle, with the report that is due once it has run; None if it is not there.

        Args: as for `compile`.
        """
        if self.bundle is None:
            return None
        started = time.perf_counter()
        if self.mesh is None:
            shardings = None
        else:
            args = jax.tree.map(partial(_placed, self.mesh), args)
        loaded = self.bundle.load(name, signature_of(args, donate, shardings, static=static))
        if loaded is None:
            return None
        done: Future[jax.stages.Compiled] = Future()
        done.set_result(loaded)
        seconds, cost = time.perf_counter() - started, self.bundle.costs.get(name, NO_COST)
        report = report_of(
            name, loaded, seconds=seconds, source="bundle", traced=cost.traced, saved=cost.traced + cost.compiled
        )
        return Program(done, self.mesh, self.bundle.clear), report

    def is_kept(
        self, name: str, *args: Any, donate: tuple[int, ...] = (), shardings: Any = None, static: str = ""
    ) -> bool:
        """Whether the bundle has this program, undamaged; its devices need not be here. Args: as for `compile`."""
        header = None if self.bundle is None else self.bundle.header(name)
        if header is None:
            return False
        if self.mesh is None:
            shardings = None
        else:
            args = jax.tree.map(partial(_placed, self.mesh), args)
        return bool(header["signature"] == signature_of(args, donate, shardings, static=static))

    def _several_devices(self) -> AbstractContextManager[Any]:
        """Tells a trace the mesh: the partitioner does not know kernels, which look there for their part."""
        if self.mesh is None or self.mesh.size == 1:
            return nullcontext()
        return jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)

    def _finish(
        self,
        name: str,
        lowered: jax.stages.Lowered,
        compiler_options: Mapping[str, Any] | None,
        traced: float,
        signature: str,
    ) -> jax.stages.Compiled:
        """Compile a program that was traced in `traced` seconds, report it, and save it in the bundle."""
        started = time.perf_counter()
        with cache_hits() as hits, watch_origin() as origin:
            try:
                compiled = lowered.compile(compiler_options=compiler_options)  # type: ignore[arg-type]
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                line = str(error).splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ")
                advice = "" if self.planned else f"; {_SMALLER}"
                raise ProgramTooLarge(f"the compiler refuses {name}: {line}{advice}") from error
        if (folder := jax.config.jax_compilation_cache_dir) and not hits:  # type: ignore[attr-defined]
            compile_cache.seal(Path(folder))
        seconds = traced + time.perf_counter() - started
        source: Source = "cache" if hits else "compiled"
        report = report_of(
            name, compiled, seconds=seconds, source=source, traced=traced, saved=sum(hits), reads_text=self.planned
        )
        self.report(report)
        if self.bundle is not None:
            self.bundle.save(name, signature, compiled, origin, Cost(traced=traced, compiled=report.compiling))
        return compiled

    def report(self, report: ProgramReport) -> None:
        """Keep a report in the ledger."""
        self.reports.append(report)
        self._on_report(report)

    def _compiler_options(self, streams: bool) -> Mapping[str, Any] | None:
        """XLA's options for a program; `streams`: whether it copies arguments from the host's memory."""
        platform = jax.default_backend() if self.mesh is None else self.mesh.devices.flat[0].platform
        if platform != "cpu":
            return _TPU_STREAMING_OPTIONS if streams and platform == "tpu" else None
        return _QUICK_CPU_OPTIONS if jax.config.read("jax_disable_most_optimizations") else _CPU_OPTIONS


def _arrays(args: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)]


def _placed(mesh: jax.sharding.Mesh, arg: Any) -> Any:
    """An argument with its sharding; arguments from the host are replicated on the mesh."""
    if isinstance(getattr(arg, "sharding", None), jax.sharding.NamedSharding):
        return arg
    return jax.ShapeDtypeStruct(np.shape(arg), arg.dtype, sharding=replicated(mesh))
