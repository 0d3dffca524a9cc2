"""`hfjax ladder`: climbs the parts that are asked for and keeps the result for the page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import jax

from hfjax_app.embedded import resolve
from hfjax_app.errors import ModelUnavailable
from hfjax_app.ladder.climb import Ladder, versions
from hfjax_app.ladder.console_progress import ConsoleProgress
from hfjax_app.ladder_result import KeptLadder, KeptPart, keep
from hfjax_app.runtime.mesh import devices_in_words
from hfjax_app.runtime.process import cache_folder, prepare


def climb(
    parts: Sequence[str],
    *,
    chat: str,
    images: str,
    tokens: int,
    steps: int,
    seconds: float,
    folder: Path | None = None,
) -> KeptLadder:
    """Run parts of the ladder in this process, print them, and keep the result in the cache folder.

    Args:
        parts: ids of `PARTS`.
        chat, images: an embedded model's name, a folder, or a hub id.
        tokens: of the text.
        steps: denoising steps of the picture.
        seconds: that each rung may take.
        folder: the cache folder; None: as `prepare`.

    Raises:
        ModelUnavailable: a model can't be loaded, or a rung has other results than the one before; all rungs have run.
    """
    prepare(folder)
    kept_in = cache_folder()
    jax.config.update("jax_enable_compilation_cache", False)  # every rung compiles what it needs
    done: list[KeptPart] = []

    def result() -> KeptLadder:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return KeptLadder(at=at, device=devices_in_words(), versions=versions(), parts=tuple(done))

    def keep_result() -> None:
        if kept_in is not None and done:
            keep(kept_in, result())

    ladder = Ladder(seconds, ConsoleProgress(on_stuck=keep_result))
    for part in parts:
        match part:
            case "chat":
                done.append(ladder.chat(_name(chat), resolve(chat), tokens))
            case "devices":
                done.append(ladder.devices(_name(chat), resolve(chat)))
            case "images":
                done.append(ladder.images(_name(images), resolve(images), steps))
        keep_result()
    wrong = [rung.id for part in done for rung in part.rungs if rung.same is False]
    if wrong:
        raise ModelUnavailable(f"other results than the rung before: {', '.join(wrong)}")
    return result()


def _name(model: str) -> str:
    """A model's name without its folder."""
    return Path(model).resolve().name if Path(model).is_dir() else model
