"""The fair line: the order of service between clients, capacity, priority, places and what leaves in the middle."""

import queue
import threading

import pytest

from hfjax_app.line import FairLine, Turns
from tests.conftest import HANG_S


def line_of(items: str) -> Turns[str]:
    """A line of items such as "a1": the letter is the client."""
    line: Turns[str] = Turns(lambda item: item[0])
    for item in items.split():
        line.append(item)
    return line


def test_one_client_is_served_in_order() -> None:
    assert line_of("a1 a2 a3") == ["a1", "a2", "a3"]


def test_clients_take_turns() -> None:
    assert line_of("a1 a2 a3 a4 b1 c1 b2") == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_client_with_fifty_holds_up_one_with_one_for_one_turn() -> None:
    line = line_of(" ".join(f"a{number}" for number in range(50)))
    for _ in range(20):
        line.pop(0)
    line.append("b0")
    assert line[:3] == ["a20", "b0", "a21"]


def test_a_client_that_was_served_keeps_no_advantage_and_no_debt() -> None:
    line = line_of("a1 b1 a2")
    line.remove("a1")
    line.remove("b1")
    line.append("b2")  # its turn comes after b1's, with a2
    assert line == ["a2", "b2"]
    line.clear()
    line.append("a9")
    line.append("b9")
    assert line == ["a9", "b9"]


def test_requests_move_up() -> None:
    """Two are served; the third and the fourth know their places, and the fourth moves up when the third leaves."""
    line = FairLine(2)
    first, second, third, fourth = (line.join("") for _ in range(4))
    assert [place.number for place in (first, second, third, fourth)] == [0, 0, 1, 2]
    assert list(first.wait(0.01)) == []
    waiting = fourth.wait(0.01)
    assert next(waiting) == 2
    third.leave()
    assert next(waiting) == 1
    assert next(waiting) == 1, "repeated, so that a client that has gone is noticed"
    first.leave()
    first.leave()  # twice is as once
    assert list(waiting) == []


def test_urgent_ones_go_first_and_keep_their_order() -> None:
    line = FairLine()
    served = line.join()
    places = [line.join(urgent=urgent) for urgent in (False, False, True, True)]
    assert [place.number for place in places] == [3, 4, 1, 2]
    served.leave()
    assert [place.number for place in places] == [2, 3, 0, 1]


def test_threads_alternate() -> None:
    """Each thread takes the line five times in a row; with threading.Lock the first would get all five first."""
    line, order, joined = FairLine(), [], queue.SimpleQueue[str]()

    def work(name: str) -> None:
        place = line.join()  # both wait before the first is served
        joined.put(name)
        for _ in range(5):
            list(place.wait(HANG_S))
            order.append(name)
            after = line.join()
            place.leave()
            place = after
        place.leave()

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    with line.hold():
        for thread in threads:
            thread.start()
            joined.get(timeout=HANG_S)
    for thread in threads:
        thread.join(HANG_S)
    assert order == list("ab" * 5)


def test_an_error_inside_gives_the_place_back() -> None:
    line = FairLine()
    for _ in range(2):
        with pytest.raises(RuntimeError), line.hold():
            raise RuntimeError
    assert line.join().number == 0


def test_no_more_than_the_capacity_at_a_time() -> None:
    line, inside, most = FairLine(2), [], []
    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait(HANG_S)
        with line.hold():
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert len(most) == 6
    assert max(most) <= 2
