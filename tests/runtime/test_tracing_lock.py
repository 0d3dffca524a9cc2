"""One thread loads and traces at a time; it releases the lock while it waits for the compiler."""

import threading

import jax.numpy as jnp
import numpy as np

from hfjax_app.runtime import tracing
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import Programs


def test_one_model_is_traced_while_another_is_compiled() -> None:
    """The first model's program is not reported, and so not ready, before the second model's program is traced."""
    prepare()
    traced, in_time, order = threading.Event(), [], []

    def wait_for_the_other(report: ProgramReport) -> None:
        in_time.append(traced.wait(60))

    def warm_up(name: str, programs: Programs, began: threading.Event) -> None:
        def function(x: jnp.ndarray) -> jnp.ndarray:
            order.append(f"{name} is traced")
            if name == "second":
                traced.set()
            return x + len(name)

        with tracing.hold():
            began.set()
            with programs.together():
                program = programs.compile(name, function, np.zeros(3, np.float32))
            order.append(f"{name} is compiled")
            assert program(np.zeros(3, np.float32))[0] == len(name)

    threads = []
    for name, programs in (("first", Programs(wait_for_the_other)), ("second", Programs())):
        began = threading.Event()
        threads.append(threading.Thread(target=warm_up, args=(name, programs, began)))
        threads[-1].start()
        assert began.wait(60)
    for thread in threads:
        thread.join(60)
    assert in_time == [True]
    assert order[:2] == ["first is traced", "second is traced"]
    assert sorted(order[2:]) == ["first is compiled", "second is compiled"]


def test_the_holder_may_acquire_the_lock_again_and_other_threads_wait() -> None:
    got = threading.Event()

    def other() -> None:
        with tracing.hold():
            got.set()

    thread = threading.Thread(target=other)
    with tracing.hold():
        thread.start()
        with tracing.hold():
            pass
        assert not got.wait(0.2)
        with tracing.release():
            assert got.wait(60)
    thread.join(60)
    with tracing.release():  # does nothing: this thread does not hold the lock
        pass
