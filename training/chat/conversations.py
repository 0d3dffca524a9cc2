"""Whole conversations: turns of all skills mixed, with facts told early and asked about late, follow-ups and system prompts."""

# ruff: noqa: E501 (patterns and word lists read best on one line)

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from . import memory, words
from .arithmetic import arithmetic_turn
from .facts import PET, Fact, new_fact
from .mixes import EARLY, LATER, MIX, Mix
from .phrasing import Typed, expand
from .questions import compare_turn, more_turn, topic_turn
from .smalltalk import small_talk_turn
from .stories import Subject, again_turn, creative_turn
from .topics import Topic
from .unknown import unknown_turn

SYSTEM = [
    "[You are|You're|Act as] a [helpful|friendly|polite|kind|concise|patient|cheerful|careful|honest] [assistant|chatbot|teacher|bot|helper|tutor|model][.| who answers briefly.| for students.| that helps users.]",
    "[Answer|Reply|Respond|Please answer] [briefly|shortly|in one sentence|politely|in English|concisely|like a friend|in short sentences|with care|truthfully][.|]",
    "[You are|Act as|Pretend to be|Talk like] a [pirate|king|robot|cat|wizard|poet|doctor|cowboy|knight|chef|detective][.|. Stay in character.]",
    "[Be|Always be|Please be] [helpful|concise|kind|honest|nice|brief|formal|funny][ and {adjective}|][.|]",
    "[Today is Monday.|The user is a beginner.|The user likes short answers.|Do not use emojis.|Never lie.|Use simple words.|You are running on a TPU.|This is a demo.|Keep your answers under 50 words.]",
    "You are {name}, a {adjective} assistant[.|. Help the user.]",
    "[Answer questions about|You are an expert on|Help the user with] {noun}s[.|]",
]
EARLY_TALKS = 9_000


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages as transformers' chat templates take them: dicts of role and content, a system message first where there is one."""

    messages: list[dict[str, str]]


@dataclass
class _State:
    facts: dict[str, Fact] = field(default_factory=dict)
    told: tuple[Topic, str] | None = None
    written: tuple[str, Subject, str] | None = None


def _key(fact: Fact) -> str:
    return fact.key.replace("color", "colour")


def _tell(rng: random.Random, state: _State) -> tuple[Typed, str]:
    fact = new_fact(rng)
    old = None
    if state.facts and rng.random() < words.habits(rng).corrected:
        old = rng.choice(list(state.facts.values()))
        while fact.kind is not old.kind:
            fact = new_fact(rng)
        fact = Fact(kind=old.kind, key=old.key, value=fact.value, noun=old.noun)
    elif _key(fact) in state.facts:
        old = state.facts[_key(fact)]
        fact = Fact(kind=old.kind, key=old.key, value=fact.value, noun=old.noun)
    elif rng.random() < 0.2:
        second = new_fact(rng)
        if _key(second) != _key(fact) and _key(second) not in state.facts:
            typed, reply, fact, second = memory.tell_two_turn(rng, fact, second)
            state.facts |= {_key(fact): fact, _key(second): second}
            return typed, reply
    typed, reply, fact = memory.tell_turn(rng, fact, old)
    state.facts[_key(fact)] = fact
    return typed, reply


def _ask(rng: random.Random, state: _State) -> tuple[Typed, str]:
    fact = rng.choice(list(state.facts.values()))
    pets = [f for f in state.facts.values() if f.kind is PET]
    return memory.ask_turn(rng, fact, only_pet=len(pets) == 1)


def _never_told(rng: random.Random, state: _State) -> tuple[Typed, str]:
    fact = new_fact(rng)
    if _key(fact) in state.facts:
        return _ask(rng, state)
    no_pet = not any(f.kind is PET for f in state.facts.values())
    return memory.ask_turn(rng, fact, known=False, only_pet=no_pet)


