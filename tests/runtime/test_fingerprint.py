"""Fingerprints and signatures: the same in every process, another one for whatever changes a program, and in words."""

import importlib.metadata
import json
import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from hfjax_app.chat.sampling.logprobs import Logprobs
from hfjax_app.runtime import fingerprint
from hfjax_app.runtime.fingerprint import Fingerprint, cpu_features, signature_of

ROOT = Path(__file__).parents[2]

# What the signature of a program on several devices needs: they are simulated here.
PRINT = """
import json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from hfjax_app.chat.sampling.logprobs import Logprobs
from hfjax_app.runtime.fingerprint import Fingerprint, signature_of
whole = NamedSharding(Mesh(np.array(jax.devices()), ("model",)), PartitionSpec())
shape = jax.ShapeDtypeStruct((4, 4), np.float32, sharding=whole)
signature = signature_of(({"b": shape, "a": [shape, None]}, Logprobs(shape, shape, shape)), (1,), (whole, None))
made = Fingerprint.of({"b": 1, "a": {"slots": 4, "stop": [None, 2.5, True]}})
print(json.dumps([made.digest, signature, made.parts["devices"], "torch" in sys.modules]))
"""

TOPOLOGY = """
import json, sys
from hfjax_app.runtime.topology import devices, parse, prepare_process
prepare_process(parse("v5e:2x2"))
from hfjax_app.runtime.fingerprint import Fingerprint
print(json.dumps(Fingerprint.of({}, devices(parse("v5e:2x2"))).parts))
"""


def run(script: str, **environment: str) -> Any:
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def of(facts: dict[str, Any] | None = None) -> Fingerprint:
    return Fingerprint.of(facts or {})


def test_every_process_finds_the_same() -> None:
    """Also with other hashes of strings, another cache and other logs."""
    eight = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    first = run(PRINT, PYTHONHASHSEED="1", **eight)
    same = run(PRINT, PYTHONHASHSEED="2", JAX_COMPILATION_CACHE_DIR="/nowhere", JAX_LOG_COMPILES="1", **eight)
    other = run(PRINT, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert first == same
    assert first[2]["count"] == 8
    assert not first[3], "torch takes seconds to import"
    assert other[0] != first[0]
    assert other[1] != first[1]


def test_a_topology_has_a_fingerprint_though_it_is_not_here() -> None:
    pytest.importorskip("libtpu")
    parts = run(TOPOLOGY)
    assert parts["devices"] == {
        "platform": "tpu",
        "kind": "TPU v5 lite",
        "count": 4,
        "ids": [0, 1, 2, 3],
        "places": [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]],
        "runtime": None,
    }
    assert parts["versions"]["libtpu"] == importlib.metadata.version("libtpu")
    assert parts["cpu_features"] is None, "it may be made on another host"
    assert "made with platform = tpu, this has cpu" in of().difference(parts)


def test_versions_are_those_that_are_installed() -> None:
    versions = of().parts["versions"]
    assert versions["jax"] == jax.__version__
    assert versions["torch"] == importlib.metadata.version("torch").partition("+")[0]
    assert "libtpu" not in versions, "a CPU's programs don't depend on it"


def test_whatever_is_set_for_jax_and_xla_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)  # a plan in this process sets it
    before = of()
    with jax.enable_x64(True):
        assert of().difference(before.parts) == "made with jax_enable_x64 = false, this has true"
    with jax.default_matmul_precision("float32"):
        assert of().difference(before.parts) == "made with jax_default_matmul_precision = null, this has float32"
    monkeypatch.setenv("LIBTPU_INIT_ARGS", " --xla_tpu_a=1   --xla_tpu_b=2 ")
    assert of().difference(before.parts) == ('made with LIBTPU_INIT_ARGS = "", this has --xla_tpu_a=1 --xla_tpu_b=2')
    assert of().digest != before.digest


@pytest.mark.parametrize(
    "name",
    [
        "jax_enable_x64",
        "jax_disable_most_optimizations",
        "jax_default_matmul_precision",
        "jax_default_prng_impl",
        "jax_threefry_partitionable",
        "jax_numpy_dtype_promotion",
        "jax_optimization_level",
        "jax_use_shardy_partitioner",
    ],
)
def test_settings_that_change_programs_are_among_those_that_count(name: str) -> None:
    assert name in of().parts["jax_settings"]


def test_the_app_s_own_sources_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "app" / "runtime"
    package.mkdir(parents=True)
    (package / "a.py").write_text("x = 1")
    monkeypatch.setattr(fingerprint, "__file__", str(package / "fingerprint.py"))
    of_sources = fingerprint.sources.__wrapped__
    first = of_sources()
    (package / "notes.txt").write_text("no program")
    assert of_sources() == first
    (package / "a.py").write_text("x = 2")
    second = of_sources()
    (package.parent / "chat").mkdir()
    (package / "a.py").rename(package.parent / "chat" / "a.py")
    third = of_sources()
    assert len({first, second, third}) == 3
    (package.parent / "studio").mkdir()
    (package.parent / "studio" / "page.py").write_text("no program")
    assert of_sources() == third
    assert fingerprint.sources() == fingerprint.sources()


