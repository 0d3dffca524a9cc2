"""The result of the latest ladder, in a small file of the cache folder: `hfjax ladder` writes it, the page shows it.

A file that can't be read, or that another version wrote, counts as none.
"""

import os
import tempfile
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_FILE = "ladder.json"
_VERSION = 1
_MOST_BYTES = 64 << 10

_Text = Annotated[str, Field(max_length=300)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KeptRung(_Frozen):
    """What became of one rung.

    Attributes:
        id: see `rungs.py`.
        first_s: seconds of the first run, with loading, tracing and compiling, until it was done or stopped; None: it
            did not run.
        again_s: seconds of the second run; of one that was stopped, what all of it would have taken; None: there was
            none.
        compiled_first, compiled_again: programs that the compiler was called for in each run.
        made, wanted: tokens, steps or forwards of the first run.
        same: whether the result is that of the rung before; None: there was nothing to compare with.
        note: why it did not run, did not end, or differs; for the reader.
    """

    id: _Text
    first_s: _Seconds | None = None
    again_s: _Seconds | None = None
    compiled_first: _Count = 0
    compiled_again: _Count = 0
    made: _Count = 0
    wanted: _Count = 0
    same: bool | None = None
    note: _Text = ""

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped: then its first run would have taken longer, and its second one is estimated."""
        return 0 < self.made < self.wanted


class KeptPart(_Frozen):
    """The rungs of one part.

    Attributes:
        id: see `rungs.py`.
        model: its name, without a folder.
        dtype: that it computed in.
        amount: how many tokens, steps or forwards a run makes.
        rungs: in order.
    """

    id: _Text
    model: _Text
    dtype: _Text
    amount: _Count
    rungs: Annotated[tuple[KeptRung, ...], Field(max_length=20)]


class KeptLadder(_Frozen):
    """A whole ladder.

    Attributes:
        version: of this form.
        at: when it ended, as ISO 8601 in UTC.
        device: such as "CPU" or "8 x TPU v6 lite".
        versions: of jax and torchax, in words.
        parts: those that ran.
    """

    version: int = _VERSION
    at: _Text
    device: _Text
    versions: _Text
    parts: Annotated[tuple[KeptPart, ...], Field(max_length=10)]


def keep(folder: Path, ladder: KeptLadder) -> Path:
    """Replace the kept result, in one step; parts that did not run this time are taken over from it.

    Raises:
        OSError: the folder can't be written.
    """
    if (before := read(folder)) is not None and before.device == ladder.device:
        new = {part.id for part in ladder.parts}
        others = tuple(part for part in before.parts if part.id not in new)
        ladder = ladder.model_copy(update={"parts": (*ladder.parts, *others)})
    handle, unfinished = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(ladder.model_dump_json(indent=1))
        os.replace(unfinished, folder / _FILE)
    except OSError:
        Path(unfinished).unlink(missing_ok=True)
        raise
    return folder / _FILE


def read(folder: Path | None) -> KeptLadder | None:
    """The kept result; None where there is none that this version can read."""
    if folder is None:
        return None
    try:
        with (folder / _FILE).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        ladder = KeptLadder.model_validate_json(content)
    except (OSError, ValidationError):
        return None
    return ladder if ladder.version == _VERSION and len(content) <= _MOST_BYTES else None


def spoken(seconds: float) -> str:
    """Three digits of a time: "131 s", "1.07 s", "3.40 ms"."""
    value, unit = (seconds, "s") if seconds >= 0.1 else (seconds * 1e3, "ms")
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"
