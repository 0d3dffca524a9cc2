"""What users tell about themselves, and questions about it later: told, corrected, or never told."""

# ruff: noqa: E501 (patterns read best on one line)

import random

from . import words
from .facts import AGE, CITY, LIKE_ASK, LIKE_TELL, NAME, PET, PET_GENERAL, PET_KIND, RELATIVE, Fact
from .phrasing import Typed, expand, say, user
from .recall import ask_broadly, tell_broadly


def tell_patterns(rng: random.Random, fact: Fact) -> list[str]:
    if words.broadly(rng):
        return tell_broadly(fact)
    liked = fact.noun and rng.random() < 0.3
    return list(LIKE_TELL if liked else fact.kind.tell)


def _values(fact: Fact, old: str = "") -> dict[str, str]:
    with_articles = {"ak": words.with_article(fact.key), "av": words.with_article(fact.value)}
    return {"k": fact.key, "v": fact.value, "noun": fact.noun, "old": old} | with_articles


def _as_typed(fact: Fact, typed: Typed) -> Fact:
    return Fact(kind=fact.kind, key=fact.key, value=typed.values["v"], noun=fact.noun)


REMINDERS = "[I forgot|one more time|once more|memory test|a little test|test question|let me test you|help me out|I lost my notes|you surely know this|back to me|just checking|for the record|back to what I said|before we go on|last question|okay then|a moment ago I said it][, |: |. |... ]"
STILL = (
    "can you still tell me ",
    "do you still know ",
    "are you able to say ",
    "I bet you don't know ",
    "do you happen to remember ",
    "is it possible that you know ",
    "what would you say is ",
)
MORE_NAME_ASK = (
    "[by what|under what|by which] name [do you know me|am I known|did I introduce myself]?",
    "[and|so|now|then|okay][,|] my name [is|was]?",
    "my name was [what|what again]?",
    "[greet me|say hello to me|thank me|address me|say goodbye] [by|with|using] my name[.|, please.]",
    "[whom|who] are you [talking|speaking] to?",
    "[what|which name] [should|would|will] you call me?",
    "[say|write|type|spell|print] my name[ please| for me|][.|]",
)
TAILS = "[ and I [am new here|have a question|like to test things|want to try this|hope you are well|am just looking around|work with computers|will ask you things]| by the way|, as you know|, since you ask|, in case you wonder| and I'm proud of it]"


def tell_turn(rng: random.Random, fact: Fact, old: Fact | None = None) -> tuple[Typed, str, Fact]:
    """A fact told (or `old` corrected); the fact comes back with its value as typed."""
    patterns = list(fact.kind.correct) if old else tell_patterns(rng, fact)
    if words.habits(rng).reminded and not old and rng.random() < 0.2:
        patterns = [pattern.replace("[.|!]", "").replace("[.|]", "") + TAILS for pattern in patterns]
    typed = user(
        rng, patterns, _values(fact, old.value if old else ""), fixed=("k", "noun") if rng.random() < 0.5 else ()
    )
    fact = _as_typed(fact, typed)
    take = say(rng, list(fact.kind.take), _values(fact))
    if old and rng.random() < 0.7 and not take.startswith(fact.value):
        take = say(rng, "[all right|thank you|I see], ") + (
            take if take.startswith("I'") else take[0].lower() + take[1:]
        )
    return typed, take, fact


def tell_two_turn(rng: random.Random, first: Fact, second: Fact) -> tuple[Typed, str, Fact, Fact]:
    """Two facts in one message."""
    one, two = expand(rng, rng.choice(tell_patterns(rng, first))), expand(rng, rng.choice(tell_patterns(rng, second)))
    rename = {"{k}": "{k2}", "{ak}": "{ak2}", "{av}": "{av2}", "{v}": "{v2}", "{noun}": "{noun2}", "{old}": "{old2}"}
    for old, new in rename.items():
        two = two.replace(old, new)
    joint = rng.choice([". ", ", and ", " and ", ", ", "! "])
    pattern = one.rstrip(".!") + joint + two
    values = _values(first) | {f"{name}2": value for name, value in _values(second).items()}
    typed = user(rng, pattern, values)
    first = _as_typed(first, typed)
    second = Fact(kind=second.kind, key=second.key, value=typed.values["v2"], noun=second.noun)
    return (
        typed,
        say(rng, list(first.kind.take), _values(first)) + " " + say(rng, list(second.kind.take), _values(second)),
        first,
        second,
    )


def ask_turn(rng: random.Random, fact: Fact, *, known: bool = True, only_pet: bool = False) -> tuple[Typed, str]:
    """A question about a fact, told earlier or never."""
    patterns, answers = list(fact.kind.ask), list(fact.kind.answer) if known else [fact.kind.unknown]
    pick = rng.random()
    if fact.kind is PET and only_pet and pick < 0.15:
        patterns = list(PET_GENERAL)
        answers = answers if known else ["[I don't know. You|You] haven't told me about a pet."]
    elif fact.kind is PET and only_pet and pick < 0.4:
        patterns = list(PET_KIND)
        answers = ["you have {ak} called {v}."] if known else ["[I don't know. You|You] haven't told me about a pet."]
    elif fact.noun and pick < 0.25:
        patterns = list(LIKE_ASK)
    elif words.habits(rng).reminded and fact.kind is NAME and pick < 0.35:
        patterns = list(MORE_NAME_ASK)
    elif words.broadly(rng):
        patterns = ask_broadly(fact)
    reminded = rng.random() if words.habits(rng).reminded else 1.0
    if reminded < 0.35:
        patterns = [REMINDERS + pattern for pattern in patterns]
    elif reminded < 0.45:
        named = {NAME: "my name", CITY: "[where I live|my home town|my city]", AGE: "my age"}.get(fact.kind)
        what = named or ("what my {k} is called" if fact.kind in (PET, RELATIVE) else "my {k}" if fact.noun else None)
        patterns = [rng.choice(STILL) + what + "[?|]"] if what else patterns
    typed = user(rng, patterns, _values(fact))
    return typed, say(rng, answers, _values(fact))


REPEAT = (
    "[repeat|say|repeat after me|echo|copy|say after me|please repeat|please say|can you say|write|repeat the words|repeat this|say this]: {v}",
    "[repeat|say|please say|please repeat|repeat after me|write] {v}",
)


def repeat_turn(rng: random.Random) -> tuple[Typed, str]:
    """A request to repeat a few words, most of them made up. It teaches copying: every word of the answer stands in the question."""
    count = rng.choice([1, 2, 3, 4, 6, 8])
    said = [
        rng.choice(
            [words.made_up(rng), words.made_up(rng).capitalize(), rng.choice(words.THINGS), rng.choice(words.NAMES)]
        )
        for _ in range(count)
    ]
    typed = user(rng, list(REPEAT), {"v": " ".join(said)}, wrap=False)
    return typed, f"All right: {typed.values['v']}."
