"""Bundles: programs that another process compiled, whatever can be wrong with their files, and what is removed."""

import functools
import hashlib
import importlib.util
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from hfjax_app.runtime.bundle import Bundle, ProgramOrigin, prune, watch_origin
from hfjax_app.runtime.fingerprint import Fingerprint, signature_of
from hfjax_app.runtime.seams.jax import ADMITTED

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

PARTS = {"versions": {"jax": "0.10.2"}, "facts": {"model": "a"}}

# A chat model's kinds of pytrees: a dict of weights, a NamedTuple that is donated, None, and a tuple of both back.
SHARED = """
import json, os, sys
from pathlib import Path
topology, root, parts = sys.argv[1:]
if topology.startswith("v5e"):
    from hfjax_app.runtime.topology import devices, parse, prepare_process
    prepare_process(parse(topology))
    chips = devices(parse(topology))
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from hfjax_app.chat.sampling.logprobs import Logprobs
from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.fingerprint import Fingerprint, signature_of
from hfjax_app.runtime.bundle import watch_origin
if not topology.startswith("v5e"):
    chips = jax.devices()
events = []
watched = ("jaxpr_trace", "jaxpr_to_mlir", "backend_compile", "compile_requests")
def listen(event, *_, **__):
    events.extend(word for word in watched if word in event)
jax.monitoring.register_event_duration_secs_listener(listen)
jax.monitoring.register_event_listener(listen)
mesh = Mesh(np.array(chips), ("model",))  # not runtime.mesh, which imports torch for seconds
several = len(chips) > 1 or topology.startswith("v5e")
W = np.arange(4096, dtype=np.float32).reshape(64, 64) / 4096
def shape(sharding):
    return jax.ShapeDtypeStruct(W.shape, W.dtype, sharding=sharding if several else None)
halves, whole = NamedSharding(mesh, PartitionSpec("model")), NamedSharding(mesh, PartitionSpec())
def narrow(sharding):
    return shape(sharding).update(dtype=jnp.bfloat16)
args = {"w": [shape(whole), narrow(whole)], "none": None}, Logprobs(shape(halves), shape(whole), shape(whole))
results = {"state": Logprobs(halves, whole, whole), "sums": (whole, None)} if several else None
def program(weights, state):
    step = jnp.sin(state[0]) @ weights["w"][0] + weights["w"][1].astype(jnp.float32)
    return {"state": Logprobs(step, state[1] + 1, jnp.sort(state[2])), "sums": (step.sum(), None)}
signature = signature_of(args, (1,), results)
bundle = Bundle(Path(root), Fingerprint(json.loads(parts)))
def compiled_and_saved():
    lowered = jax.jit(program, donate_argnums=1, **({"out_shardings": results} if several else {})).lower(*args)
    with watch_origin() as origin:
        compiled = lowered.compile()
    return compiled, bundle.save("step", signature, compiled, origin)
def results_of(program):
    place = lambda array, sharding: jax.device_put(array, sharding) if several else jax.device_put(array)
    state = Logprobs(place(W, halves), place(W[::-1], whole), place(W.T, whole))
    made = program({"w": [place(W, whole), place(W.astype(jnp.bfloat16), whole)], "none": None}, state)
    return made, [leaf.is_deleted() for leaf in state]
def told(program):
    made, deleted = results_of(program)
    sums = [float(np.asarray(leaf, np.float64).sum()) for leaf in jax.tree.leaves(made)]
    kinds = [type(made["state"]).__name__, str(made["state"][0].sharding.spec) if several else ""]
    return {"sums": sums, "kinds": kinds, "deleted": deleted}
"""

MAKE = (
    SHARED
    + """
from hfjax_app.runtime.bundle import _globals_of
compiled, saved = compiled_and_saved()
classes = sorted(_globals_of(bundle._read_program("step")[1])) if saved else []
print(json.dumps({"saved": saved, "reasons": bundle.reasons, "signature": signature, "header": bundle.header("step"),
    "classes": classes,
    "told": None if topology.startswith("v5e") else told(compiled)}))
"""
)

USE = (
    SHARED
    + """
del events[:]
loaded = bundle.load("step", signature)
assert loaded is not None, bundle.reasons
answer = told(loaded)
seen = list(events)
jax.jit(lambda x: x * 4.75 + 2)(1.0)
print(json.dumps({"told": answer, "events": seen, "counts": sorted({*events}), "names": bundle.names()}))
"""
)

