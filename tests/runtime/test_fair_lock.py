"""A lock that threads get in the order of arrival."""

import threading
import time

from hfjax_app.runtime.fair_lock import FairLock


def test_users_alternate() -> None:
    """Each thread acquires the lock five times in a row; with threading.Lock the first would get all five first. Who
    has the lock waits until the other one has queued for it."""
    lock, order = FairLock(), list[str]()

    def until_queued(count: int) -> None:
        deadline = time.monotonic() + 60
        while len(lock._queue) < count and time.monotonic() < deadline:
            time.sleep(0.001)

    def work(name: str) -> None:
        for _ in range(5):
            with lock:
                order.append(name)
                until_queued(2 if len(order) < 10 else 1)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    with lock:
        for thread in threads:
            thread.start()
        until_queued(3)
    for thread in threads:
        thread.join(60)
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
