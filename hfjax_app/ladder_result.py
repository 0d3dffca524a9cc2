"""The rungs of the ladder in words, with the figures of the blog posts, and the result of the latest one.

`hfjax ladder` (`ladder/`) climbs them and writes the result into a small file of the cache folder; the page shows both.
A file that can't be read, or that another version wrote, counts as none.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

USERS = 8  # of the engine's rung
_FILE = "ladder.json"
_VERSION = 1
_MOST_BYTES = 64 << 10

_Text = Annotated[str, Field(max_length=300)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One way to compute the same thing.

    Args:
        id: unique: the module in `hfjax_app/ladder/` and its function, with a dot between.
        title: a few words.
        says: what is done differently from the rung before, in a sentence.
        posts_s: seconds in the blog posts; None: they have no such rung.
        users: answers that a run makes at once; its time is shared by them.
    """

    id: str
    title: str
    says: str
    posts_s: float | None = None
    users: int = 1

    @property
    def code(self) -> str:
        """Where its code is: a file in `hfjax_app/ladder/` and a function."""
        module, _, function = self.id.partition(".")
        return f"{module}.py: {function}"


@dataclass(frozen=True, kw_only=True)
class LadderPart:
    """Rungs that compute the same thing.

    Args:
        id: unique.
        title: what they compute.
        unit: what a run makes, in the singular.
        posts: what the posts ran on which machine.
        rungs: from the bottom.
        per_unit: whether times are those of one unit, and not of a run.
    """

    id: str
    title: str
    unit: str
    posts: str
    rungs: tuple[Rung, ...]
    per_unit: bool = False


CHAT = LadderPart(
    id="chat",
    title="A text",
    unit="token",
    posts="Llama 2 7B, 50 tokens, eight TPU v6e chips; each a first run, with what it compiles",
    rungs=(
        Rung(
            id="chat.eager_dynamic",
            title="Eager, dynamic cache",
            says="One operator at a time. The cache grows with each token, so each step has new shapes to compile for.",
            posts_s=130.9,
        ),
        Rung(
            id="chat.eager_static",
            title="Eager, static cache",
            says="The cache has its full size from the start, so shapes stay the same.",
            posts_s=88.4,
        ),
        Rung(
            id="chat.one_step",
            title="One compiled step",
            says="A whole step is one program, and the weights are its arguments.",
            posts_s=14.8,
        ),
        Rung(
            id="chat.several_steps",
            title="Several steps a call",
            says="A loop inside of the program makes 16 tokens before the host looks at them.",
        ),
        Rung(
            id="chat.slots",
            title="Eight users in slots",
            says="This app's engine: one step makes a token for each of eight users. The time is that of one answer, "
            "an eighth of all.",
            users=USERS,
        ),
    ),
)
DEVICES = LadderPart(
    id="devices",
    title="More devices",
    unit="forward",
    posts="Llama 2 7B, a forward of a prompt, one and eight TPU v6e chips; again, compiled before",
    rungs=(
        Rung(
            id="chat.one_device",
            title="A forward on one device",
            says="The prompt's forward as one program.",
            posts_s=0.013,
        ),
        Rung(
            id="chat.several_devices",
            title="A forward on all devices",
            says="Each device holds a part of every layer, and XLA adds the sums between them.",
            posts_s=0.0034,
        ),
    ),
    per_unit=True,
)
IMAGES = LadderPart(
    id="images",
    title="A picture",
    unit="step",
    posts="Stable Diffusion 2, 512 x 512 pixels, 20 steps, one A100 GPU; again, compiled before",
    rungs=(
        Rung(
            id="images.eager_pipeline",
            title="Eager pipeline",
            says="diffusers' pipeline as it is, one operator at a time.",
        ),
        Rung(
            id="images.compiled_networks",
            title="UNet and text encoder compiled",
            says="Each of them is one program; the decoder is still eager.",
            posts_s=5.9,
        ),
        Rung(
            id="images.compiled_decoder",
            title="The decoder compiled too",
            says="The pipeline calls the VAE's decode, not its forward, so that is the method to compile.",
            posts_s=1.07,
        ),
        Rung(
            id="images.this_app",
            title="This app's step",
            says="Guidance and the scheduler are in the program as well.",
        ),
    ),
)
PARTS = (CHAT, DEVICES, IMAGES)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RungResult(_Frozen):
    """What became of one rung.

    Attributes:
        id: of a Rung.
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


class PartResult(_Frozen):
    """The rungs of one part.

    Attributes:
        id: of a LadderPart.
        model: its name, without a folder.
        dtype: that it computed in.
        amount: how many tokens, steps or forwards a run makes.
        rungs: in order.
    """

    id: _Text
    model: _Text
    dtype: _Text
    amount: _Count
    rungs: Annotated[tuple[RungResult, ...], Field(max_length=20)]


class LadderResult(_Frozen):
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
    parts: Annotated[tuple[PartResult, ...], Field(max_length=10)]


def keep(folder: Path, ladder: LadderResult) -> Path:
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


def read(folder: Path | None) -> LadderResult | None:
    """The kept result; None where there is none that this version can read."""
    if folder is None:
        return None
    try:
        with (folder / _FILE).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        ladder = LadderResult.model_validate_json(content)
    except (OSError, ValidationError):
        return None
    return ladder if ladder.version == _VERSION and len(content) <= _MOST_BYTES else None


def in_words(seconds: float) -> str:
    """Three digits of a time: "131 s", "1.07 s", "3.40 ms"."""
    value, unit = (seconds, "s") if seconds >= 0.1 else (seconds * 1e3, "ms")
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"
