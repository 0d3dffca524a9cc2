"""The results of planning one model: facts from its config, and the compiler's figures of its programs."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from jax.sharding import Mesh

from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.warm_up import ProgramSpec, compile_all

# Called with each program's report as soon as it is compiled, and its number, such as "3 of 8".
OnProgram = Callable[[ProgramReport, str], None]


def unreported(_report: ProgramReport, _number: str) -> None:
    """An OnProgram that does nothing."""


def compile_as_planned(
    mesh: Mesh | None, specs_of: Callable[[Programs], Sequence[ProgramSpec]], on_program: OnProgram
) -> Programs:
    """Compile a model's programs for devices that need not be here, until one is refused or the user interrupts.

    Args:
        mesh: the devices.
        specs_of: makes the specs; it may compile programs before.
        on_program: called as each program is ready.
    """
    total: list[int] = []

    def ready(report: ProgramReport) -> None:
        on_program(report, " of ".join(map(str, [len(programs.reports), *total])))

    programs = Programs(ready, mesh, planned=True)
    with programs.as_far_as_possible(), _interrupts() as check:
        specs = specs_of(programs)
        total.append(len(programs.reports) + len(specs))

        def one_by_one() -> Iterator[ProgramSpec]:
            for spec in specs:
                check()
                yield spec

        compile_all(programs, one_by_one())
        check()
    return programs


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """Gives a function that raises KeyboardInterrupt once the user has interrupted: what is traced may swallow it."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if seen:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A model as its config and tokenizer describe it.

    Args:
        architecture: the class that runs it.
        parameters: their number.
        bytes: of all weights in `dtype`.
        dtype: in words.
        has_template: whether it has a chat template; None if it is no chat model or its tokenizer is missing.
        end_tokens: ids that end an answer; None if it is no chat model.
        has_tokenizer: whether its tokenizer was found. A plan does not need it; serving does.
        tower: of `bytes`, those on each device that see pictures; 0: it sees none.
        pictures: the sizes in which it sees them; empty while they are unknown: a config does not tell.
    """

    architecture: str
    parameters: int
    bytes: int
    dtype: str
    has_template: bool | None = None
    end_tokens: tuple[int, ...] | None = None
    has_tokenizer: bool = True
    tower: int = 0
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """A model compiled for some devices.

    Args:
        weights: bytes of the weights on each device that holds the model, computed from shapes.
        resident: bytes of all arrays that stay on such a device, from the compiler, with the padding of layouts.
        programs: the compiler's reports.
        too_large: the program that the compiler refused, and why; later programs were not tried, and `resident` is
            computed from shapes. None if it refused none.
        interrupted: whether the user stopped before all programs were compiled.
    """

    weights: int
    resident: int
    programs: tuple[ProgramReport, ...]
    too_large: str | None = None
    interrupted: bool = False

    @property
    def temporary(self) -> int:
        """Bytes of the largest temporary memory of a program: one program runs at a time."""
        return max((program.temporary for program in self.programs), default=0)

    @property
    def peak(self) -> int:
        return self.resident + self.temporary
