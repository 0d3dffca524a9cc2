"""Process-wide settings before jax starts, tested by their effects in new processes."""

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hfjax_app.runtime import compile_cache, process

PROGRAM = """
import json, logging, sys
from pathlib import Path
from hfjax_app.runtime.process import prepare
prepare(Path(sys.argv[1]))
prepare()  # as every backend does: the folder stays
import jax.numpy as jnp, numpy as np
from hfjax_app.runtime.programs import Programs
x = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
programs = Programs()
waves = [programs.compile(name, lambda x: jnp.sin(x) @ jnp.cos(x), x) for name in sys.argv[2:]]
sums = [float(np.asarray(program(x)).sum()) for program in waves]
print(json.dumps({"cached": [report.cached for report in programs.reports], "sums": sums}))
"""

PAGE_FAULTS = """
import resource, sys
from hfjax_app.runtime.process import keep_freed_memory
if sys.argv[1] == "tuned":
    keep_freed_memory()
import jax, jax.numpy as jnp, numpy as np
def temporaries(x, w):  # 64 MiB each: a dot's result is not fused away
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return x.sum()
program = jax.jit(temporaries)
x, w = np.ones((1 << 18, 64), np.float32), np.eye(64, dtype=np.float32)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
calls = []
for _ in range(8):
    before = faults()
    program(x, w).block_until_ready()
    calls.append(faults() - before)
print(sorted(calls)[1])  # a settled call: the heap still grows in the first ones
"""

COLLECTIONS = """
import gc
from hfjax_app.runtime.process import collect_seldom, freeze_objects
def collections(): return [each["collections"] for each in gc.get_stats()]
def make(count): return [[] for _ in range(count)]
walked = [0] * 3
def watch(phase, info):
    if phase == "start":
        walked[info["generation"]] = max(walked[info["generation"]], len(gc.get_objects()))
gc.callbacks.append(watch)
usual, before = gc.get_threshold(), collections()
collect_seldom()
kept = make(500_000)
seldom = sum(collections()) - sum(before)
freeze_objects()
walked[:], before = [0] * 3, collections()
kept += make(20_000)
gc.collect()
often = sum(collections()) - sum(before)
print(seldom, often, walked[2], gc.get_threshold() == usual)
"""


def flip_a_byte(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


# Programs by the damage to their entries.
SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "garbage": lambda content: b"garbage\0" * 999,
    "one_byte_flipped": flip_a_byte,
    "not_sealed": lambda content: content,
}


