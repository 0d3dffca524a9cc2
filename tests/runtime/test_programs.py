"""Ahead-of-time programs: the ledger, refusal of other shapes, donation, and no compilation when they are called."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import Programs

# 40 GB on a chip of 16 GB; only libtpu's compiler reports that before anything runs.
TOO_LARGE = """
import jax
from hfjax_app.runtime.topology import devices, parse, prepare_process
prepare_process(parse("v5e:1x1"))
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.mesh import mesh_of
from hfjax_app.runtime.programs import Programs
for planned in (True, False):
    programs = Programs(mesh=mesh_of(devices(parse("v5e:1x1"))), planned=planned)
    try:
        programs.compile("big", lambda x: x + 1, jax.ShapeDtypeStruct((10**10,), "float32"))
    except ModelUnavailable as error:
        print(error)
"""

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_each_program_is_reported_as_soon_as_it_is_ready() -> None:
    prepare()
    reports: list[ProgramReport] = []
    programs = Programs(reports.append)
    programs.compile("first", lambda x: x + 1, X)
    assert [report.name for report in reports] == ["first"]
    programs.compile("second", lambda x: x * 2, X)
    assert [report.name for report in reports] == ["first", "second"]
    assert programs.reports == reports
    assert all(report.seconds > 0 for report in reports)


def test_calling_a_program_compiles_nothing(compilations: Callable) -> None:
    prepare()
    with compilations() as seen:
        program = Programs().compile("twice", lambda tree: {"out": tree["in"] * 2}, {"in": X})
        assert len(seen) == 1
        for scale in range(3):
            result = program({"in": X * np.float32(scale)})["out"]
        assert len(seen) == 1
    np.testing.assert_array_equal(result, X * 4)


def test_shapes_are_enough_to_compile() -> None:
    prepare()
    program = Programs().compile("sum", jnp.sum, jax.ShapeDtypeStruct((3, 4), np.float32))
    assert program(X) == X.sum()


@pytest.mark.parametrize("wrong", [X[:2], X.astype(np.int32), X[0]], ids=["shape", "dtype", "rank"])
def test_another_shape_or_dtype_is_an_error(wrong: np.ndarray, compilations: Callable) -> None:
    """Never a silent recompilation during a request."""
    prepare()
    program = Programs().compile("strict", lambda x: x - 1, X)
    with compilations() as seen, pytest.raises(TypeError, match=r"differ|compiled"):
        program(wrong)
    assert not seen


def test_a_donated_buffer_is_used_up() -> None:
    prepare()
    program = Programs().compile("count", lambda state, step: state + step, jnp.asarray(X), X, donate=(0,))
    state = jnp.asarray(X)
    result = program(state, X)
    assert state.is_deleted()
    np.testing.assert_array_equal(result, X * 2)


def test_an_error_in_the_function_is_raised_and_not_reported() -> None:
    prepare()
    programs = Programs()
    with pytest.raises(ZeroDivisionError):
        programs.compile("broken", lambda x: x * (1 // 0), X)
    assert programs.reports == []


def test_programs_compiled_together_are_all_ready_at_the_end_and_reported_in_order() -> None:
    prepare()
    programs = Programs()
    with programs.together():
        made = [programs.compile(f"plus_{n}", lambda x, n=n: x + n, X) for n in range(4)]
        np.testing.assert_array_equal(made[2](X), X + 2)  # a call waits until its program is compiled
    assert [report.name for report in programs.reports] == [f"plus_{n}" for n in range(4)]
    for n, program in enumerate(made):
        np.testing.assert_array_equal(program(X), X + n)
    programs.compile("alone", lambda x: -x, X)
    assert programs.reports[-1].name == "alone"


def test_a_failure_among_programs_compiled_together_is_raised_at_the_end() -> None:
    prepare()
    programs = Programs()
    unknown = jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct(X.shape, X.dtype))

    def compile_three() -> None:
        with programs.together():
            programs.compile("good", lambda x: x + 0.5, X)
            programs.compile("bad", unknown, X)
            programs.compile("late", lambda x: x + 1.5, X)

    with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_target"):
        compile_three()
    assert programs.reports[0].name == "good"
    assert "bad" not in [report.name for report in programs.reports]
    with pytest.raises(ZeroDivisionError), programs.together():
        programs.compile("broken", lambda x: x * (1 // 0), X)
    program = programs.compile("afterwards", lambda x: x * 3, X)
    np.testing.assert_array_equal(program(X), X * 3)


def test_the_name_is_in_the_cache() -> None:
    """Profiles and the cache folder are readable: entries carry the program's name."""
    prepare()
    Programs().compile("a_name_to_find", lambda x: x @ x.T, X)
    folder = Path(jax.config.jax_compilation_cache_dir)
    assert list(folder.glob("*a_name_to_find*-cache"))


def test_a_compiled_program_gets_its_checksum_at_once() -> None:
    """A server is killed more often than it ends, and the next start removes entries without a checksum."""
    prepare()
    folder = Path(jax.config.jax_compilation_cache_dir)
    for left in folder.glob("*a_name_to_seal*"):
        left.unlink()
    programs = Programs()
    programs.compile("a_name_to_seal", lambda x: x @ x.T, X)
    assert not programs.reports[0].cached
    [entry] = folder.glob("*a_name_to_seal*-cache")
    assert entry.with_name(f"{entry.name}.sha256").exists()


@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
def test_a_program_that_the_compiler_refuses_is_a_one_line_error() -> None:
    """Outside of plans it was a traceback, which is of no use to a visitor of the studio."""
    command = [sys.executable, "-c", TOO_LARGE]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    planned, served = result.stdout.splitlines()
    assert planned.startswith("the compiler refuses big: ")
    assert served == f"{planned}; fewer slots, a shorter context, smaller pictures or int8 weights need less memory"
