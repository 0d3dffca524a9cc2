"""Private parts of libraries are named in their seams only, are there and needed; where they moved we do without."""

import ast
import asyncio
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio import processing_utils

from hfjax_app.runtime import seams
from hfjax_app.runtime.seams import Moved
from hfjax_app.runtime.seams import diffusers as diffusers_seam
from hfjax_app.runtime.seams import gradio as gradio_seam
from hfjax_app.runtime.seams import jax as jax_seam
from hfjax_app.runtime.seams import ray as ray_seam
from hfjax_app.runtime.seams import server as server_seam
from hfjax_app.runtime.seams import torchax as torchax_seam
from hfjax_app.runtime.seams import transformers as transformers_seam
from tests.runtime.seams.checks import ROOT
from tests.runtime.seams.test_gradio import page_of

SEAMS = ROOT / "runtime" / "seams"
FILES: tuple[Any, ...] = (
    diffusers_seam,
    gradio_seam,
    jax_seam,
    ray_seam,
    server_seam,
    torchax_seam,
    transformers_seam,
)
VERSIONS = {library: version for file in FILES for library, version in file.VERSIONS.items()}
# Modules of libraries that are not documented, or not for us, beside those whose names say so.
UNDOCUMENTED = {
    *(f"diffusers.{name}" for name in ("loaders.single_file_utils", "schedulers")),
    *(f"gradio.{name}" for name in ("block_function", "blocks", "components.base", "data_classes", "exceptions")),
    *(f"gradio.{name}" for name in ("oauth", "processing_utils", "queueing", "route_utils", "routes")),
    *(f"gradio.{name}" for name in ("server_messages", "state_holder", "utils")),
    *("torchax.ops", "uvicorn.protocols"),
    *(f"transformers.{name}" for name in ("conversion_mapping", "core_model_loading", "integrations.moe")),
}
LIBRARIES = {"gradio", "jax", "jaxlib", "torchax", "transformers", "diffusers", "ray", "uvicorn", "h11", "starlette"}
# Names that begin with an underscore and are no library's here: Python's own, and torch's of modules and operators.
COMMON = {
    *("_replace", "_fields", "_exit", "_get_running_loop"),
    *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_grouped_mm", "_upsample_bilinear2d_aa"),
}


@pytest.mark.parametrize("library", VERSIONS)
def test_the_reviewed_release_is_the_one_that_is_installed(library: str) -> None:
    """A new release may not need a change, or need it elsewhere: review the file's entries, then update its version."""
    pins = "".join(path.read_text() for path in ROOT.parent.glob("requirements*.txt"))
    assert re.search(rf"^{library}(\[\w+\])?=={re.escape(VERSIONS[library])}$", pins, re.MULTILINE)
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert importlib.metadata.version(library) == VERSIONS[library]


def test_every_entry_has_a_name_of_its_own() -> None:
    names = [entry.name for file in FILES for entry in file.SEAMS]
    assert len({*names}) == len(names)


def private_names(path: Path) -> Iterator[str]:
    """The private names of libraries that a file uses, each with its line."""
    tree = ast.parse(path.read_text())
    own = set(filter(None, map(defined, ast.walk(tree))))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported(node):
                parts = name.split(".")
                if parts[0] in LIBRARIES and (is_undocumented(name) or any(map(is_private, parts))):
                    yield f"{path.name}:{node.lineno}: {name}"
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in own and node.attr not in COMMON:
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr"):
            name = getattr(node.args[1], "value", None)
            if isinstance(name, str) and is_private(name) and name not in own and name not in COMMON:
                yield f"{path.name}:{node.lineno}: {name}"


def defined(node: ast.AST) -> str | None:
    """The name that a node gives to something of the file's own."""
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
    return None


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return [before + alias.name for alias in node.names]


def is_private(name: str) -> bool:
    return name == "interpreters" or (name.startswith("_") and not name.startswith("__"))


def is_undocumented(name: str) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for module in UNDOCUMENTED)


def test_private_names_of_libraries_stand_in_their_seams_only() -> None:
    others = [path for path in sorted(ROOT.rglob("*.py")) if SEAMS not in path.parents]
    assert [name for path in others for name in private_names(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        "from jax._src import core",
        "from jax.interpreters import partial_eval",
        "import jax.interpreters.mlir",
        "from gradio.queueing import Queue",
        "from gradio import queueing",
        "from ray._private import ray_constants",
        "from transformers.core_model_loading import WeightConverter",
        "from transformers.modeling_utils import _load_state_dict",
        "def f(page): return page._queue",
        "def f(page): page._queue.sleep_when_free = 1",
        "class A:\n    def f(self): return self._deployment_id",
        "def f(model): return hasattr(model, '_is_hf_initialized')",
        "def f(model): model._is_hf_initialized = False",
    ],
)
def test_a_private_name_is_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line)
    assert [*private_names(tmp_path / "module.py")]


# Libraries are imported as a whole before a part is taken away: they use it themselves.
WHOLE = (
    "import gradio, uvicorn.config, transformers.modeling_layers, torchax.ops.jaten\n"
    "from diffusers import StableDiffusionPipeline\nfrom transformers import LlamaForCausalLM\n"
)