def run_python(script: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script with this Python and the app importable; returns its output after a check for success."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("JAX_COMPILATION_CACHE_DIR")
    command = [*prefix, sys.executable, "-c", script, *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result


def run_program(folder: Path, prefix: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Compile and run PROGRAM with a cache folder, once for each kind of damage.

    Returns whether the cache had all programs or none, and the contents of stderr.
    """
    result = run_python(PROGRAM, folder, *SPOILED, prefix=prefix)
    report = json.loads(result.stdout)
    assert report["sums"] == [pytest.approx(101264.66, rel=1e-4)] * len(SPOILED)
    [cached] = set(report["cached"])
    return cached, result.stderr


@pytest.mark.skipif(not importlib.util.find_spec("libtpu") or process.has_tpu(), reason="needs libtpu and no TPU")
def test_a_libtpu_without_a_tpu_prints_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As after `make test`, which installs it for plans: jax by itself tries it and prints its errors."""
    monkeypatch.delenv("JAX_PLATFORMS")
    _, stderr = run_program(tmp_path)
    assert stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is tuned only on Linux")
def test_the_allocator_settings_reduce_page_faults() -> None:
    default = int(run_python(PAGE_FAULTS, "default").stdout)
    tuned = int(run_python(PAGE_FAULTS, "tuned").stdout)
    assert default > 1_000, "the program has no large temporaries, so this test measures nothing"
    assert tuned < default / 10


def test_objects_that_stay_are_not_collected_repeatedly() -> None:
    """Seldom during the start, and never when all is warm; new objects are collected as often as by default."""
    seldom, often, walked, as_usual = run_python(COLLECTIONS).stdout.split()
    assert int(seldom) <= 12, "500,000 objects, of 50,000 a time"
    assert int(often) >= 20, "20,000 objects, of 700 a time"
    assert int(walked) < 100_000
    assert as_usual == "True"


@pytest.fixture(scope="module")
def warm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache") / "made" / "by" / "prepare"
    cached, stderr = run_program(folder)
    assert not cached
    assert stderr == ""
    return folder


@pytest.fixture
def folder(warm_folder: Path, tmp_path: Path) -> Path:
    """A copy of a filled cache, which a test may damage."""
    return Path(shutil.copytree(warm_folder, tmp_path / "cache"))


@pytest.mark.parametrize(
    ("platforms", "tpu", "kept"),
    [("cpu", False, False), ("cpu", True, False), ("tpu", True, False), ("cuda", False, True)],
)
def test_only_caches_of_gpu_kernels_make_the_folder_part_of_a_key(
    platforms: str, tpu: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a TPU they did too, so the programs of a cache from a bucket were compiled again in another folder."""
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(process, "has_tpu", lambda: tpu)
    assert process._has_gpu_kernels() == kept


def test_programs_are_found_in_a_copy_of_the_cache(folder: Path) -> None:
    assert run_program(folder) == (True, "")


def test_damaged_entries_are_compiled_again_once_without_a_warning(folder: Path) -> None:
    """jax by itself warns about a damaged entry at every start and never replaces it, so every start was slow. Here the
    next process finds all of them in the same folder."""
    for name, spoil in SPOILED.items():
        [entry] = (file for file in folder.iterdir() if f"_{name}-" in file.name and file.suffix != ".sha256")
        entry.write_bytes(spoil(entry.read_bytes()))
    for seal in folder.glob("*_not_sealed-*.sha256"):  # as after a process that was killed while it wrote
        seal.unlink()
    assert run_program(folder) == (False, "")
    assert run_program(folder) == (True, "")


def test_a_folder_that_can_not_be_made_gives_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    cached, stderr = run_program(file / "cache")
    assert not cached
    assert stderr.count("\n") == 1
    assert str(file) in stderr


def test_a_read_only_folder_is_read_and_gives_one_line(folder: Path) -> None:
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:  # root can write everywhere unless it drops that capability
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv (util-linux) is needed to give up root's right to write everywhere")
        prefix = ("setpriv", "--bounding-set=-dac_override")
    folder.chmod(0o555)
    try:
        cached, stderr = run_program(folder, prefix)
    finally:
        folder.chmod(0o755)
    assert cached
    assert stderr.count("\n") == 1
    assert str(folder) in stderr


def folder_in_use(calls: str, **variables: object) -> subprocess.CompletedProcess[str]:
    """The cache folder that jax has after these calls, with these variables."""
    script = f"from hfjax_app.runtime.process import prepare\n{calls}\n"
    script += "import jax\nprint(jax.config.jax_compilation_cache_dir)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("JAX_COMPILATION_CACHE_DIR")
    environment |= {name: str(value) for name, value in variables.items()}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)


def test_without_any_setting_it_is_the_user_s_cache_folder(tmp_path: Path) -> None:
    used = Path(folder_in_use("prepare()", XDG_CACHE_HOME=tmp_path, JAX_COMPILATION_CACHE_DIR="").stdout.strip())
    assert used.parent == tmp_path / "hfjax_app"


def test_entries_of_other_programs_in_jax_s_folder_stay(tmp_path: Path) -> None:
    """Every start removed their entries, which have no checksums, and failed at a folder with the name of an entry."""
    theirs = tmp_path / f"jit_train-{'0' * 64}-cache"
    theirs.write_text("compiled")
    (tmp_path / "my-cache").mkdir()
    used = folder_in_use("prepare()\nprepare()", JAX_COMPILATION_CACHE_DIR=tmp_path)
    assert used.stdout.strip() == str(tmp_path / "hfjax_app"), used.stderr
    assert theirs.exists()


def test_a_given_folder_is_used_unchanged(tmp_path: Path) -> None:
    """Also if it is jax's; later calls keep it."""
    calls = f"from pathlib import Path\nprepare(Path({str(tmp_path)!r}))\nprepare()"
    used = folder_in_use(calls, JAX_COMPILATION_CACHE_DIR=tmp_path)
    assert used.stdout.strip() == str(tmp_path), used.stderr


def test_an_earlier_compilation_does_not_fix_the_folder(tmp_path: Path) -> None:
    """jax reads its folder once, at the first compilation; later programs went there too, and got no checksums."""
    calls = "import jax\njax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)\n"
    calls += "jax.jit(lambda x: x + 1)(1.0)\nprepare()\njax.jit(lambda x: x + 2)(1.0)"
    used = folder_in_use(calls, JAX_COMPILATION_CACHE_DIR=tmp_path)
    assert used.stdout.strip() == str(tmp_path / "hfjax_app"), used.stderr
    assert len(list(tmp_path.glob("*-cache"))) == 1
    assert len(list((tmp_path / "hfjax_app").glob("*-cache"))) == 1
    assert len(list((tmp_path / "hfjax_app").glob("*-cache.sha256"))) == 1


def test_only_entries_are_removed_and_others_stay(tmp_path: Path) -> None:
    """A user's files can have similar names, and a folder with an entry's name ended the start with a traceback."""
    unsealed = tmp_path / f"jit_f-{'0' * 64}-cache"
    unsealed.write_text("half of it")
    folder = tmp_path / f"jit_g-{'0' * 64}-cache"
    folder.mkdir()
    mine = tmp_path / "pip-cache"
    mine.write_text("mine")
    assert compile_cache.open_folder(tmp_path)
    assert not unsealed.exists()
    assert folder.exists()
    assert mine.exists()
    unsealed.write_text("whole")
    compile_cache.seal(tmp_path)
    assert compile_cache.open_folder(tmp_path)
    assert unsealed.exists()


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    """A second server on a machine removed what the first had compiled and not sealed yet."""
    assert compile_cache.open_folder(tmp_path)
    unsealed = tmp_path / f"jit_f-{'0' * 64}-cache"
    unsealed.write_text("half of it")
    with (tmp_path / ".users").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert compile_cache.open_folder(tmp_path)
        assert unsealed.exists()
    assert compile_cache.open_folder(tmp_path)
    assert not unsealed.exists(), "the other one has ended"


PREPARED = """
import sys
from pathlib import Path
from hfjax_app.errors import HfjaxError
from hfjax_app.runtime import process
process.has_tpu = lambda: sys.argv[2] == "chips"
try:
    process.prepare(Path(sys.argv[1]))
except HfjaxError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("platforms", "chips", "said"),
    [
        ("", "chips", "this machine has TPU chips and jax finds none: another process may hold them"),
        ("cpu", "chips", ""),
        (
            "cuda",
            "none",
            "JAX_PLATFORMS = 'cuda': jax has no such devices without its plugin: pip install 'jax[cuda13]==",
        ),
        ("abacus", "none", "JAX_PLATFORMS = 'abacus': jax has no such devices: "),
    ],
)
def test_devices_that_jax_can_t_use_are_told(tmp_path: Path, platforms: str, chips: str, said: str) -> None:
    """jax turned to the CPU without a word where another process held the TPU."""
    library = tmp_path / "libtpu"  # a library that finds no chip
    library.mkdir()
    (library / "__init__.py").write_text(
        "def configure_library_path(): pass\ndef get_library_path(): return '/nowhere/libtpu.so'\n"
    )
    names = ("JAX_PLATFORMS", "TPU_LIBRARY_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"PYTHONPATH": f"{Path.cwd()}{os.pathsep}{tmp_path}", "TPU_SKIP_MDS_QUERY": "1"}
    environment |= {"JAX_PLATFORMS": platforms} if platforms else {}
    command = [sys.executable, "-c", PREPARED, str(tmp_path / "programs"), chips]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=True)
    assert done.stdout.startswith(said)
    assert done.stdout.count("\n") <= 1
    assert bool(said) == bool(done.stdout)


def test_the_process_that_holds_the_chips_is_named(tmp_path: Path) -> None:
    """/proc as Linux has it, with one process that holds a chip and one whose files are another user's."""
    for number, name, target in ((7, "python3", "/dev/null"), (8, "jupyter", "/dev/vfio/1"), (9, "x", "/dev/accel0")):
        (tmp_path / str(number) / "fd").mkdir(parents=True)
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
        (tmp_path / str(number) / "fd" / "3").symlink_to(target)
    (tmp_path / "9" / "fd" / "3").unlink()
    (tmp_path / "9" / "fd" / "3").write_text("")  # no link: it can't be read
    assert process._held_by(tmp_path) == "process 8 (jupyter) holds them: end it first"
    (tmp_path / "8" / "fd" / "3").unlink()
    assert process._held_by(tmp_path) == ""


def test_a_user_without_a_home_has_a_folder_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with another user's number: the start ended with a traceback."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert f"hfjax-{os.getuid()}" in process.default_cache_folder().parts