class Kind(StrEnum):
    A = "a"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"dtype": np.float32}, "facts.dtype = <class 'numpy.float32'> is no JSON data (type)"),
        ({"config": {"sizes": [1, {2}]}}, "facts.config.sizes[1] = {2} is no JSON data (set)"),
        ({"scale": float("nan")}, "facts.scale = nan is no JSON data (float)"),
        ({"n": np.int64(3)}, "is no JSON data (int64)"),
        ({"kind": Kind.A}, "is no JSON data (Kind)"),
        ({"labels": {1: "a", "1": "b"}}, "facts.labels = {1: 'a', '1': 'b'} is no JSON data (dict)"),
        ({"labels": {None: "a"}}, "is no JSON data (dict)"),
    ],
)
def test_what_is_no_json_is_refused(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as error:
        of(facts)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_facts_are_as_json_gives_them_back() -> None:
    made = of({"labels": {0: "a"}, "sizes": (512, 768)})
    assert made.parts["facts"] == {"labels": {"0": "a"}, "sizes": [512, 768]}
    assert json.loads(json.dumps(made.parts)) == made.parts
    assert made.digest == Fingerprint(json.loads(json.dumps(made.parts, sort_keys=True))).digest


def test_differences_are_told_in_one_line_the_most_telling_first() -> None:
    here = of({"slots": 4, "config": {"layers": 6, "text": "x" * 200}})
    assert here.difference(here.parts) == ""
    made = json.loads(json.dumps(here.parts))
    made["sources"] = "0" * 64
    assert here.difference(made) == "made by other sources of this app"
    made["versions"]["jax"] = "0.10.1"
    made["versions"]["diffusers"] = None
    assert here.difference(made) == (
        f"made by jax 0.10.1, this is {jax.__version__}; made by diffusers not there, this is "
        f"{importlib.metadata.version('diffusers')}; made by other sources of this app"
    )
    made["facts"] = {"slots": 8, "config": {"layers": 6, "text": "y" * 200}, "more": 1}
    assert here.difference(made).endswith("made with slots = 8, this has 4; and 3 more")
    made = here.parts | {"facts": {"slots": 8, "config": {"layers": 6, "text": "y" * 200}, "more": 1}}
    said = f"made with config.text = {'y' * 60}..., this has {'x' * 60}..."
    assert here.difference(made) == f"made with slots = 8, this has 4; {said}; made with more = 1, this has null"
    assert here.distance(made) == (True, 3)


def test_another_cpu_is_told_by_its_instructions() -> None:
    here = of()
    features = here.parts["cpu_features"]
    assert features == cpu_features()
    made = here.parts | {"cpu_features": [*features[1:], "amx_new"]}
    assert here.difference(made) == f"made for a CPU with amx_new and without {features[0]}"


X = np.zeros((3, 4), np.float32)


def placed(sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=sharding)


def test_arrays_numpy_arrays_and_shapes_have_one_signature() -> None:
    """As one program does for all of them."""
    assert signature_of((X,)) == signature_of((placed(),)) == signature_of((jnp.asarray(X),))
    with jax.enable_x64(False):
        assert signature_of((X.astype(np.float64),)) == signature_of((X,))
    here = SingleDeviceSharding(jax.devices()[0])
    assert signature_of((jax.device_put(X, here),)) == signature_of((placed(here),))
    assert len(signature_of(())) == 64


def test_whatever_changes_a_call_changes_its_signature() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("model",))
    whole, halves = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("model"))
    other_mesh = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec())
    calls = [
        ((X,),),
        ((X.T,),),
        ((X.astype(np.int32),),),
        ((X, X),),
        (([X],),),
        (({"a": X},),),
        (({"b": X},),),
        ((Logprobs(X, X, X),),),
        (((X, X, X),),),
        ((X,), (0,)),
        ((placed(whole),),),
        ((placed(halves),),),
        ((placed(other_mesh),),),
        ((placed(SingleDeviceSharding(jax.devices()[0])),),),
        ((X,), (), whole),
        ((X,), (), (whole, None)),
        ((X,), (), (None, whole)),
        ((1.0,),),
        ((1,),),
        ((np.float32(1),),),
        ((jax.eval_shape(lambda: jax.random.key(0)),),),
    ]
    signatures = [signature_of(*call) for call in calls]
    assert len({*signatures}) == len(calls)
    assert signatures == [signature_of(*call) for call in calls]
