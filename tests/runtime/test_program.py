"""Calls of compiled programs on several devices; their first run is tested in `test_bundled_programs.py`."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import jax
import pytest

from hfjax_app.runtime.programs import Program


@pytest.mark.parametrize("devices", [1, 2])
def test_several_devices_get_programs_in_one_order(devices: int) -> None:
    """Two threads that dispatch two programs to two devices in different orders wait for each other for ever."""
    mesh = jax.sharding.AbstractMesh((devices,), ("x",))
    inside = threading.Event()

    def program(call: Callable[[], object]) -> Program:
        compiled: Future = Future()
        compiled.set_result(call)
        return Program(compiled, mesh)

    other = threading.Thread(target=program(inside.set))

    def wait_for_the_other() -> bool:
        other.start()
        return inside.wait(0.2 if devices > 1 else 60)

    assert program(wait_for_the_other)() == (devices == 1)
    other.join(60)
    assert inside.is_set()
