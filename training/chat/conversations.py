"""Whole conversations: turns of all skills mixed, with facts told early and asked about late, follow-ups and system prompts."""

# ruff: noqa: E501 (patterns and word lists read best on one line)

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from . import memory, words
from .arithmetic import arithmetic_turn
from .phrasing import Typed, expand
from .smalltalk import small_talk_turn
from .stories import Subject, again_turn, creative_turn
from .topics import Topic, compare_turn, more_turn, topic_turn
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
# (weight, kind of turn); facts are asked about more often once there are some.
MIX = [
    (2.0, "small talk"),
    (3.2, "topic"),
    (0.5, "compare"),
    (4.2, "arithmetic"),
    (2.0, "unknown"),
    (2.2, "tell"),
    (0.45, "story"),
    (0.5, "poem"),
    (0.35, "never told"),
    (0.2, "repeat"),
]


# The first conversations of a training are short and mostly copying: without that, copying starts late.
EARLY_MIX = [
    (6.0, "repeat"),
    (3.0, "tell"),
    (0.5, "poem"),
    (0.3, "story"),
    (1.0, "topic"),
    (1.0, "small talk"),
    (1.0, "arithmetic"),
]
EARLY_TALKS = 9_000


# The second phase drills what is slow to learn: arithmetic, rare pieces of words, facts corrected or never told.
SECOND_MIX = [
    (2.6, "small talk"),
    (1.6, "topic"),
    (0.3, "compare"),
    (9.0, "arithmetic"),
    (1.3, "unknown"),
    (2.4, "tell"),
    (0.35, "story"),
    (0.45, "poem"),
    (1.1, "never told"),
    (0.5, "repeat"),
]
SECOND_HABITS = words.Habits(spliced=0.6, corrected=0.3, bare=0.5, more_small_talk=True)


# The third and the fourth phase show arithmetic digit by digit, and let nothing else fade.
THIRD_MIX = [
    (1.8, "small talk"),
    (2.6, "topic"),
    (0.3, "compare"),
    (6.5, "arithmetic"),
    (1.5, "unknown"),
    (3.0, "tell"),
    (0.35, "story"),
    (0.5, "poem"),
    (0.7, "never told"),
    (0.5, "repeat"),
]
THIRD_HABITS = words.Habits(spliced=0.6, corrected=0.25, bare=0.2, more_small_talk=True, by_digits=True)


# The fifth phase is the longest. Arithmetic comes in stories too, and facts that were never told are asked for more often.
FIFTH_MIX = [
    (2.0, "small talk"),
    (2.4, "topic"),
    (0.3, "compare"),
    (6.0, "arithmetic"),
    (1.7, "unknown"),
    (3.2, "tell"),
    (0.5, "story"),
    (0.6, "poem"),
    (1.2, "never told"),
    (0.8, "repeat"),
]
FIFTH_HABITS = words.Habits(spliced=0.6, corrected=0.25, bare=0.15, more_small_talk=True, by_digits=True, worded=0.45)
# The sixth phase drills memory: facts are told and asked about in more ways, often many turns later.
SIXTH_MIX = [
    (1.6, "small talk"),
    (1.8, "topic"),
    (0.2, "compare"),
    (2.6, "arithmetic"),
    (1.5, "unknown"),
    (4.5, "tell"),
    (0.4, "story"),
    (0.9, "poem"),
    (0.5, "never told"),
    (2.0, "repeat"),
]
SIXTH_HABITS = words.Habits(
    spliced=0.7,
    corrected=0.25,
    bare=0.1,
    more_small_talk=True,
    by_digits=True,
    worded=0.5,
    reminded=True,
    asks=2.5,
)
# The seventh phase is the last one: everything once more, arithmetic in plain words and in longer stories.
SEVENTH_MIX = [
    (2.0, "small talk"),
    (2.6, "topic"),
    (0.2, "compare"),
    (6.0, "arithmetic"),
    (2.0, "unknown"),
    (3.6, "tell"),
    (0.6, "story"),
    (0.8, "poem"),
    (0.7, "never told"),
    (1.2, "repeat"),
]
SEVENTH_HABITS = words.Habits(
    spliced=0.7,
    corrected=0.25,
    bare=0.2,
    more_small_talk=True,
    by_digits=True,
    worded=0.55,
    reminded=True,
    asks=2.0,
    roomy=True,
)
LATER = {
    2: (SECOND_MIX, SECOND_HABITS),
    3: (THIRD_MIX, THIRD_HABITS),
    4: (THIRD_MIX, THIRD_HABITS),
    5: (FIFTH_MIX, FIFTH_HABITS),
    6: (SIXTH_MIX, SIXTH_HABITS),
    7: (SEVENTH_MIX, SEVENTH_HABITS),
}


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages as transformers' chat templates take them: dicts of role and content, a system message first where there is one."""

    messages: list[dict[str, str]]


@dataclass
class _State:
    facts: dict[str, memory.Fact] = field(default_factory=dict)
    told: tuple[Topic, str] | None = None
    written: tuple[str, Subject, str] | None = None


def _key(fact: memory.Fact) -> str:
    return fact.key.replace("color", "colour")


def _tell(rng: random.Random, state: _State) -> tuple[Typed, str]:
    fact = memory.new_fact(rng)
    old = None
    if state.facts and rng.random() < words.habits(rng).corrected:
        old = rng.choice(list(state.facts.values()))
        while fact.kind is not old.kind:
            fact = memory.new_fact(rng)
        fact = memory.Fact(kind=old.kind, key=old.key, value=fact.value, noun=old.noun)
    elif _key(fact) in state.facts:
        old = state.facts[_key(fact)]
        fact = memory.Fact(kind=old.kind, key=old.key, value=fact.value, noun=old.noun)
    elif rng.random() < 0.2:
        second = memory.new_fact(rng)
        if _key(second) != _key(fact) and _key(second) not in state.facts:
            typed, reply, fact, second = memory.tell_two_turn(rng, fact, second)
            state.facts |= {_key(fact): fact, _key(second): second}
            return typed, reply
    typed, reply, fact = memory.tell_turn(rng, fact, old)
    state.facts[_key(fact)] = fact
    return typed, reply


def _ask(rng: random.Random, state: _State) -> tuple[Typed, str]:
    fact = rng.choice(list(state.facts.values()))
    pets = [f for f in state.facts.values() if f.kind is memory.PET]
    return memory.ask_turn(rng, fact, only_pet=len(pets) == 1)


def _never_told(rng: random.Random, state: _State) -> tuple[Typed, str]:
    fact = memory.new_fact(rng)
    if _key(fact) in state.facts:
        return _ask(rng, state)
    no_pet = not any(f.kind is memory.PET for f in state.facts.values())
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


def conversation(rng: random.Random, *, early: bool = False, mix: list[tuple[float, str]] = MIX) -> Conversation:
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
            *(EARLY_MIX if early else mix),
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
    """Conversations without end, the same ones for the same seed; those of phase 1 begin with EARLY_TALKS early ones."""
    if phase in LATER:
        rng = words.Source(seed)
        mix, rng.habits = LATER[phase]
        while True:
            yield conversation(rng, mix=mix)
    rng = random.Random(seed)
    for at in count():
        yield conversation(rng, early=at < EARLY_TALKS)
