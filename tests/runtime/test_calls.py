"""Calls side by side: two at once on one CPU device, and one after another inside of such a call."""

import threading

import jax
import pytest

from hfjax_app.runtime.calls import Calls
from hfjax_app.runtime.mesh import mesh_of


@pytest.fixture
def calls() -> Calls:
    return Calls("test-call", mesh_of(jax.devices()[:1]))


def test_two_are_made_at_once(calls: Calls) -> None:
    both = threading.Barrier(2)  # a call that had to wait for the other would stay here
    assert calls.at_once == 2
    assert calls.together(lambda item: (both.wait(10), item * 2)[1], [1, 2]) == [2, 4]
    assert [list(group) for group in calls.groups(range(5))] == [[0, 1], [2, 3], [4]]


def test_inside_of_one_of_two_calls_others_come_one_after_another(calls: Calls) -> None:
    threads: dict[int, set[str]] = {}

    def inner(item: int) -> int:
        threads.setdefault(item // 2, set()).add(threading.current_thread().name)
        return item

    def outer(item: int) -> list[int]:
        return calls.together(inner, [2 * item, 2 * item + 1])

    assert calls.together(outer, [0, 1]) == [[0, 1], [2, 3]]
    assert [len(names) for names in threads.values()] == [1, 1]


def test_inside_of_a_single_call_two_are_made_at_once(calls: Calls) -> None:
    both = threading.Barrier(2)
    assert calls.together(lambda item: calls.together(lambda part: (both.wait(10), part)[1], item), [[5, 6]]) == [
        [5, 6]
    ]


def test_an_error_comes_when_both_have_ended(calls: Calls) -> None:
    ended = []

    def call(item: int) -> None:
        ended.append(item)
        raise ValueError(str(item))

    with pytest.raises(ValueError, match="1"):
        calls.together(call, [1, 2])
    assert sorted(ended) == [1, 2]
    both = threading.Barrier(2)
    assert calls.together(lambda item: both.wait(10) >= 0, [1, 2]) == [True, True]
