"""What devices exchange in a compiled program, read off its text. A collective in a loop counts once."""

import math
import re
from collections import Counter

_COLLECTIVE = re.compile(
    r"= (.+?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(-start)?\(.*?(?:channel_id=(\d+)|$)",
    re.M,
)
_ARRAY = re.compile(r"[a-z]+(\d+)\[([\d,]+)\]")


def collectives(text: str) -> tuple[Counter[str], Counter[str]]:
    """The number of collectives of each kind in a compiled program, and the bytes of their results on one device.

    A TPU's compiler writes one that runs beside arithmetic several times, with the number of its channel.
    """
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    seen: set[str] = set()
    for result, kind, is_started, channel in _COLLECTIVE.findall(text):
        if channel in seen:
            continue
        seen |= {channel} - {""}
        counts[kind] += 1
        arrays = _ARRAY.findall(result)
        if is_started and kind != "all-reduce":  # the operands come first
            arrays = arrays[len(arrays) // 2 :]
        for bits, shape in arrays:
            sizes[kind] += int(bits) // 8 * math.prod(map(int, shape.split(",")))
    return counts, sizes