# Children write a real program over and over, and die in the middle; then it is loaded and run.
KILLED = (
    SHARED
    + """
import signal, time, warnings
from hfjax_app.runtime.bundle import header_and_payload
warnings.simplefilter("ignore")  # jax's about fork: the children use none of it
compiled, saved = compiled_and_saved()
assert saved, bundle.reasons
content = bundle.header("step"), header_and_payload(compiled)[1]
for kill in range(20):
    child = os.fork()
    if child == 0:
        while True:
            bundle._write(bundle.folder / "step.program", *content)
    time.sleep(0.003 + kill % 7 * 0.0007)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert bundle.header("step") is not None, bundle.reasons
loaded = bundle.load("step", signature)
assert loaded is not None, bundle.reasons
print(json.dumps({"told": told(loaded), "names": bundle.names()}))
"""
)


def run(script: str, root: Path, topology: str = "cpu:1", **environment: str) -> dict[str, Any]:
    """What a script says in a process of its own, without jax's cache unless it is asked for."""
    flags = f"--xla_force_host_platform_device_count={topology[4:]}" if topology.startswith("cpu:") else ""
    environment = {"JAX_ENABLE_COMPILATION_CACHE": "false", "XLA_FLAGS": flags} | environment
    result = subprocess.run(
        [sys.executable, "-c", script, topology, str(root), json.dumps(PARTS)],
        env={**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def made_for(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, Any]]]:
    """By a topology: a folder with a bundle of one program, and what the process that made it says."""

    @functools.cache
    def make(topology: str) -> tuple[Path, dict[str, Any]]:
        root = tmp_path_factory.mktemp("made") / "bundles"
        said = run(MAKE, root, topology)
        assert said["saved"], said
        return root, said

    return make


@pytest.fixture(scope="module")
def made(made_for: Callable[[str], tuple[Path, dict[str, Any]]]) -> tuple[Path, dict[str, Any]]:
    return made_for("cpu:1")


