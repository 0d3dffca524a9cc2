"""Labels and words as HTML: their colours, and that nothing of them is a tag."""

import re
from pathlib import Path

import pytest

from hfjax_app.sentiment import Explanation, Prediction
from hfjax_app.sentiment.bulk import Results, Row
from hfjax_app.sentiment.own_labels import compare
from hfjax_app.studio.label_drawing import agreement, colours, no_scores, scores, shares, table, why
from hfjax_app.studio.theme import ASSETS

TAG = "<img src=x onerror=alert(1)>\"'"


def tokens(theme: int) -> dict[str, str]:
    """The colours of the light (0) or the dark (1) theme, as six hexadecimal digits or as three numbers."""
    light, dark = Path(ASSETS / "tokens.css").read_text().split(":root .dark {")
    found = re.compile(r"--([\w-]+): (?:#(\w{6})|(\d+ \d+ \d+));")
    return {name: digits or numbers for name, digits, numbers in found.findall([light, dark][theme])}


def luminance(channels: list[float]) -> float:
    """Relative luminance, WCAG 2.2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (each / 255 for each in channels)]
    return sum(share * value for share, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def channels(colour: str) -> list[float]:
    if " " in colour:
        return [float(each) for each in colour.split()]
    return [float(int(colour[at : at + 2], 16)) for at in (0, 2, 4)]


def contrast(one: list[float], other: list[float]) -> float:
    first, second = sorted((luminance(one), luminance(other)), reverse=True)
    return (first + 0.05) / (second + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_contrasts(theme: int) -> None:
    """Bars have 3:1 on a card, texts 4.5:1 also on the strongest colour of a word and of a cell."""
    named = tokens(theme)
    surface, ink = channels(named["surface"]), channels(named["ink"])
    for label in (f"l{at}" for at in range(1, 9)):
        assert contrast(channels(named[label]), surface) >= 3, label
        shade = [0.5 * over + 0.5 * under for over, under in zip(channels(named[label]), surface, strict=True)]
        assert contrast(ink, shade) >= 4.5, label
    for sign in ("for", "against"):
        assert contrast(channels(named[sign]), surface) >= 4.5
        over = channels(named[f"{sign}-rgb"])
        assert contrast(ink, [0.62 * o + 0.38 * u for o, u in zip(over, surface, strict=True)]) >= 4.5


def test_a_label_keeps_its_colour() -> None:
    """Whatever the order of the labels; those without a known meaning get the others."""
    three = colours(["negative", "neutral", "positive"])
    assert three == colours(["positive", "neutral", "negative"])
    assert three["Positive".lower()] == colours(["Positive", "spam"])["Positive"]
    assert len(set(colours(["spam", "Positive"]).values())) == 2
    assert len(set(colours([f"emotion {at}" for at in range(7)]).values())) == 7
    assert len(colours([f"emotion {at}" for at in range(28)])) == 28


def test_nothing_is_a_tag() -> None:
    """Labels come from a checkpoint's config, texts from visitors."""
    row = Row(number=1, text=TAG, prediction=Prediction(scores={TAG: 1.0}), note=TAG, cells=(TAG, TAG))
    results = Results(labels=(TAG,), columns=("text", TAG))
    results.add([row])
    compared = compare(results, TAG)
    explanation = Explanation(label=TAG, pieces=((TAG, 1.0), (" ", None), (TAG, None)), logit=1.0, baseline=0.0)
    for drawn in (
        scores({TAG: 1.0}, note=TAG, asks=True),
        no_scores([TAG], TAG),
        shares(results),
        agreement(compared),
        table([row], [TAG], compared),
        why(explanation),
    ):
        assert "<img" not in drawn
        assert "&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;" in drawn


def test_many_labels() -> None:
    """The likeliest of many are shown; independent labels that apply are all in the heading."""
    drawn = scores({f"emotion {at}": at / 100 for at in range(28)}, said=["emotion 27", "emotion 26"])
    assert drawn.count('class="prob"') == 8
    assert re.findall(r"emotion \d+", drawn.split("</h3>")[0])[-2:] == ["emotion 27", "emotion 26"]
    assert "emotion 3<" not in drawn
