"""The slots' records alone, compared with a cache of plain dicts: a reused prefix must be in the cache."""

import random

import pytest

from hfjax_app.chat.engine.prefix_cache import PrefixCache, PrefixMatch
from hfjax_app.chat.engine.request import Request
from hfjax_app.chat.engine.scheduler import Scheduler


class PlainCache:
    """Slots as on the device: `length` indices, each with the tokens up to its position; a ring if they are too few.

    Each write checks that the `window` positions before it hold exactly this conversation.
    """

    def __init__(self, slots: int, length: int, window: int):
        self.length, self.window = length, window
        self.slots: list[dict[int, tuple[int, ...]]] = [{} for _ in range(slots)]

    def write(self, slot: int, tokens: tuple[int, ...], start: int) -> None:
        for position in range(start, len(tokens)):
            self.slots[slot][position % self.length] = tokens[: position + 1]
        for position in range(max(0, start - self.window + 1), start):
            assert self.slots[slot].get(position % self.length) == tokens[: position + 1], (slot, position)

    def copy(self, source: int, target: int, end: int, written: int) -> None:
        kept = {position % self.length for position in range(max(0, written - self.length), end)}
        self.slots[target] = {index: tokens for index, tokens in self.slots[source].items() if index in kept}


def conversation(rng: random.Random, known: list[tuple[int, ...]]) -> tuple[int, ...]:
    """A new one with one of two system prompts, or a known one: repeated, edited, or continued."""
    fresh = [rng.randrange(9) for _ in range(rng.randrange(1, 30))]
    if not known or rng.random() < 0.2:
        return (*[rng.choice((100, 200))] * 20, *fresh)
    old = rng.choice(known)
    match rng.randrange(3):
        case 0:
            return old
        case 1:
            return (*old[: rng.randrange(len(old))], *fresh)
    return (*old, *fresh)


