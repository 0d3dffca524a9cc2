"""A lock that threads get in the order of arrival."""

import threading
import time

from hfjax_app.runtime.fair_lock import FairLock


def test_users_alternate() -> None:
    """Each thread acquires the lock five times in a row; with threading.Lock the first would get all five first."""
    lock, order = FairLock(), []

    def work(name: str) -> None:
        for _ in range(5):
            with lock:
                order.append(name)
                time.sleep(0.01)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    with lock:
        for thread in threads:
            thread.start()
        time.sleep(0.05)  # both wait now
    for thread in threads:
        thread.join(5)
    assert order in (list("ab" * 5), list("ba" * 5))


def test_an_error_inside_releases_the_lock() -> None:
    lock = FairLock()
    for _ in range(2):
        try:
            with lock:
                raise RuntimeError
        except RuntimeError:
            pass
    with lock:
        pass
