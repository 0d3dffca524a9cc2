"""Parallel calls: two at once on one CPU device, and sequential calls inside a parallel one."""

import sys
import threading

import pytest

from hfjax_app.runtime.parallel_calls import Calls


@pytest.fixture
def calls() -> Calls:
    return Calls("test-call", at_once=2)


def test_two_are_made_at_once(calls: Calls) -> None:
    both = threading.Barrier(2)  # a call that ran before the other one would block here
    assert calls.at_once == 2
    assert calls.together(lambda item: (both.wait(60), item * 2)[1], [1, 2]) == [2, 4]
    assert [list(group) for group in calls.groups(range(5))] == [[0, 1], [2, 3], [4]]


def test_calls_inside_a_parallel_call_are_sequential(calls: Calls) -> None:
    threads: dict[int, set[str]] = {}

    def inner(item: int) -> int:
        threads.setdefault(item // 2, set()).add(threading.current_thread().name)
        return item

    def outer(item: int) -> list[int]:
        return calls.together(inner, [2 * item, 2 * item + 1])

    assert calls.together(outer, [0, 1]) == [[0, 1], [2, 3]]
    assert [len(names) for names in threads.values()] == [1, 1]


def test_calls_inside_a_single_call_are_parallel(calls: Calls) -> None:
    both = threading.Barrier(2)
    assert calls.together(lambda item: calls.together(lambda part: (both.wait(60), part)[1], item), [[5, 6]]) == [
        [5, 6]
    ]


def test_an_error_is_raised_when_both_have_ended(calls: Calls) -> None:
    ended = []

    def call(item: int) -> None:
        ended.append(item)
        raise ValueError(str(item))

    with pytest.raises(ValueError, match="1"):
        calls.together(call, [1, 2])
    assert sorted(ended) == [1, 2]
    both = threading.Barrier(2)
    assert calls.together(lambda item: both.wait(60) >= 0, [1, 2]) == [True, True]


def test_each_is_started_in_order_by_a_free_thread(calls: Calls) -> None:
    """The first call takes as long as all the others together: the other thread runs those."""
    begun, threads = [], {}
    others_ended = threading.Event()

    def call(item: int) -> int:
        begun.append(item)
        threads[item] = threading.current_thread().name
        if item == 0:
            assert others_ended.wait(60)
        if item == 4:
            others_ended.set()
        return 2 * item

    assert calls.each(call, range(5)) == [0, 2, 4, 6, 8]
    assert [item for item in begun if item] == [1, 2, 3, 4]
    assert len({threads[item] for item in range(1, 5)}) == 1


def test_a_thread_without_a_next_item_ends(calls: Calls) -> None:
    """Threads switch very often: at the end of a list both request its last item."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(2000):
            assert calls.each(abs, (-1, -2, -3)) == [1, 2, 3]
    finally:
        sys.setswitchinterval(interval)


def test_no_more_calls_are_started_after_an_error(calls: Calls) -> None:
    both = threading.Barrier(2)
    begun = []

    def call(item: int) -> None:
        begun.append(item)
        both.wait(60)
        raise ValueError(str(item))

    with pytest.raises(ValueError, match=r"0|1"):
        calls.each(call, range(9))
    assert sorted(begun) == [0, 1]


def test_each_does_not_wait_for_calls_of_another_caller(calls: Calls) -> None:
    """While the only pool thread runs a call of another caller, this caller runs all its calls itself."""
    pool_is_busy, release = threading.Event(), threading.Event()

    def held(item: int) -> None:
        if threading.current_thread().name.startswith("test-call"):
            pool_is_busy.set()
        assert release.wait(60)

    other = threading.Thread(target=calls.each, args=(held, [1, 2]))
    other.start()
    try:
        assert pool_is_busy.wait(60)
        assert calls.each(lambda item: item + 1, [1, 2, 3]) == [2, 3, 4]
    finally:
        release.set()
        other.join(60)