@pytest.mark.parametrize(
    ("length", "window", "positions_before_wrap", "rollback"),
    [(100, 100, 100, 100), (24, 16, 24, 8), (20, 16, 20, 4), (100, 100, 0, 0)],
    ids=["full", "ring", "short ring", "no rollback"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_reused_prefix_is_in_the_cache(
    length: int, window: int, positions_before_wrap: int, rollback: int, seed: int
) -> None:
    """Three slots, chunks of four, answers of any length, and requests that are cancelled at any moment while the
    device still writes. Every prefill finds the window before it."""
    rng, cache, known, running = random.Random(seed), PlainCache(3, length, window), [], []
    scheduler = Scheduler(
        slots=3, prefill_chunks=(4,), decode_chunk=5, positions_before_wrap=positions_before_wrap, rollback=rollback
    )
    states: dict[Request, tuple[int, ...]] = {}  # on the device: each request's conversation, newest token included
    reused = 0
    for _ in range(800):
        if len(known) < 300 and len(scheduler.waiting) < 4 and rng.random() < 0.3:
            prompt = conversation(rng, known)[:60]
            scheduler.submit(Request(prompt=prompt, max_tokens=rng.randrange(1, 20)))
        running += scheduler.admit()
        if step := scheduler.next_prefill():
            request = step.request
            if step.source is not None:
                cache.copy(step.source, request.slot, step.start, step.written)
            reused += request.reused * (step.start == request.reused)
            cache.write(request.slot, request.prompt[: step.stop], step.start)
            if step.is_last:
                states[request] = (*request.prompt, rng.randrange(9))
                request.answer.append(states[request][-1])
            scheduler.prefilled(step)
        if step := scheduler.next_decode():
            for request in step.requests:
                ahead = min(step.steps, request.max_tokens - request.scheduled)
                read = ahead if rng.random() < 0.9 else rng.randrange(ahead + 1)  # then the rest is in flight
                before = states[request]
                states[request] = (*before, *(rng.randrange(9) for _ in range(ahead)))
                cache.write(request.slot, states[request][:-1], len(before) - 1)
                request.answer.extend(states[request][len(before) : len(before) + read])
                request.cancelled = read < ahead
            scheduler.decoded(step)
        for request in list(running):
            done = len(request.answer) == request.max_tokens
            if done or request.cancelled or rng.random() < 0.01:
                scheduler.release(request, exact=done)
                running.remove(request)
                known.append((*request.prompt, *request.answer))
    assert len(known) > 50
    assert reused > (100 if rollback else 10)


def test_a_conversation_returns_to_its_slot_and_the_least_recently_used_slot_is_taken() -> None:
    slots = PrefixCache(count=3, positions_before_wrap=100, rollback=100, chunk=4)
    conversations = [tuple(range(100 * i, 100 * i + 20)) for i in range(3)]
    for i, tokens in enumerate(conversations):
        assert slots.choose(tokens) == i
        assert slots.begin(i, tokens).start == 0
        slots.wrote(i, tokens, 20)
    assert slots.choose((7,)) is None
    for i in (2, 0, 1):
        slots.free(i)
    follow_up = (*conversations[0], 1, 2, 3)
    assert slots.choose(follow_up) == 0
    assert slots.begin(0, follow_up).start == 20
    assert slots.choose((7,)) == 2


def test_a_conversation_keeps_its_slot_if_another_one_shares_only_its_prefix() -> None:
    """A request with the same system prompt gets the slot that was unused for longest, and a copy."""
    slots = PrefixCache(count=2, positions_before_wrap=100, rollback=100, chunk=4)
    system = tuple(range(50, 59))
    talk = (*system, *range(10))
    slots.choose(talk)
    slots.begin(0, talk)
    slots.wrote(0, talk, len(talk))
    slots.free(0)
    assert slots.choose((*system, 99)) == 1
    assert slots.begin(1, (*system, 99)) == PrefixMatch(start=9, source=0, written=19)
    slots.free(1)
    assert slots.choose((*talk[:10], 99)) == 0


@pytest.mark.parametrize(("slot", "source"), [(0, None), (1, 0)], ids=["in its slot", "in a copy"])
def test_a_ring_that_was_rolled_back_can_be_rolled_back_only_by_the_rest(slot: int, source: int | None) -> None:
    """Positions that later tokens have overwritten stay lost, in a copy of the ring too."""
    slots = PrefixCache(count=2, positions_before_wrap=10, rollback=8, chunk=4)
    talk = tuple(range(30))
    slots.begin(0, talk)
    slots.wrote(0, talk, 30)
    want = PrefixMatch(start=25, source=source, written=0 if source is None else 30)
    assert slots.begin(slot, (*talk[:25], 99)) == want
    slots.wrote(slot, talk[:25], 25)  # cancelled before its first prefill
    assert slots.usable(slot, (*talk[:22], 99)) == 22
    assert slots.usable(slot, (*talk[:21], 99)) == 0


def test_a_shared_prefix_is_copied_if_that_saves_a_call() -> None:
    """The other conversation keeps its slot, whether it is being served or not."""
    slots = PrefixCache(count=2, positions_before_wrap=100, rollback=100, chunk=4)
    system = tuple(range(50, 59))
    other = (*system, *range(30))
    slots.choose(other)
    slots.begin(0, other)
    slots.wrote(0, other, len(other))
    mine = (*system, 99)
    assert slots.choose(mine) == 1
    assert (slots.begin(1, mine).start, slots.begin(1, mine).source) == (9, None)
    slots.forget(1)
    match = slots.begin(1, mine)
    assert (match.start, match.source) == (9, 0)
    short = (50, 51, 7)  # one call either way
    slots.forget(1)
    assert slots.begin(1, short).source is None


def test_one_token_is_always_prefilled() -> None:
    """Its logits give the first token of the answer, for a repeated prompt too."""
    slots = PrefixCache(count=1, positions_before_wrap=100, rollback=100, chunk=4)
    slots.choose((1, 2, 3))
    slots.begin(0, (1, 2, 3))
    slots.wrote(0, (1, 2, 3, 4, 5), 5)
    assert slots.usable(0, (1, 2, 3)) == 2
