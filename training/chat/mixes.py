"""The data of each phase of a training: how often each kind of turn comes, and the habits of the data."""

from dataclasses import replace

from .words import Habits

Mix = tuple[tuple[float, str], ...]  # (weight, kind of turn)

# The first conversations of a training are short and mostly copying: without that, copying starts late.
EARLY: Mix = (
    (6.0, "repeat"),
    (3.0, "tell"),
    (0.5, "poem"),
    (0.3, "story"),
    (1.0, "topic"),
    (1.0, "small talk"),
    (1.0, "arithmetic"),
)

KINDS = (
    "small talk",
    "topic",
    "compare",
    "arithmetic",
    "unknown",
    "tell",
    "story",
    "poem",
    "never told",
    "repeat",
)
# One row for each phase, in the order of KINDS. Questions about facts come on top, once there are facts.
# 2 drills what is slow to learn: arithmetic, rare pieces of words, facts corrected or never told. 3 and 4 show
# arithmetic digit by digit and keep everything else. 5 is the longest, with arithmetic in stories too. 6 drills
# memory. 7 is everything once more, in longer stories. 8 asks for everything in more ways, mostly for what was weak:
# what the model is, what it was never told, differences below zero, rare names.
_WEIGHTS = {
    1: (2.0, 3.2, 0.5, 4.2, 2.0, 2.2, 0.45, 0.5, 0.35, 0.2),
    2: (2.6, 1.6, 0.3, 9.0, 1.3, 2.4, 0.35, 0.45, 1.1, 0.5),
    3: (1.8, 2.6, 0.3, 6.5, 1.5, 3.0, 0.35, 0.5, 0.7, 0.5),
    5: (2.0, 2.4, 0.3, 6.0, 1.7, 3.2, 0.5, 0.6, 1.2, 0.8),
    6: (1.6, 1.8, 0.2, 2.6, 1.5, 4.5, 0.4, 0.9, 0.5, 2.0),
    7: (2.0, 2.6, 0.2, 6.0, 2.0, 3.6, 0.6, 0.8, 0.7, 1.2),
    8: (4.2, 3.4, 0.25, 5.4, 2.6, 4.0, 0.5, 0.6, 1.6, 1.3),
}
_MIXES: dict[int, Mix] = {phase: tuple(zip(weights, KINDS, strict=True)) for phase, weights in _WEIGHTS.items()}
_SECOND = Habits(spliced=0.6, corrected=0.3, bare=0.5, more_small_talk=True)
_THIRD = replace(_SECOND, corrected=0.25, bare=0.2, by_digits=True)
_FIFTH = replace(_THIRD, bare=0.15, worded=0.45)
_SIXTH = replace(_FIFTH, spliced=0.7, bare=0.1, worded=0.5, reminded=True, asks=2.5)
_SEVENTH = replace(_SIXTH, bare=0.2, worded=0.55, asks=2.0, roomy=True)
_EIGHTH = replace(_SEVENTH, spliced=0.5, bare=0.12, worded=0.5, broad=0.6)
MIX = _MIXES[1]
LATER: dict[int, tuple[Mix, Habits]] = {
    2: (_MIXES[2], _SECOND),
    3: (_MIXES[3], _THIRD),
    4: (_MIXES[3], _THIRD),
    5: (_MIXES[5], _FIFTH),
    6: (_MIXES[6], _SIXTH),
    7: (_MIXES[7], _SEVENTH),
    8: (_MIXES[8], _EIGHTH),
}