@pytest.fixture
def copy(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> tuple[Bundle, str]:
    """A bundle that a test may damage, and the signature of its program."""
    shutil.copytree(made[0], tmp_path / "bundles")
    return Bundle(tmp_path / "bundles", Fingerprint(PARTS)), made[1]["signature"]


def test_another_process_traces_and_compiles_nothing(made: tuple[Path, dict[str, Any]]) -> None:
    root, before = made
    said = run(USE, root)
    assert said["events"] == []
    assert {"jaxpr_trace", "jaxpr_to_mlir", "backend_compile"} <= {*said["counts"]}, "the counter must be able to count"
    assert said["told"] == before["told"]
    assert said["told"]["deleted"] == [True, True, True]
    assert said["told"]["kinds"][0] == "Logprobs"
    assert said["names"] == ["step"]


def test_eight_devices_share_a_program_of_another_process(made_for: Callable) -> None:
    root, before = made_for("cpu:8")
    assert before["header"]["devices"] == list(range(8))
    said = run(USE, root, "cpu:8")
    assert said["events"] == []
    assert said["told"] == before["told"]
    assert said["told"]["deleted"] == [True, True, True]
    bundle = Bundle(root, Fingerprint(PARTS))  # XLA would end a process with fewer devices
    assert bundle.load("step", before["signature"]) is None
    assert bundle.reasons["step"] == "it was made for cpu [0, 1, 2, 3, 4, 5, 6, 7], here are 1 of cpu"


@needs_libtpu
@pytest.mark.parametrize("topology", ["v5e:1x1", "v5e:2x2"])
def test_a_program_for_a_tpu_that_is_not_here_is_kept(topology: str, made_for: Callable) -> None:
    """It can't be loaded here; what could be on the chip is not tested."""
    root, said = made_for(topology)
    header = said["header"]
    assert (header["platform"], header["kind"]) == ("tpu", "TPU v5 lite")
    assert header["devices"] == list(range(1 if topology == "v5e:1x1" else 4))
    assert header["bytes"] > 10_000
    state = "hfjax_app.chat.sampling.logprobs:Logprobs"
    assert header["out_tree"] == {"dict": [["state", {state: ["*"] * 3}], ["sums", {"tuple": ["*", None]}]]}
    bundle = Bundle(root, Fingerprint(PARTS))
    assert bundle.load("step", said["signature"]) is None
    assert bundle.reasons["step"].startswith("it was made for TPU v5 lite [0")


def test_no_class_is_admitted_that_payloads_do_not_need(made_for: Callable) -> None:
    needed = {tuple(each) for topology in ("cpu:1", "cpu:8") for each in made_for(topology)[1]["classes"]}
    assert needed == ADMITTED


def test_a_program_out_of_jax_s_cache_is_not_kept(tmp_path: Path) -> None:
    """It serialised and loaded, and died when it was first run: "Function ... not found"."""
    cache = {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    compiled = run(MAKE, tmp_path / "first", **cache)
    assert compiled["saved"], compiled
    read = run(MAKE, tmp_path / "second", **cache)
    assert not read["saved"]
    assert "jax's cache" in read["reasons"]["step"]
    assert not (tmp_path / "second").exists()
    assert read["told"] == compiled["told"]
    assert run(MAKE, tmp_path / "second")["saved"]  # without that cache
    assert run(USE, tmp_path / "second", **cache)["told"] == compiled["told"]


def test_what_was_not_compiled_in_the_watched_block_is_not_kept(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, Fingerprint(PARTS))
    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
    with watch_origin() as origin:
        pass
    assert not origin.is_here
    assert not bundle.save("early", signature_of((1.0,)), compiled, origin)
    assert "not compiled here" in bundle.reasons["early"]


def with_payload(path: Path, payload: bytes) -> None:
    """Write a file with another payload and the checksum that fits."""
    line, _, rest = path.read_bytes().partition(b"\n")
    kind, length, _, _ = line.split()
    rest = rest[: int(length)] + payload
    checksum = hashlib.sha256(rest).hexdigest().encode()
    path.write_bytes(b"%s %s %d %s\n" % (kind, length, len(payload), checksum) + rest)


def damage(how: str, path: Path) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    match how:
        case "flipped":
            path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        case "flipped header":
            path.write_bytes(content.replace(b'"devices": [0]', b'"devices": [1]', 1))
        case "cut":
            path.write_bytes(content[:middle])
        case "empty":
            path.write_bytes(b"")
        case "format":
            path.write_bytes(content.replace(b"hfjax-program-1", b"hfjax-program-0", 1))
        case "gone":
            path.unlink()
        case "link":
            path.rename(path.with_name("other"))
            path.symlink_to("other")
        case "writable":
            path.chmod(0o666)
        case "not a pickle":
            with_payload(path, b"machine code")


DAMAGES = {
    "flipped": "its file is damaged: the checksum is wrong",
    "flipped header": "its file is damaged: the checksum is wrong",
    "cut": "its file is damaged: ",
    "empty": "its file is damaged: it does not begin as it should",
    "format": "its file has the format hfjax-program-0, this app reads hfjax-program-1",
    "gone": "the bundle has no such program",
    "link": "it can't be loaded: OSError: ",
    "writable": "its file can be written by other users (mode 666)",
    "not a pickle": "it can't be loaded: UnpicklingError: ",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_program_is_none_and_says_why(how: str, copy: tuple[Bundle, str]) -> None:
    bundle, signature = copy
    assert bundle.load("step", signature) is not None
    damage(how, bundle.folder / "step.program")
    assert bundle.load("step", signature) is None
    assert bundle.reasons["step"].startswith(DAMAGES[how])
    assert "\n" not in bundle.reasons["step"]


def test_a_program_that_is_dropped_is_gone(copy: tuple[Bundle, str]) -> None:
    bundle, signature = copy
    for name in ("step", "step", "../step", "unknown"):
        bundle.drop(name)
    assert bundle.names() == []
    assert bundle.load("step", signature) is None


def test_other_arguments_are_another_program(copy: tuple[Bundle, str]) -> None:
    bundle, _ = copy
    assert bundle.load("step", signature_of((np.ones(3),))) is None
    assert bundle.reasons["step"] == "it was made for other arguments, donation or shardings"


def test_a_file_under_another_name_is_none(copy: tuple[Bundle, str]) -> None:
    bundle, signature = copy
    shutil.copy(bundle.folder / "step.program", bundle.folder / "leap.program")
    assert bundle.load("leap", signature) is None
    assert bundle.reasons["leap"] == "its file was made under another name or for another bundle"


@pytest.mark.parametrize("name", ["", "../step", "a/b", ".hidden", "x" * 121])
def test_only_plain_names_are_files(name: str, copy: tuple[Bundle, str]) -> None:
    bundle, signature = copy
    assert bundle.load(name, signature) is None
    assert "no name for a file" in bundle.reasons[name]


@pytest.mark.parametrize("bundle_of", ["jax", "model"])
def test_a_bundle_of_other_versions_is_none_and_is_compared(bundle_of: str, copy: tuple[Bundle, str]) -> None:
    bundle, signature = copy
    parts = json.loads(json.dumps(PARTS))
    if bundle_of == "jax":
        parts["versions"]["jax"] = "0.10.3"
        expected = "the nearest bundle was made by jax 0.10.2, this is 0.10.3"
    else:
        parts["facts"]["model"] = "b"
        expected = "the nearest bundle was made with model = a, this has b"
    other = Bundle(bundle.folder.parent, Fingerprint(parts))
    assert other.load("step", signature) is None
    assert other.reasons["step"] == expected
    shutil.copytree(bundle.folder, other.folder)  # one that is moved by hand
    assert Bundle(bundle.folder.parent, Fingerprint(parts)).load("step", signature) is None
    nothing = Bundle(bundle.folder / "nowhere", Fingerprint(parts))
    assert nothing.load("step", signature) is None
    assert nothing.reasons["step"] == "there are no bundles yet"


class Command:
    """What a pickle does that jax's own unpickler would run."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("where", ["alone", "inside"])
def test_a_payload_runs_nothing_of_its_own(where: str, copy: tuple[Bundle, str], tmp_path: Path) -> None:
    """Its checksum is right."""
    bundle, signature = copy
    touched = tmp_path / "touched"
    pickle.loads(pickle.dumps(Command(touched)))
    assert touched.exists()
    touched.unlink()
    foreign = Command(touched)
    with_payload(bundle.folder / "step.program", pickle.dumps(foreign if where == "alone" else (np.ones(3), foreign)))
    assert bundle.load("step", signature) is None
    assert bundle.reasons["step"] == "its payload names posix.system, which is not admitted"
    assert not touched.exists()


def test_pytrees_name_only_our_named_tuples(copy: tuple[Bundle, str]) -> None:
    bundle, signature = copy
    header = bundle.header("step")
    assert header is not None
    payload = bundle._read_program("step")[1]
    for node in ("os:system", "hfjax_app.errors:HfjaxError", "hfjax_app.runtime.bundle:os"):
        bundle._write(bundle.folder / "step.program", header | {"out_tree": {node: ["*"]}}, payload)
        assert bundle.load("step", signature) is None
        assert bundle.reasons["step"] == f"its pytrees have a {node}, which is no NamedTuple of this app"


def test_what_jax_can_not_serialise_is_not_kept(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, Fingerprint(PARTS))
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    compiled = jax.jit(lambda x: jax.pure_callback(lambda x: x, shape, x)).lower(shape).compile()
    assert not bundle.save("calls_back", signature_of((shape,)), compiled, ProgramOrigin(compiled=1))
    assert bundle.reasons["calls_back"].startswith("it can't be kept: ")
    assert bundle.names() == []


def test_a_class_that_is_not_admitted_is_told_when_it_is_saved(tmp_path: Path) -> None:
    """Otherwise every start would save it again, and none could load it."""
    bundle = Bundle(tmp_path, Fingerprint(PARTS))
    key = jax.eval_shape(lambda: jax.random.key(0))
    compiled = jax.jit(lambda key: jax.random.fold_in(key, 1)).lower(key).compile()
    assert not bundle.save("keys", signature_of((key,)), compiled, ProgramOrigin(compiled=1))
    assert "jax._src.random" in bundle.reasons["keys"]


def test_processes_killed_while_they_save_leave_a_usable_folder(tmp_path: Path) -> None:
    said = run(KILLED, tmp_path)
    assert said["names"] == ["step"]
    assert run(USE, tmp_path)["told"] == said["told"]
    bundle = Bundle(tmp_path, Fingerprint(PARTS))
    for left in bundle.folder.glob(".*.unfinished"):
        os.utime(left, (0, 0))
    prune(tmp_path, max_age_s=3600, max_bytes=1 << 30)
    assert list(bundle.folder.glob(".*")) == []
    assert bundle.names() == ["step"]


def test_two_processes_that_save_at_once_both_succeed(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda _: run(MAKE, tmp_path), range(2)))
    assert all(each["saved"] for each in said)
    bundle = Bundle(tmp_path, Fingerprint(PARTS))
    assert bundle.load("step", said[0]["signature"]) is not None
    assert sorted(path.name for path in bundle.folder.iterdir()) == ["fingerprint", "step.program"]


def test_the_folder_is_the_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        bundle = Bundle(tmp_path / "root", Fingerprint(PARTS))
        assert bundle.keep_facts({"cache": [4, 512]})
    finally:
        os.umask(before)
    assert stat.S_IMODE(bundle.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in bundle.folder.iterdir()} == {0o600}
    assert bundle.facts == {"cache": [4, 512]}


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_is_refused(mode: int, copy: tuple[Bundle, str]) -> None:
    bundle, signature = copy
    bundle.folder.chmod(mode)
    assert bundle.load("step", signature) is None
    assert bundle.reasons["step"] == f"{bundle.folder} can be written by other users (mode {mode:o})"
    assert not bundle.keep_facts({})


def test_another_user_s_folder_is_refused(copy: tuple[Bundle, str], monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, signature = copy
    owner = bundle.folder.stat().st_uid
    if owner == 0:
        shutil.chown(bundle.folder, 12_345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert bundle.load("step", signature) is None
    assert bundle.reasons["step"] == (f"{bundle.folder} belongs to another user, who could have put any code there")


def test_a_link_instead_of_the_folder_is_refused(copy: tuple[Bundle, str]) -> None:
    bundle, signature = copy
    bundle.folder.rename(bundle.folder.with_name("elsewhere"))
    bundle.folder.symlink_to("elsewhere")
    assert bundle.load("step", signature) is None
    assert bundle.reasons["step"] == f"{bundle.folder} is no folder"


def test_facts_are_json_and_none_where_they_are_damaged(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, Fingerprint(PARTS))
    assert bundle.facts == {}
    assert bundle.keep_facts({"layout": {"k": [1, 2]}, "seconds": 1.5})
    assert Bundle(tmp_path, Fingerprint(PARTS)).facts == {"layout": {"k": [1, 2]}, "seconds": 1.5}
    with pytest.raises(TypeError):
        bundle.keep_facts({"dtype": np.float32})
    path = bundle.folder / "facts"
    path.write_bytes(path.read_bytes().replace(b"1.5", b"2.5"))
    assert bundle.facts == {}


def bundles(root: Path, *ages: float) -> list[str]:
    """Bundles of 1,000 bytes and a little more, last used so many seconds ago."""
    digests = []
    for number, age in enumerate(ages):
        bundle = Bundle(root, Fingerprint({"facts": number}))
        assert bundle.keep_facts({"some": "x" * 1000})
        for path in bundle.folder.iterdir():
            os.utime(path, (time.time() - age,) * 2)
        digests.append(bundle.fingerprint.digest)
    return digests


def test_what_was_not_used_for_long_is_removed(tmp_path: Path) -> None:
    new, old, kept = bundles(tmp_path, 10, 1000, 1000)
    (tmp_path / "mine").mkdir()
    assert prune(tmp_path, max_age_s=500, max_bytes=1 << 30, keep=[kept]) == [old]
    assert {path.name for path in tmp_path.iterdir()} == {new, kept, "mine"}


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    newest, oldest, kept, middle = bundles(tmp_path, 10, 400, 500, 300)
    assert prune(tmp_path, max_age_s=1e6, max_bytes=2500 + 400, keep=[kept]) == [oldest, middle]
    assert {path.name for path in tmp_path.iterdir()} == {newest, kept}
    assert prune(tmp_path / "nowhere", max_age_s=0, max_bytes=0) == []


def test_loading_counts_as_use(copy: tuple[Bundle, str]) -> None:
    bundle, signature = copy
    for path in bundle.folder.iterdir():
        os.utime(path, (0, 0))
    assert bundle.load("step", signature) is not None
    assert prune(bundle.folder.parent, max_age_s=60, max_bytes=1 << 30) == []
    assert bundle.names() == ["step"]
