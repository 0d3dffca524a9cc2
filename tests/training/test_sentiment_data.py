"""The training corpus of the sentiment model: the grammar's notation, the guard of the held-out sentences, determinism.

The parts that need the lexicon packages of training/requirements.txt are skipped where those are not installed.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from training.sentiment.corpus import HELD_OUT, LABELS, Forbidden, build_grammar, read_labelled, texts, tidy, words_of
from training.sentiment.grammar import Grammar


def grammar_of(folder: Path, text: str) -> Grammar:
    (folder / "small.txt").write_text(text, encoding="utf-8")
    return Grammar({}, folder)


def drawn(grammar: Grammar, symbol: str, count: int = 300) -> Counter[str]:
    rng = Random(0)
    return Counter(grammar.draw(symbol, rng) for _ in range(count))


def test_symbols_and_groups(tmp_path: Path) -> None:
    """Symbols, groups inside groups, nothing ("_") and a smiley, which is no group, come out as the notation says."""
    grammar = grammar_of(tmp_path, "[start]\n{who} (ran|came (home|back))(_|!) :)\n[who,]\nAnna, Ben\n")
    expected = {
        f"{who} {verb}{end} :)" for who in ("Anna", "Ben") for verb in ("ran", "came home", "came back") for end in "!_"
    }
    assert set(drawn(grammar, "start")) == {text.replace("_", "") for text in expected}


def test_polarity(tmp_path: Path) -> None:
    """A section with "~" is made for both polarities; "!" inside it is the other one."""
    grammar = grammar_of(tmp_path, "[start~]\nnot {word!} but {word~}\n[word+,]\ngood\n[word-,]\nbad\n")
    assert set(drawn(grammar, "start+")) == {"not bad but good"}
    assert set(drawn(grammar, "start-")) == {"not good but bad"}


def test_weights(tmp_path: Path) -> None:
    """An alternative with weight 9 comes about nine times as often as one without."""
    counts = drawn(grammar_of(tmp_path, "[start]\n9* often\nseldom\n"), "start", 2000)
    assert 0.86 < counts["often"] / 2000 < 0.94


def test_missing_section_is_found(tmp_path: Path) -> None:
    assert grammar_of(tmp_path, "[start]\n{nowhere}\n").missing() == {"nowhere"}


def test_the_files_name_only_known_sections() -> None:
    """Without the lexicons only their own sections may be missing from the committed grammar."""
    assert {name.partition(".")[0] for name in Grammar({}).missing()} == {"lex"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a  old car .", "an old car."),
        ("it is an good one", "it is a good one"),
        ("a unique thing", "a unique thing"),
        ("fine..", "fine."),
    ],
)
def test_tidy(text: str, expected: str) -> None:
    assert tidy(text) == expected


def test_forbidden_whatever_case_punctuation_and_surroundings() -> None:
    guard = Forbidden(["I wouldn't buy it.", "So-so."])
    assert guard.contained_in("well, i WOULDNT buy it! Never")
    assert guard.contained_in("so so")
    assert not guard.contained_in("so so good")
    assert not guard.contained_in("I wouldn't buy them")


def test_forbidden_sentences_never_come_out(tmp_path: Path) -> None:
    """A grammar that would make every held-out sentence half of the time makes none of them through `texts`."""
    held_out = [sentence for _, sentence in read_labelled(HELD_OUT)]
    every = "\n".join(held_out)
    sections = "".join(f"[text{end}]\n{every}\n{len(held_out)}* allowed {end}\n" for end in ("+", "-", ".neutral"))
    grammar = grammar_of(tmp_path, sections)
    assert set(drawn(grammar, "text+")) & set(held_out), "the grammar of this test is of no use"
    made = {words_of(text) for _, text in texts(grammar, seed=1, count=900, forbidden=held_out)}
    assert not made & {words_of(sentence) for sentence in held_out}


def test_unknown_label_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.tsv"
    path.write_text("good\tI loved it.\n", encoding="utf-8")
    with pytest.raises(ValueError, match="good"):
        read_labelled(path)


def test_corpus_with_the_lexicons() -> None:
    """The real corpus: same seed, same texts; labels alternate; no notation is left; few texts repeat."""
    pytest.importorskip("vaderSentiment")
    pytest.importorskip("textblob")
    grammar = build_grammar()
    assert not grammar.missing()
    first = list(texts(grammar, seed=3, count=3000, forbidden=()))
    assert first[:300] == list(islice(texts(grammar, seed=3, count=3000, forbidden=()), 300))
    assert first[:300] != list(islice(texts(grammar, seed=4, count=3000, forbidden=()), 300))
    assert Counter(label for label, _ in first) == dict.fromkeys(LABELS, 1000)
    assert not [text for _, text in first if set("{}|_~*[]") & set(text)]
    assert len({text for _, text in first}) > 2400
