"""Many clients in threads, some of which cancel: nothing leaks, and the others get the tokens they would get alone."""

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hfjax_app.chat import ChatEngine, SamplingParams

CLIENTS = 64
REQUESTS = 4  # of each client, at least
SECONDS = float(os.environ.get("CHURN_SECONDS", "0"))  # `make test-all` goes on for two minutes
LONGEST = 40


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(SECONDS + 260)
def test_clients_come_and_go(engine_of: Callable[[str], ChatEngine]) -> None:
    """64 clients; 30 % of the requests are cancelled at random: in the queue, before the first token, or later."""
    engine = engine_of("gemma3")
    rng = random.Random(1)
    system = [rng.randrange(5, 512) for _ in range(50)]
    prompts = [[*system[: rng.choice((0, 50))], *(rng.randrange(5, 512) for _ in range(n))] for n in range(1, 100, 9)]
    solo = [engine.generate([prompt], SamplingParams(max_tokens=LONGEST, temperature=0.0))[0] for prompt in prompts]
    before, counts, wrong, half_way = engine.stats(), Counter(), [], threading.Event()
    began = time.monotonic()

    def client(number: int) -> None:
        rng = random.Random(number)
        try:
            for made in itertools.count():
                if made >= REQUESTS and time.monotonic() >= began + SECONDS:
                    break
                if made == REQUESTS // 2:
                    half_way.set()
                which, length = rng.randrange(len(prompts)), rng.randrange(1, LONGEST + 1)
                with engine.stream(prompts[which], SamplingParams(max_tokens=length, temperature=0.0)) as stream:
                    if rng.random() < 0.3:
                        if rng.random() < 0.5:
                            time.sleep(rng.random() / 10)
                        else:
                            for _, token in zip(range(rng.randrange(1, length + 1)), stream, strict=False):
                                assert token in solo[which]
                        counts["left"] += 1
                    else:
                        assert list(stream) == solo[which][:length], (which, length)
                        counts["stayed"] += 1
        except BaseException as error:
            wrong.append(error)
            half_way.set()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    assert half_way.wait(240)
    time.sleep(SECONDS / 4)
    warm = resident_bytes()
    for thread in threads:
        thread.join()
    assert wrong == []
    deadline = time.monotonic() + 60
    while (engine.stats().busy or engine.stats().waiting) and time.monotonic() < deadline:
        time.sleep(0.01)
    after = engine.stats()
    assert after.busy == after.waiting == 0
    assert resident_bytes() - warm < 100 * 2**20
    assert counts["stayed"] > CLIENTS
    assert counts["left"] > CLIENTS / 4
    assert after.wasted_tokens > before.wasted_tokens
    assert after.reused_tokens > before.reused_tokens
