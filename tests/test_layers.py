"""Imports point one way, down the layers; only packages for the browser import gradio."""

import ast
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hfjax_app

ROOT = Path(hfjax_app.__file__).parent
BACKENDS = ("chat", "sentiment", "images")
# The layers, from the top: a package imports only lower layers. Modules directly in hfjax_app/ are listed by name, and
# any layer may import LEAVES.
LEAVES = {
    "errors": set(),
    "lazy_import": set(),
    "console": {"errors"},
    "embedded": set(),
    "ladder_result": set(),
    "limits": set(),
    "validation": {"errors"},
    "settings": {"errors", "limits"},
    "client": set(),
    "line": set(),
    "attempts": {"errors", "limits"},
    "pictures": {"errors", "limits", "validation"},
}
ALLOWED = {
    "planning": {"errors", "embedded", "settings", "backends", *BACKENDS, "runtime", "__version__"},
    "ladder": {"errors", "embedded", "ladder_result", *BACKENDS, "runtime"},
    "arguments": {*LEAVES, "runtime"},
    "__main__": {
        *LEAVES,
        *("arguments", "server", "studio", "backends", "ladder", "planning", *BACKENDS, "runtime", "__version__"),
    },
    "serving": {*LEAVES, "server", "api", "service", "backends", *BACKENDS, "runtime"},
    "server": {*LEAVES, "studio", "api", "service", "backends", *BACKENDS, "runtime"},
    "studio": {*LEAVES, "api", "service", "backends", *BACKENDS, "runtime"},
    "api": {*LEAVES, "service", "backends", *BACKENDS, "runtime"},
    "service": {*LEAVES, "backends", *BACKENDS, "runtime"},
    "backends": {*LEAVES, *BACKENDS, "runtime", "__version__"},
    **{
        backend: {"errors", "limits", "validation", "lazy_import", "line", "pictures", "runtime", "__version__"}
        for backend in BACKENDS
    },
    "runtime": {"errors", "limits", "line"},
}
# What no other package imports: commands of their own. `__main__` does, when such a command runs.
APART = {"planning", "ladder", "serving"}
# Third-party libraries, and the packages that may import them; beside these, the library's own file of runtime/seams/.
CONFINED = {
    "gradio": {"studio", "api", "server"},
    "torch": {"runtime", "ladder", *BACKENDS},
    "torchax": {"runtime", "ladder", *BACKENDS},
    "transformers": {"runtime", "ladder", *BACKENDS},
    "diffusers": {"images"},
    "ray": {"serving"},
}


def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere, also inside functions; relative imports are not used here."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules() -> Iterator[tuple[Path, str]]:
    """Each file of the app with the name of its package, or of the module itself directly in hfjax_app/."""
    for path in sorted(ROOT.rglob("*.py")):
        yield path, path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_the_app_was_found() -> None:
    assert {"runtime", "studio", "settings", *BACKENDS} <= {package for _, package in modules()}


@pytest.mark.parametrize(("path", "package"), [pytest.param(*m, id=str(m[0].relative_to(ROOT))) for m in modules()])
def test_imports_point_downwards(path: Path, package: str) -> None:
    allowed = {**ALLOWED, **LEAVES}.get(package)
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "hfjax_app" and allowed is not None:
            assert rest[0] in {*allowed, package}, f"{package} must not import {name}"
        if top in CONFINED:
            is_seam = path == ROOT / "runtime" / "seams" / f"{top}.py"
            assert is_seam or package in CONFINED[top], f"{package} must not import {top}"


def test_what_serves_imports_no_command_of_its_own() -> None:
    assert [package for package, lower in ALLOWED.items() if APART & lower] == ["__main__"]
    started = ast.parse((ROOT / "__main__.py").read_text()).body
    top = {node.module for node in started if isinstance(node, ast.ImportFrom) and node.module}
    assert not {name.split(".")[1] for name in top if name.startswith("hfjax_app.")} & APART


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_know_no_platform(backend: str) -> None:
    """Code for the speed of a CPU or a TPU is used through runtime/transforms.py."""
    for path in (ROOT / backend).rglob("*.py"):
        for name in imports(path):
            assert not name.startswith("hfjax_app.runtime.cpu"), f"{path} imports {name}"


def closure(name: str, seen: set[str]) -> set[str]:
    """All modules that a module of the app imports, by way of others too; those for type checkers among them."""
    path = ROOT.parent / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for each in imports(path) if path.exists() else ():
        module = each if (ROOT.parent / each.replace(".", "/")).is_dir() else each.rpartition(".")[0]
        for found in (each, module):
            if found not in seen:
                seen.add(found)
                if found.startswith("hfjax_app."):
                    closure(found, seen)
    return seen


@pytest.mark.parametrize("door", ["api.v1.routes", "api.mcp", "service.service"])
def test_only_the_page_and_its_own_endpoints_know_gradio(door: str) -> None:
    """OpenAI's API, MCP and the service behind every door would work without it."""
    assert sorted(name for name in closure(f"hfjax_app.{door}", set()) if name.split(".")[0] == "gradio") == []


def test_importing_every_module_starts_no_device_and_no_ray() -> None:
    """A backend that starts at import would ignore the allocator settings and the cache folder.

    `serving/` needs Ray, which nothing else imports.
    """
    names = [
        module.name
        for module in pkgutil.walk_packages([str(ROOT)], "hfjax_app.")
        if not module.name.endswith("__main__") and not module.name.startswith("hfjax_app.serving.")
    ]
    assert len(names) > 10
    script = (
        f"import importlib\nfor name in {names!r}: importlib.import_module(name)\n"
        "import sys\nfrom jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized(), 'ray' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent), "TRANSFORMERS_VERBOSITY": "error"}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False False"
