"""A colour for each label of a classifier, the same in every chart. Labels are also named wherever they are drawn."""

from collections.abc import Sequence

from hfjax_app.sentiment.bulk import NO_LABEL, UNCLASSIFIED

_COLOURS = ("l1", "l2", "l4", "l5", "l6", "l7", "l8")  # of assets/tokens.css
_NEUTRAL = "l3"
# A label with one of these names has its colour in every model, whatever its place.
_MEANINGS = {
    **dict.fromkeys(("positive", "pos", "entailment", "joy"), "l1"),
    **dict.fromkeys(("negative", "neg", "contradiction", "anger"), "l2"),
    **dict.fromkeys(("neutral", "neu", "mixed", "other", "none", NO_LABEL, UNCLASSIFIED), _NEUTRAL),
}


def colours(labels: Sequence[str]) -> dict[str, str]:
    """Each label's CSS class. With more labels than colours, some share one."""
    named = {label: _MEANINGS[key] for label in labels if (key := label.strip().casefold()) in _MEANINGS}
    free = [colour for colour in _COLOURS if colour not in named.values()] or list(_COLOURS)
    others = [label for label in labels if label not in named]
    return named | {label: free[at % len(free)] for at, label in enumerate(others)}
