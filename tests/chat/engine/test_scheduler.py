"""The scheduler alone: first come, first served, chunk by chunk."""

import numpy as np

from hfjax_app.chat.engine.request import Request
from hfjax_app.chat.engine.scheduler import CONTENDED_CHUNK, Scheduler
from hfjax_app.chat.engine.stats import SlotState
from hfjax_app.chat.vision.picture import Grid, PlacedPicture, VisionPicture


def scheduler_of(
    slots: int, positions_before_wrap: int = 1000, rollback: int = 1000, prefill_chunks: tuple[int, ...] = (4,)
) -> Scheduler:
    options = {"positions_before_wrap": positions_before_wrap, "rollback": rollback, "prefill_chunks": prefill_chunks}
    return Scheduler(slots=slots, decode_chunk=8, **options)


def request(length: int = 3) -> Request:
    return Request(prompt=tuple(range(length)), max_tokens=5)


def test_slots_go_to_the_requests_that_have_waited_longest() -> None:
    scheduler = scheduler_of(2)
    requests = [request() for _ in range(4)]
    for r in requests:
        scheduler.submit(r)
    assert scheduler.admit() == requests[:2]
    assert [r.slot for r in requests] == [0, 1, None, None]
    assert [scheduler.place(r) for r in requests] == [0, 0, 1, 2]

    scheduler.release(requests[1])
    assert scheduler.admit() == [requests[2]]
    assert requests[2].slot == 1
    assert scheduler.place(requests[3]) == 1


def test_a_long_prompt_is_prefilled_in_chunks_and_decodes_only_afterwards() -> None:
    scheduler = scheduler_of(1)
    r = request(10)
    scheduler.submit(r)
    scheduler.admit()
    chunks = []
    while step := scheduler.next_prefill():
        assert scheduler.next_decode() is None
        chunks.append((step.start, step.stop, step.is_last))
        scheduler.prefilled(step)
    assert chunks == [(0, 4, False), (4, 8, False), (8, 10, True)]
    assert scheduler.next_decode().requests == (r,)


def test_the_states_of_slots_say_how_far_each_request_is() -> None:
    scheduler = scheduler_of(2)
    first = request(6)
    scheduler.submit(first)
    scheduler.admit()
    empty = SlotState(doing="free", reused=0)
    assert scheduler.states() == (SlotState(doing="prefill", reused=0, prompt=6), empty)
    scheduler.prefilled(scheduler.next_prefill())
    assert scheduler.states() == (SlotState(doing="prefill", reused=0, prefilled=4, prompt=6), empty)
    scheduler.prefilled(scheduler.next_prefill())
    first.answer += [7, 8]
    assert scheduler.states() == (SlotState(doing="decode", reused=0, prefilled=6, prompt=6, made=2), empty)

    follow_up = Request(prompt=(*first.prompt, 7, 9), max_tokens=5)
    scheduler.release(first, exact=True)
    assert scheduler.states() == (SlotState(doing="free", reused=7), empty), "the newest token is not in the cache"
    scheduler.submit(follow_up)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    assert scheduler.states() == (SlotState(doing="decode", reused=7, prefilled=1, prompt=8), empty)


def test_chunks_are_large_while_no_answer_is_running() -> None:
    """A large chunk is at least half full; while an answer runs, which would pause for it, chunks are small."""
    scheduler = scheduler_of(2, prefill_chunks=(4, 16))
    first, second, third = (
        Request(prompt=tuple(range(at, at + n)), max_tokens=5) for at, n in ((0, 29), (100, 20), (200, 7))
    )
    scheduler.submit(first)
    scheduler.admit()
    sizes = []
    while step := scheduler.next_prefill():
        sizes.append((step.size, step.stop - step.start))
        scheduler.prefilled(step)
    assert sizes == [(16, 16), (16, 13)]
    scheduler.submit(second)
    scheduler.admit()
    step = scheduler.next_prefill()
    assert (step.size, step.stop - step.start) == (4, 4)
    scheduler.release(first)
    scheduler.prefilled(step)
    assert scheduler.next_prefill().size == 16
    scheduler.release(second)
    scheduler.submit(third)
    scheduler.admit()
    assert scheduler.next_prefill().size == 4


def test_release_works_wherever_the_request_is() -> None:
    scheduler = scheduler_of(1)
    prefilling, waiting = request(10), request()
    scheduler.submit(prefilling)
    scheduler.submit(waiting)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    scheduler.release(waiting)
    scheduler.release(prefilling)
    assert scheduler.next_prefill() is None
    assert scheduler.idle


def test_decode_steps_are_few_while_a_request_waits_or_is_prefilled() -> None:
    """Never more than the most that a request has left to make; the length covers the longest request."""
    scheduler = scheduler_of(2)
    first, second, third = Request(prompt=(1, 2, 3), max_tokens=11), request(10), request()
    scheduler.submit(first)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    step = scheduler.next_decode()
    assert (step.requests, step.steps, step.length) == ((first,), 8, 11)
    assert scheduler.next_decode(most=3).steps == 3
    scheduler.decoded(step)
    assert scheduler.next_decode().steps == 2

    first.scheduled = 1
    scheduler.submit(second)
    scheduler.admit()
    assert scheduler.next_decode().steps == CONTENDED_CHUNK
    while step := scheduler.next_prefill():
        scheduler.prefilled(step)
    assert scheduler.next_decode().steps == 8
    assert scheduler.next_decode().length == 10 + 4
    scheduler.submit(third)
    assert scheduler.next_decode().steps == CONTENDED_CHUNK


