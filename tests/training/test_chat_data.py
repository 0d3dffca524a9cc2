"""The data of the chat models: deterministic, arithmetically true, and disjoint from the held-out conversations."""

import json
import random
import re
from itertools import islice

import pytest

from training.chat import facts, words
from training.chat.arithmetic import (
    arithmetic_turn,
    difference_by_digits,
    difference_shown,
    is_held_out,
    operands,
    sum_by_digits,
    sum_shown,
)
from training.chat.batches import IGNORED, encode
from training.chat.conversations import EARLY_TALKS, conversations
from training.chat.evaluate import HELD_OUT, STRANGERS, is_right, score
from training.chat.phrasing import expand, user
from training.chat.recall import ask_broadly, tell_broadly
from training.chat.stories import creative_turn
from training.chat.tokenizer import GEMMA, LLAMA, train_tokenizer


def test_the_same_seed_gives_the_same_conversations():
    """`make train` can only reproduce a model when its data is a function of the seed."""
    assert list(islice(conversations(5), 40)) == list(islice(conversations(5), 40))
    assert list(islice(conversations(5), 40)) != list(islice(conversations(6), 40))


def test_expand_handles_nested_and_empty_choices():
    """All sentences of a pattern are reachable, and nothing else."""
    rng = random.Random(0)
    assert {expand(rng, "a[ b| [c|d]|]") for _ in range(200)} == {"a b", "a c", "a d", "a"}


def test_typing_habits_never_change_a_slot_except_its_capitals():
    """A name with a typo in it could not be repeated by the assistant."""
    rng = random.Random(1)
    for _ in range(500):
        typed = user(rng, "[hello|hi], my name is {v}.", {"v": "Zwxqa"})
        assert typed.values["v"] in typed.text
        assert typed.values["v"].lower() == "zwxqa"


@pytest.mark.parametrize("shown", [sum_shown, difference_shown])
def test_every_step_of_the_shown_work_is_true(shown):
    """Each side of each equals sign has the same value, for all pairs up to 100."""
    for a in range(101):
        for b in range(101):
            sides = shown(a, b).split(" = ")
            values = {eval(side, {"__builtins__": {}}) for side in sides}
            assert values == {a + b if shown is sum_shown else a - b}


@pytest.mark.parametrize(("shown", "sign"), [(sum_by_digits, 1), (difference_by_digits, -1)])
def test_every_step_by_digits_is_true(shown, sign):
    """Each equation in the text holds, and the last number is the result, for all pairs up to 100."""
    for a in range(101):
        for b in range(101):
            text = shown(a, b)
            for left, right in re.findall(r"(-?\(?\d+ [+-] \d+\)?) = (-?\d+)", text):
                assert eval(left, {"__builtins__": {}}) == int(right), text
            assert is_right(text + ".", {"number": a + sign * b}), text


@pytest.mark.parametrize("phase", [1, 2, 4, 5, 6, 7, 8])
def test_every_phase_is_deterministic(phase):
    """Each phase of the training has its own mixture, from the same seed the same one."""
    first, again = (list(islice(conversations(3, phase=phase), 30)) for _ in "ab")
    assert first == again
    assert first != list(islice(conversations(3, phase=phase % 8 + 1), 30))


@pytest.mark.parametrize("by_digits", [False, True])
def test_held_out_pairs_are_never_asked(by_digits):
    """No question, in any of its ways of answering, uses a pair of numbers that models are tested on."""
    rng = words.Source(2)
    rng.habits = words.Habits(by_digits=by_digits)
    for _ in range(3000):
        a, b = operands(rng)
        assert not is_held_out(a, b)
    typed, reply = arithmetic_turn(rng)
    assert typed.text
    assert reply.endswith(".")


def test_stories_of_sums_in_any_words_are_answered_truly():
    """The two numbers of a question, however it is worded, give the number of its answer."""
    rng = words.Source(4)
    rng.habits = words.Habits(by_digits=True, worded=0.5, roomy=True, broad=0.8)
    asked = 0
    for _ in range(2000):
        typed, reply = arithmetic_turn(rng)
        numbers = [int(number) for number in re.findall(r"\d+", typed.text)]
        if len(numbers) == 2 and "=" in reply:
            a, b = numbers
            assert any(is_right(reply, {"number": number}) for number in (a + b, a - b, b - a)), (typed.text, reply)
            asked += 1
    assert asked > 1500


