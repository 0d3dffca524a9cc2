"""The warm-up of one model: first the programs that can serve every request, later those that are only faster.

The later ones are taken from the bundle, where an earlier start or another process (`backends/later_programs.py`) has
put them, so this process traces and compiles nothing while it serves.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hfjax_app.runtime.programs import Program, Programs

# Takes the names of the programs that are compiled at the start, in order, and the number of all programs.
OnExpected = Callable[[Sequence[str], int], None]


def ignore(names: Sequence[str], count: int) -> None:
    """An `OnExpected` that does nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramSpec:
    """A program that a model wants.

    Attributes:
        name, function, args, donate, shardings, static: as `Programs.compile` takes them.
        join: runs the compiled program once, reads the result back, and uses the program from then on. Any thread may
            call it while the model serves. It raises what the program raises.
        general: whether requests can't be served without it.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    join: Callable[[Program], None]
    general: bool = False
    donate: tuple[int, ...] = ()
    shardings: Any = None
    static: str = ""

    @property
    def options(self) -> dict[str, Any]:
        return {"donate": self.donate, "shardings": self.shardings, "static": self.static}


class WarmUp:
    """Compiles and joins a model's programs.

    Args:
        programs: where they are compiled.
        specs: the programs, those that are needed most first.
        staged: whether `start` leaves those that are not general to `load`. Needs a bundle; without one all are
            compiled at the start.
        on_expected: called before the first program is compiled, see `OnExpected`.

    Attributes:
        names: of all its programs.
        missing: those that are not used yet, by name, in order.
        given_up: why the missing programs will not come; empty while they may.
    """

    def __init__(
        self,
        programs: Programs,
        specs: Iterable[ProgramSpec],
        *,
        staged: bool,
        on_expected: OnExpected = ignore,
    ):
        self._programs = programs
        self.given_up = ""
        self.missing = {spec.name: spec for spec in specs}
        self.names = frozenset(self.missing)
        self._now = [s for s in self.missing.values() if s.general or not staged or programs.bundle is None]
        on_expected([spec.name for spec in self._now], len(self.missing))

    def start(self) -> None:
        """Compile the general programs, or all, and join them in order.

        Raises:
            Exception: of the first program that can't be compiled or run.
        """
        for spec, program in zip(self._now, compile_all(self._programs, self._now), strict=True):
            spec.join(program)
            del self.missing[spec.name]

    def load(self, name: str) -> bool:
        """Take a missing program from the bundle and join it; False if it is not there, or joined already.

        Raises:
            LoadedProgramFailed: it was there and can't run; the bundle was cleared.
            Exception: what `join` raises.
        """
        if (spec := self.missing.get(name)) is None:
            return False
        if (found := self._programs.load(spec.name, *spec.args, **spec.options)) is None:
            return False
        program, report = found
        spec.join(program)
        del self.missing[name]
        self._programs.report(report)
        return True

    def compile(self, name: str) -> bool:
        """Compile a missing program in this process and join it; False if it has joined already.

        Raises:
            Exception: what the compilation and `join` raise.
        """
        if (spec := self.missing.get(name)) is None:
            return False
        spec.join(self._programs.compile(spec.name, spec.function, *spec.args, **spec.options))
        del self.missing[name]
        return True


def run_on_zeros(program: Program, args: tuple[Any, ...]) -> None:
    """Run a program once on arguments of these shapes, and wait. Arrays are passed as they are."""

    def zeros(leaf: Any) -> Any:
        return np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    jax.block_until_ready(program(*jax.tree.map(zeros, args)))


def compile_all(programs: Programs, specs: Iterable[ProgramSpec]) -> list[Program]:
    """The programs of these specs: one is compiled while the next is traced. Also from shapes alone, for plans."""
    with programs.together():
        return [programs.compile(spec.name, spec.function, *spec.args, **spec.options) for spec in specs]
