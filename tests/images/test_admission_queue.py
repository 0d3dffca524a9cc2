"""A line moves up."""

from hfjax_app.images.admission_queue import AdmissionQueue


def test_a_line_moves_up() -> None:
    """Two are served; the third and the fourth know their places, and the fourth moves up when the third gives up."""
    line = AdmissionQueue(2)
    first, second, third, fourth = (line.join() for _ in range(4))
    assert list(line.wait(first, 0.01)) == list(line.wait(second, 0.01)) == []
    waiting = line.wait(fourth, 0.01)
    assert next(waiting) == 2
    assert next(line.wait(third, 0.01)) == 1
    line.leave(third)
    assert next(waiting) == 1
    assert next(waiting) == 1, "said again, so that one who has gone can be told apart"
    line.leave(first)
    assert list(waiting) == []