@pytest.mark.parametrize("kind", [facts.NAME, facts.CITY, facts.PET, facts.OWNED, facts.LIKES, facts.AGE, facts.JOB])
def test_broad_ways_of_telling_keep_the_fact(kind):
    """Every way of telling names the value; every way of asking can be filled, with and without a noun."""
    rng = random.Random(5)
    for noun in ("colour", ""):
        fact = facts.Fact(kind=kind, key="favourite colour", value="Zwxqa", noun=noun)
        values = {"k": fact.key, "ak": "a k", "v": fact.value, "av": "a Zwxqa", "noun": fact.noun}
        for pattern in tell_broadly(fact):
            assert "zwxqa" in user(rng, pattern, values).text.lower()
        for pattern in ask_broadly(fact):
            assert noun or "{noun}" not in pattern
            assert "zwxqa" not in user(rng, pattern, values).text.lower()


def test_a_poem_has_two_lines_and_names_its_thing():
    """The training data must pass the held-out check."""
    rng = random.Random(3)
    for _ in range(300):
        _, reply, subject = creative_turn(rng, "poem")
        assert len(reply.splitlines()) == 2
        assert subject.introduced.lower() in reply.lower()


@pytest.mark.parametrize("chat_format", [GEMMA, LLAMA])
def test_only_the_assistants_words_are_learned(chat_format):
    """The labelled tokens decode to the replies and their end tokens, through the model's own chat template."""
    tokenizer = train_tokenizer(chat_format, count=150)
    talks = [talk.messages for talk in islice(conversations(9), 20)]
    for talk, (ids, labels) in zip(talks, encode(tokenizer, chat_format, talks), strict=True):
        learned = tokenizer.decode([label for label in labels if label != IGNORED])
        replies = "".join(m["content"] + chat_format.end_of_turn for m in talk if m["role"] == "assistant")
        assert learned == replies[: len(learned)]
        assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))


@pytest.mark.parametrize("path", [HELD_OUT, STRANGERS])
def test_the_held_out_names_are_unknown_to_the_training_lists(path):
    """Only names that no list contains test copying."""
    known = {name.lower() for name in [*words.NAMES, *words.PET_NAMES, *words.CITIES]}
    copied = [
        pattern
        for talk in json.loads(path.read_text())
        if talk["skill"] == "memory"
        for turn in talk["turns"]
        for pattern in turn.get("all", [])
    ]
    assert len(copied) >= 30
    assert not known & {pattern.lower().strip(r"\b") for pattern in copied}


@pytest.mark.parametrize(("phase", "skipped"), [(1, EARLY_TALKS), (8, 0)])
def test_the_held_out_questions_are_not_generated(phase, skipped):
    """No question on topics, identity or unknown things that models are scored on is among ten thousand generated."""
    asked = {
        m["content"].lower().strip("?.! ")
        for talk in islice(conversations(1, phase=phase), skipped, skipped + 3000)
        for m in talk.messages
        if m["role"] == "user"
    }
    held_out = [
        talk["turns"][0]["user"]
        for talk in json.loads(HELD_OUT.read_text())
        if talk["skill"] in ("topics", "unknown", "identity")
    ]
    repeated = [text for text in held_out if text.lower().strip("?.! ") in asked]
    assert not repeated


@pytest.mark.parametrize(
    ("reply", "check", "right"),
    [
        ("27 + 45 = 60 + 12 = 72, so the answer is 72.", {"number": 72}, True),
        ("27 + 45 = 62.", {"number": 72}, False),
        ("20 - 53 = -(53 - 20) = -33, so the answer is -33.", {"number": -33}, True),
        ("89 - 47 = 42.", {"number": 42}, True),
        ("Your name is Ada.", {"all": ["ada"]}, True),
        ("Your name is Bo.", {"all": ["ada"]}, False),
        ("One line.\nTwo lines.", {"lines": 2}, True),
        ("I'm sorry, I don't know.", {"any": ["don't know"], "none": ["haven't told"]}, True),
    ],
)
def test_the_check_itself(reply, check, right):
    """The scripted check separates right from wrong replies."""
    assert is_right(reply, check) is right


def test_a_model_that_always_says_the_same_scores_badly():
    """The score is not satisfied by a constant; "I don't know" is right only for unknown things and untold facts."""
    shares = score(lambda messages: "I don't know.")
    assert shares["unknown"] == 1.0
    assert shares["topics"] == shares["arithmetic"] == shares["memory"] == 0.0
    assert shares["all"] < 0.3
