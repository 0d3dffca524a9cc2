"""A chart of a chat benchmark's results."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OURS, OTHERS = "#0f766e", "#9ca3af"


def draw(report: dict[str, Any], path: Path) -> None:
    """One panel for each number of users and one for the first token; the bars of this app have their own colour.

    Args:
        report: the report that `benchmarks.chat` prints.
        path: a PNG file, overwritten.
    """
    panels = [(f"{users} user{'s' * (users > 1)}: tokens/s", rates) for users, rates in report["tokens_per_s"].items()]
    panels.append(("first token of 512: seconds (less is better)", report["first_token_of_512_s"]))
    figure, axes = plt.subplots(1, len(panels), figsize=(4 * len(panels), 3.6), sharey=True, layout="constrained")
    for axis, (title, values) in zip(axes, panels, strict=True):
        names = list(reversed(values))
        bars = axis.barh(names, [values[name] for name in names])
        for name, bar in zip(names, bars, strict=True):
            bar.set_color(OURS if name.startswith("hfjax") else OTHERS)
        axis.bar_label(
            bars, fmt=lambda value: f"{value:,.0f}" if value >= 10 else f"{value:.2f}", padding=3, fontsize=8
        )
        axis.set_title(title, fontsize=10)
        axis.margins(x=0.18)
        axis.spines[["top", "right"]].set_visible(False)
    hardware = report["hardware"]
    figure.suptitle(f"{report['shape']} on {hardware['cpu']}, {hardware['cores']} cores, random weights", fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)
