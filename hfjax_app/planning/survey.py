"""Quick plans of many chat models as one table in Markdown: which chips are enough for each, or why it can't run.

Reads configs only, and compiles nothing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hfjax_app.errors import RequestRejected
from hfjax_app.planning.outlook import Outlook
from hfjax_app.planning.report import Report
from hfjax_app.planning.together import Together
from hfjax_app.runtime.topology import NAMES, parse


def survey(folder: Path, **options: Any) -> Iterator[str]:
    """The lines of the table, one for each folder with a config.json.

    Args:
        folder: has a folder for each model, in Hugging Face format; its name is the model's.
        options: as for `Together`.

    Raises:
        RequestRejected: there are no such folders.
    """
    sources = sorted(path.parent for path in folder.glob("*/config.json"))
    if not sources:
        raise RequestRejected(f"--configs {folder}: no folder in it has a config.json")
    yield "| Model | Parameters | As it is | Tokens/s | int8 | Tokens/s | Why not |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for source in sources:
        report = Together({"chat": str(source)}, parse(NAMES[0]), **options).by_arithmetic()
        yield f"| {source.name} | {' | '.join(_cells(report))} |".replace(f"'{source}'", f"`{source.name}`")


def _cells(report: Report) -> list[str]:
    [planned] = report.models
    facts = planned.facts
    size = "" if facts is None else f"{facts.parameters / 1e9:.1f} G"
    if planned.reason is not None:
        return [size, *[""] * 4, planned.reason.replace("|", "\\|")]
    ways = [_cheapest([each for each in report.outlooks if each.quantize == way]) for way in ("none", "int8")]
    return [size, *ways[0], *ways[1], "" if any(cell for way in ways for cell in way) else "larger than one host"]


def _cheapest(outlooks: list[Outlook]) -> tuple[str, str]:
    """The cheapest topology that fits, and its tokens per second for one user; empty if none does."""
    found = next((each for each in outlooks if each.fits), None)
    return ("", "") if found is None else (found.topology, f"{found.one_user:.0f}")
