"""What `hfjax ladder` prints: a bar on stderr while a rung runs, a line on stdout when it has ended."""

import os
import sys
from collections.abc import Callable
from typing import Never

from tqdm import tqdm

from hfjax_app.ladder_result import KeptRung, Part, Rung, spoken

_TITLE = 34  # characters


class ConsoleProgress:
    """Prints to the terminal.

    Args:
        on_stuck: called before the process ends because a rung can't be stopped.
    """

    def __init__(self, on_stuck: Callable[[], None] = lambda: None):
        self._bar: tqdm[Never] | None = None
        self._part = ""
        self._first_s: float | None = None
        self._on_stuck = on_stuck

    def begin(self, part: Part, rung: Rung, wanted: int) -> None:
        if part.id != self._part:
            self._part, self._first_s = part.id, None
            print(f"\n{part.title}, {wanted} {part.unit}s", flush=True)
        self._bar = tqdm(desc=f"  {rung.title}", total=wanted, unit=part.unit, leave=False, disable=False)

    def made(self, count: int, *, again: bool) -> None:
        if (bar := self._bar) is not None:
            if again and count == 1:
                bar.reset()
            bar.update(count - bar.n)

    def end(self, part: Part, rung: Rung, kept: KeptRung) -> None:
        if self._bar is not None:
            self._bar.close()
        print(self._line(kept, f"  {rung.title:{_TITLE}}"), flush=True)

    def _line(self, kept: KeptRung, title: str) -> str:
        if kept.first_s is None or kept.again_s is None:
            return f"{title}{kept.note}"
        self._first_s = kept.again_s if self._first_s is None else self._first_s
        over, about = (">", "~") if kept.is_stopped else ("", "")
        first = f"first {over + spoken(kept.first_s):>9} ({kept.compiled_first:,} compiled)"
        again = f"again {about + spoken(kept.again_s):>9} ({kept.compiled_again:,} compiled)"
        faster = f"{self._first_s / max(kept.again_s, 1e-9):.3g}x"
        wrong = "" if kept.same is not False else "  WRONG:"
        note = f"{wrong} {kept.note}" if kept.note else ""
        return f"{title}{first:36}{again:34}{faster:>7} {note}".rstrip()

    def stuck(self, part: Part, rung: Rung) -> None:
        self._on_stuck()
        print(
            f"\nerror: {rung.title}: it took too long and can't be stopped; --only runs another part", file=sys.stderr
        )
        sys.stderr.flush()
        os._exit(1)
