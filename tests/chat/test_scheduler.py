"""The scheduler alone: first come, first served, chunk by chunk."""

from hfjax_app.chat.scheduler import Request, Scheduler


def request(length: int = 3) -> Request:
    return Request(prompt=tuple(range(length)), max_tokens=5)


def test_slots_go_to_those_who_waited_longest() -> None:
    scheduler = Scheduler(slots=2, prefill_chunk=4)
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


def test_a_long_prompt_is_fed_in_chunks_and_decodes_only_afterwards() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=4)
    r = request(10)
    scheduler.submit(r)
    scheduler.admit()
    chunks = []
    while step := scheduler.next_prefill():
        assert scheduler.decoding() == []
        chunks.append((step.start, step.stop, step.is_last))
        scheduler.prefilled(step)
    assert chunks == [(0, 4, False), (4, 8, False), (8, 10, True)]
    assert scheduler.decoding() == [r]


def test_release_works_wherever_the_request_is() -> None:
    scheduler = Scheduler(slots=1, prefill_chunk=4)
    prefilling, waiting = request(10), request()
    scheduler.submit(prefilling)
    scheduler.submit(waiting)
    scheduler.admit()
    scheduler.prefilled(scheduler.next_prefill())
    scheduler.release(waiting)
    scheduler.release(prefilling)
    assert scheduler.next_prefill() is None
    assert scheduler.idle
