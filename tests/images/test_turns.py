"""Two users alternate, and a line moves up."""

import threading
import time

from hfjax_app.images.turns import Line, Turns


def test_users_alternate() -> None:
    """Each takes five turns and asks for the next at once; with threading.Lock the first would take all of its own."""
    turns, order = Turns(), []

    def work(name: str) -> None:
        for _ in range(5):
            with turns:
                order.append(name)
                time.sleep(0.01)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    with turns:
        for thread in threads:
            thread.start()
        time.sleep(0.05)  # both are in line now
    for thread in threads:
        thread.join(5)
    assert order in (list("ab" * 5), list("ba" * 5))


def test_an_error_inside_hands_the_turn_on() -> None:
    turns = Turns()
    for _ in range(2):
        try:
            with turns:
                raise RuntimeError
        except RuntimeError:
            pass
    with turns:
        pass


def test_a_line_moves_up() -> None:
    """Two are served; the third and the fourth know their places, and the fourth moves up when the third gives up."""
    line = Line(2)
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