def run(script: str, *lost: str, first: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script in a process whose libraries lack these parts, after the imports of `first`."""
    taken = (
        "import functools, importlib, logging\n"
        "logging.basicConfig(format='%(name)s: %(message)s')\n"
        f"for where in {lost!r}:\n"
        "    module, _, path = where.partition(':')\n"
        "    *outer, name = path.split('.')\n"
        "    delattr(functools.reduce(getattr, outer, importlib.import_module(module)), name)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent), "TRANSFORMERS_VERBOSITY": "error"}
    environment |= {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    command = [sys.executable, "-c", first + taken + script]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def told(result: subprocess.CompletedProcess[str]) -> list[str]:
    """What the process has logged about parts that are not there."""
    return [
        line.partition(": ")[2] for line in result.stderr.splitlines() if line.startswith("hfjax_app.runtime.seams")
    ]


def test_programs_are_compiled_where_jax_has_moved_its_reader(tmp_path: Path) -> None:
    """An import at the top of a module ended the process."""
    script = (
        "import jax, jax.numpy as jnp\n"
        "from pathlib import Path\n"
        "from hfjax_app.runtime.bundle import Bundle\n"
        "from hfjax_app.runtime.fingerprint import Fingerprint\n"
        "from hfjax_app.runtime.bundle import watch_origin\n"
        f"bundle = Bundle(Path({str(tmp_path)!r}), Fingerprint.of({{}}))\n"
        "with watch_origin() as origin:\n"
        "    program = jax.jit(lambda x: 2 * x).lower(jnp.ones(2)).compile()\n"
        "print(bundle.save('double', 'signature', program, origin))\n"
        "for _ in range(2): print(bundle.load('double', 'signature'), bundle.reasons['double'])\n"
    )
    result = run(script, "jax.experimental.serialize_executable:_JaxPjrtUnpickler")
    first, *loads = result.stdout.splitlines()
    assert first == "True", result.stderr
    needs = "None jax 0.10.2 has no jax.experimental.serialize_executable:_JaxPjrtUnpickler, which this app needs"
    assert len(loads) == 2
    assert all(line.startswith(needs) for line in loads)
    [line] = told(result)
    assert line.endswith("is not in this release: compiled programs are not read from files")


LOST = (
    *("jax.interpreters.partial_eval:dce_jaxpr", "jax.experimental.serialize_executable:_JaxPjrtUnpickler"),
    *("torchax.ops.mappings:t2j", "torchax.ops.mappings:j2t_dtype", "torchax.ops.ops_registry:all_aten_ops"),
    "diffusers.loaders.single_file_utils:infer_diffusers_model_type",
    "transformers.conversion_mapping:get_model_conversion_mapping",
    *("transformers.core_model_loading:build_glob_alternation", "transformers.core_model_loading:rename_source_key"),
    *("gradio.queueing:EventQueue", "gradio.route_utils:compile_gr_request", "gradio.utils:cancel_tasks"),
    *("gradio.state_holder:StateHolder", "gradio.data_classes:PredictBodyInternal"),
    "uvicorn.protocols.http.h11_impl:H11Protocol",
)


def test_no_part_that_has_moved_stops_an_import() -> None:
    """All of those that can be taken away without breaking their own library, at once, before every import of ours."""
    names = [
        module.name
        for module in pkgutil.walk_packages([str(ROOT)], "hfjax_app.")
        if not module.name.endswith("__main__") and not module.name.startswith("hfjax_app.serving.")
    ]
    script = f"import importlib\nfor name in {names!r}: importlib.import_module(name)\nprint('imported')"
    result = run(script, *LOST, first=WHOLE)
    assert result.stdout == "imported\n", result.stderr
    assert "gradio.queueing:EventQueue" not in result.stderr, "what can't be left out is told when it is used"


def test_a_part_that_can_not_be_left_out_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = seams.needed("gradio.queueing:NoSuchQueue")
    with pytest.raises(Moved) as error:
        missing()
    assert str(error.value) == (
        "gradio 6.31.0 has no gradio.queueing:NoSuchQueue, which this app needs: it was made for gradio 6.31.0 "
        "(pip install gradio==6.31.0)"
    )


def test_a_part_that_is_left_out_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        assert seams.part("jax.no_such_module:name", without="nothing is lost") is None
    assert [record.getMessage() for record in caplog.records] == [
        "jax.no_such_module:name is not in this release: nothing is lost"
    ]


def test_a_door_that_can_not_be_closed_is_no_door_that_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(processing_utils, "async_ssrf_protected_download")
    with pytest.raises(Moved, match="async_ssrf_protected_download"):
        gradio_seam.close_doors(asyncio.run(page_of("any")))
    assert not hasattr(processing_utils, "async_ssrf_protected_download")


def test_without_uvicorns_protocol_the_server_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_seam, "TimedProtocol", object)
    assert server_seam.protocol() == "auto"
    assert [*server_seam.trusted_by(object())] == []
