"""Programs that are kept in a bundle: loaded instead of compiled, and what happens where one can't be used."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.fingerprint import Fingerprint
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import LoadedProgramFailed, Programs

X = np.arange(6, dtype=np.float32)


def bundle_in(folder: Path) -> Bundle:
    return Bundle(folder, Fingerprint.of({"model": "a"}))


def doubled(x: jax.Array) -> jax.Array:
    return jnp.sin(x) * 2 + x.sum()


def compiled(bundle: Bundle, **options: Any) -> tuple[Any, list[ProgramReport], int]:
    """A program, its reports, and how often the function was traced for it."""
    traces = []

    def function(x: jax.Array) -> jax.Array:
        traces.append(x)
        return doubled(x)

    reports: list[ProgramReport] = []
    program = Programs(reports.append, bundle=bundle).compile("doubled", function, X, **options)
    return program, reports, len(traces)


def test_the_second_time_nothing_is_traced_or_compiled(tmp_path: Path, compilations: Callable) -> None:
    first, [report], traces = compiled(bundle_in(tmp_path))
    assert (report.source, traces) == ("compiled", 1)
    cost = (report.traced, report.compiling)
    assert min(cost) > 0
    assert sum(cost) == pytest.approx(report.seconds)
    with compilations() as seen:
        again, [report], traces = compiled(bundle_in(tmp_path))
        result = again(X)
    assert (report.name, report.source, traces, seen) == ("doubled", "bundle", 0, [])
    assert (report.traced, report.compiling) == pytest.approx(cost), "what it took is kept with it"
    assert report.saved == pytest.approx(sum(cost))
    assert report.arguments == X.nbytes
    np.testing.assert_array_equal(result, first(X))


def test_what_a_function_takes_from_outside_makes_another_program(tmp_path: Path) -> None:
    compiled(bundle_in(tmp_path), static="steps = 2")
    assert compiled(bundle_in(tmp_path), static="steps = 2")[2] == 0
    assert compiled(bundle_in(tmp_path), static="steps = 3")[2] == 1


FROM_CACHE = """
import sys
import jax, numpy as np
from pathlib import Path
from jax.experimental.compilation_cache import compilation_cache
from hfjax_app.runtime.process import prepare
from tests.runtime.test_bundled_programs import X, bundle_in, doubled
from hfjax_app.runtime.fingerprint import signature_of
from hfjax_app.runtime.bundle import ProgramOrigin, watch_origin
prepare(Path(sys.argv[1]) / "jax")
for _ in range(2):
    jax.clear_caches()
    with watch_origin() as origin:
        made = jax.jit(doubled).lower(X).compile()
assert origin.from_cache == 1
assert bundle_in(Path(sys.argv[1])).save("doubled", signature_of((X,)), made, ProgramOrigin(compiled=1))
"""


def test_a_program_that_fails_when_it_is_first_run_is_dropped_and_compiled(tmp_path: Path) -> None:
    """What comes out of jax's persistent cache serialises and loads, and fails when it runs. The store refuses it; here
    it is put there by force."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run(
        [sys.executable, "-c", FROM_CACHE, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    bundle = bundle_in(tmp_path)
    broken, [report], traces = compiled(bundle)
    assert (report.cached, traces) == (True, 0)
    with pytest.raises(LoadedProgramFailed, match="a program from the bundle can't run and was removed, start again: "):
        broken(X)
    assert bundle.names() == []
    sound, [report], traces = compiled(bundle)
    assert (report.cached, traces) == (False, 1)
    np.testing.assert_allclose(sound(X), np.sin(X) * 2 + X.sum(), rtol=1e-6)
