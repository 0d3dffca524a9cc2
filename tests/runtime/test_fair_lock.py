"""A lock that is handed over in the order of arrival."""

import threading
import time

from hfjax_app.runtime.fair_lock import FairLock


def test_users_alternate() -> None:
    """Each takes five turns and asks for the next at once; with threading.Lock the first would take all of its own."""
    turns, order = FairLock(), []

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
    turns = FairLock()
    for _ in range(2):
        try:
            with turns:
                raise RuntimeError
        except RuntimeError:
            pass
    with turns:
        pass
