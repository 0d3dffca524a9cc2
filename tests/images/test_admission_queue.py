"""The admission queue."""

from hfjax_app.images.admission_queue import AdmissionQueue


def test_requests_move_up() -> None:
    """Two are served; the third and the fourth know their places, and the fourth moves up when the third leaves."""
    queue = AdmissionQueue(2)
    first, second, third, fourth = (queue.join() for _ in range(4))
    assert list(queue.wait(first, 0.01)) == list(queue.wait(second, 0.01)) == []
    waiting = queue.wait(fourth, 0.01)
    assert next(waiting) == 2
    assert next(queue.wait(third, 0.01)) == 1
    queue.leave(third)
    assert next(waiting) == 1
    assert next(waiting) == 1, "repeated, so that a client that has gone is noticed"
    queue.leave(first)
    assert list(waiting) == []


def test_clients_take_turns() -> None:
    queue = AdmissionQueue(1)
    first, second, third, other = (queue.join(client) for client in ("a", "a", "a", "b"))
    assert [next(queue.wait(ticket, 0.01), 0) for ticket in (first, second, other, third)] == [0, 1, 2, 3]
    queue.leave(second)
    assert next(queue.wait(other, 0.01)) == 1
