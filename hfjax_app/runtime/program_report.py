"""What a compiled program cost, and what the compiler says of it: one line of the ledger that `programs.py` keeps."""

from dataclasses import dataclass
from typing import Literal

import jax

from hfjax_app.runtime import compiled_text

Source = Literal["compiled", "cache", "bundle"]


@dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """One line of the ledger: a program's name, the seconds until it was ready, and where it came from.

    `source` is "compiled", "cache" (jax's, which has compiled programs) or "bundle" (which has whole ones). `traced` is
    the time of tracing, for a program from a bundle that of the process which compiled it. `saved` is the time that
    cache or bundle saved.

    The compiler's figures, in bytes on each device, 0 if unknown: `arguments` of the program, `temporary` memory while
    it runs, and `in_place`, the results that reuse a donated argument. Read from the program's text, for planned
    programs only: `constant`, bytes of the largest constant; `all_reduces`, their number; and `moved`, bytes of the
    largest array that a step only copies, transposes or converts.
    """

    name: str
    seconds: float
    source: Source
    traced: float = 0.0
    saved: float = 0.0
    arguments: int = 0
    temporary: int = 0
    in_place: int = 0
    constant: int = 0
    all_reduces: int = 0
    moved: int = 0

    @property
    def cached(self) -> bool:
        """Whether an earlier process compiled it."""
        return self.source != "compiled"

    @property
    def compiling(self) -> float:
        """Seconds of compiling, here or in the process that did it; 0 if unknown."""
        whole = self.saved if self.source == "bundle" else self.seconds + self.saved
        return max(whole - self.traced, 0.0)


def report_of(
    name: str,
    compiled: jax.stages.Compiled,
    *,
    seconds: float,
    source: Source,
    traced: float = 0.0,
    saved: float = 0.0,
    reads_text: bool = False,
) -> ProgramReport:
    """The report of a compiled program, with the compiler's figures; those of its text only if it `reads_text`."""
    memory = compiled.memory_analysis()
    text = (compiled.as_text() or "") if reads_text else ""
    return ProgramReport(
        name=name,
        seconds=seconds,
        source=source,
        traced=traced,
        saved=saved,
        arguments=getattr(memory, "argument_size_in_bytes", 0),
        temporary=getattr(memory, "temp_size_in_bytes", 0),
        in_place=getattr(memory, "alias_size_in_bytes", 0),
        constant=compiled_text.largest_constant(text),
        all_reduces=compiled_text.all_reduces(text),
        moved=compiled_text.largest_move(text),
    )