def _turn(rng: random.Random, kind: str, state: _State) -> tuple[Typed, str]:
    if kind == "topic":
        typed, reply, state.told = topic_turn(rng)
        return typed, reply
    if kind in ("story", "poem"):
        name = state.facts.get("name")
        if name and rng.random() < 0.1:
            typed, reply, subject = creative_turn(
                rng, kind, Subject(asked="me", introduced=name.value, called=name.value)
            )
            if typed.text.isupper():
                return _turn(rng, "small talk", state)
            subject = Subject(asked="me", introduced=name.value, called=name.value)
            reply = creative_turn(rng, kind, subject)[1]
            while name.value not in reply:
                reply = creative_turn(rng, kind, subject)[1]
        else:
            typed, reply, subject = creative_turn(rng, kind)
        state.written = (kind, subject, reply)
        return typed, reply
    simple = {
        "small talk": small_talk_turn,
        "compare": compare_turn,
        "arithmetic": arithmetic_turn,
        "unknown": unknown_turn,
        "repeat": memory.repeat_turn,
    }
    if kind in simple:
        return simple[kind](rng)
    return {"tell": _tell, "ask": _ask, "never told": _never_told}[kind](rng, state)


def _follow_up(rng: random.Random, state: _State, last: str) -> tuple[Typed, str] | None:
    if last == "topic" and state.told and rng.random() < 0.22:
        more = more_turn(rng, state.told)
        if more:
            state.told = more[2]
            return more[0], more[1]
    if last in ("story", "poem") and state.written and rng.random() < 0.3:
        typed, reply, subject = again_turn(rng, last, state.written[1], state.written[2])
        state.written = (last, subject, reply)
        return typed, reply
    return None


def _joined(rng: random.Random, state: _State) -> tuple[str, str]:
    """A fact or a greeting, and a question in the same message."""
    if rng.random() < 0.65:
        first, reply = _tell(rng, state)
    else:
        greeting = rng.choice(["hi", "hello", "hey", "good morning", "hello there", "hey there", "hi there"])
        first, reply = Typed(text=greeting if rng.random() < 0.5 else greeting.capitalize(), values={}), "Hello!"
    kind = rng.choice(["topic", "arithmetic", "unknown", "topic", "arithmetic", "small talk", "poem", "story"])
    second, answer = _turn(rng, kind, state)
    while second.text.lower().startswith(("hi", "hello", "hey", "good")):
        second, answer = _turn(rng, kind, state)
    joint = rng.choice([" ", ", ", ". "]) if first.text[-1].isalnum() else " "
    return first.text + joint + second.text, f"{reply} {answer}"


def conversation(rng: random.Random, *, early: bool = False, mix: Mix = MIX) -> Conversation:
    """One conversation: 1 to 12 exchanges of user and assistant, few more often than many; 1 to 3 when it is an `early` one."""
    messages = []
    if rng.random() < 0.2 and not early:
        values = {"name": words.name(rng), "adjective": rng.choice(words.ADJECTIVES), "noun": rng.choice(words.THINGS)}
        text = expand(rng, rng.choice(SYSTEM))
        for slot, value in values.items():
            text = text.replace("{" + slot + "}", value)
        messages.append({"role": "system", "content": text})
    turns = (
        rng.randint(1, 3) if early else rng.choices([1, 2, 3, 4, 6, 8, 10, 12], [1.5, 1.5, 1.5, 2, 2, 1.5, 1, 0.5])[0]
    )
    state, last = _State(), ""
    talkative = rng.random() < 0.6
    for _ in range(turns):
        weighted = [
            *(EARLY if early else mix),
            (words.habits(rng).asks * (3.0 if talkative else 1.0) if state.facts else 0.0, "ask"),
        ]
        kind = rng.choices([k for _, k in weighted], [w for w, _ in weighted])[0]
        follow = _follow_up(rng, state, last)
        if follow:
            text, reply = follow[0].text, follow[1]
        elif rng.random() < 0.07:
            text, reply = _joined(rng, state)
            kind = ""
        else:
            typed, reply = _turn(rng, kind, state)
            text = typed.text
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": reply}]
        last = last if follow else kind
    return Conversation(messages=messages)


def conversations(seed: int, *, phase: int = 1) -> Iterator[Conversation]:
    """Endless conversations, the same for the same seed; those of phase 1 begin with EARLY_TALKS early ones."""
    if phase in LATER:
        rng = words.Source(seed)
        mix, rng.habits = LATER[phase]
        while True:
            yield conversation(rng, mix=mix)
    rng = random.Random(seed)
    for at in count():
        yield conversation(rng, early=at < EARLY_TALKS)