def test_the_more_requests_are_prefilled_the_fewer_steps_are_made_in_between() -> None:
    """Eight arrive at once: the first ones do not decode long calls between the prefills of the others."""
    scheduler = scheduler_of(8)
    for _ in range(8):
        scheduler.submit(Request(prompt=(1, 2, 3), max_tokens=50))
    scheduler.admit()
    steps = []
    while step := scheduler.next_prefill():
        scheduler.prefilled(step)
        steps.append(scheduler.next_decode().steps)
    assert steps == [1, 1, 1, 1, 1, 2, 4, 8]


def test_nothing_is_dispatched_for_requests_whose_tokens_are_all_scheduled() -> None:
    """A request keeps its slot until its last tokens are read."""
    scheduler = scheduler_of(1)
    r = Request(prompt=(1,), max_tokens=3)
    scheduler.submit(r)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    scheduler.decoded(scheduler.next_decode())
    assert scheduler.next_decode() is None
    assert scheduler.busy == 1


def test_a_drafting_step_schedules_more_than_it_may_make() -> None:
    """Three rounds of 1 + 7 tokens in a chunk of 8: the next step continues after the tokens made. The slot's record
    includes what a rejected draft may have written after an end token; after a full answer nothing is written."""
    scheduler = scheduler_of(1)
    r = Request(prompt=(1, 2, 3), max_tokens=20)
    scheduler.submit(r)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    step = scheduler.next_decode(3, draft=7)
    assert (step.steps, step.tokens, step.length) == (3, 8, 3 + 9 - 1)
    scheduler.decoded(step)
    assert r.scheduled == 9
    scheduler.unschedule(r, 8 - 4)
    assert r.scheduled == 5
    assert scheduler.slots[0].written >= 3 + 5 - 1
    assert scheduler.next_decode(3).tokens == 3
    r.answer.extend(range(5))
    scheduler.release(r, exact=True)
    assert scheduler.slots[0].tokens == (1, 2, 3, 0, 1, 2, 3)
    assert scheduler.slots[0].written == 3 + 4 + 7
    scheduler.unschedule(r, 3)
    assert r.scheduled == 5


def test_steps_count_in_full_after_drafts_that_made_fewer_tokens() -> None:
    """Cut at the answer's length, they counted too few tokens, and positions beyond the bucket were written."""
    scheduler = scheduler_of(2)
    r, neighbour = Request(prompt=(1, 2, 3), max_tokens=10), Request(prompt=(4, 5), max_tokens=100)
    scheduler.submit(r)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    drafts = scheduler.next_decode(4, draft=7)
    scheduler.decoded(drafts)
    scheduler.submit(neighbour)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    both = scheduler.next_decode(4)
    assert both.requests == (r, neighbour)
    scheduler.decoded(both)
    scheduler.unschedule(r, drafts.tokens - 4)
    made = 1 + 4 + both.steps
    assert r.scheduled == made
    assert scheduler.slots[0].written >= 3 + made - 1
    assert scheduler.next_decode(4).length == 3 + r.max_tokens - 1


def test_a_full_answer_has_no_drafts_after_it() -> None:
    scheduler = scheduler_of(1)
    r = Request(prompt=(1, 2, 3), max_tokens=6)
    scheduler.submit(r)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    step = scheduler.next_decode(3, draft=7)
    assert (step.tokens, step.length) == (5, 3 + 5)
    scheduler.decoded(step)
    r.answer.extend(range(6))
    scheduler.release(r, exact=True)
    assert scheduler.slots[0].written == 3 + 5


def test_a_cancelled_request_has_written_more_than_was_read() -> None:
    """The device still makes all scheduled tokens. What they overwrite in a ring is lost for the next turn."""
    scheduler = scheduler_of(1, positions_before_wrap=0, rollback=7)
    r = Request(prompt=(1, 2, 3), max_tokens=20)
    scheduler.submit(r)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    scheduler.decoded(scheduler.next_decode())
    r.answer.append(0)
    scheduler.release(r)
    assert (scheduler.slots[0].tokens, scheduler.slots[0].written) == ((1, 2, 3), 3 + 8)
    assert scheduler.slots.usable(0, (1, 2, 3, 4)) == 0


def test_a_picture_takes_two_rounds_so_that_an_answer_goes_on_between_them() -> None:
    """The vision tower's call and the one that writes: others' tokens wait for one of them at most."""
    scheduler = scheduler_of(2)
    running = Request(prompt=(1, 2), max_tokens=50)
    scheduler.submit(running)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    grid = Grid(height=1, width=3, tokens=np.full(3, -1, np.int32), pixels=(1,), others={})
    picture = VisionPicture(grid=grid, pixels=np.zeros(1, np.float32))
    place = PlacedPicture(picture=picture, start=2)
    seeing = Request(prompt=(1, 2, *[picture.id] * 3, 5), max_tokens=5, pictures=(place,), client="other")
    scheduler.submit(seeing)
    scheduler.admit()
    rounds = []
    while step := scheduler.next_prefill():
        scheduler.prefilled(step)
        decode = scheduler.next_decode()
        assert running in decode.requests
        scheduler.decoded(decode)
        rounds.append((step.start, step.stop, step.picture is not None, step.sees))
    assert rounds == [(0, 2, False, False), (2, 2, True, True), (2, 5, True, False), (5, 6, False, False)]
