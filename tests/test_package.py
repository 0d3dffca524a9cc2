"""The package: its wheel's contents, its use outside the checkout, and dependency ranges that contain the pins."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hfjax_app

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def pinned(*names: str) -> dict[str, Requirement]:
    """The lines of requirements files by distribution, without included files."""
    lines = [line for name in names for line in (ROOT / name).read_text().splitlines()]
    found = [Requirement(line) for line in lines if line and not line.startswith(("#", "-r"))]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def ranges(lines: list[str]) -> dict[str, Requirement]:
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def agree(asked: dict[str, Requirement], pins: dict[str, Requirement]) -> None:
    """The same names, extras and platforms; every pin is in its range, whose lower bound it is."""
    assert set(asked) == set(pins)
    for name, requirement in asked.items():
        [pin] = pins[name].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), f"{requirement} does not hold {pin}"
        lowest = {bound.version for bound in requirement.specifier if bound.operator in (">=", "==")}
        assert lowest == {pin.version}, f"the tests run with {pins[name]}, {requirement} admits older ones"
        assert requirement.extras == pins[name].extras
        assert str(requirement.marker) == str(pins[name].marker)


# --- dependencies


def test_the_dependencies_are_ranges_that_contain_the_pins() -> None:
    """Like pip, `contains` accepts a pre-release only if the range names one: torchax's range must."""
    agree(ranges(PROJECT["dependencies"]), pinned("requirements.txt"))


def test_the_ranges_end() -> None:
    for requirement in ranges(PROJECT["dependencies"]).values():
        assert {bound.operator for bound in requirement.specifier} == {">=", "<"}, requirement


@pytest.mark.parametrize("extra", ["tpu", "cuda", "ray"])
def test_an_extra_equals_its_requirements_file(extra: str) -> None:
    agree(ranges(EXTRAS[extra]), pinned(f"requirements-{extra}.txt"))


def test_the_extra_for_mcp_is_what_the_tests_run_with() -> None:
    agree(ranges(EXTRAS["mcp"]), {"fastmcp": pinned("requirements-clients.txt")["fastmcp"]})


def test_the_extra_for_plans_is_the_tpus_compiler_where_it_runs() -> None:
    agree(ranges(EXTRAS["plan"]), {"libtpu": pinned("requirements-dev.txt")["libtpu"]})


def test_the_extra_for_developers_equals_their_requirements_file() -> None:
    own, *others = EXTRAS["dev"]
    assert own == "hfjax_app[plan]"
    pins = pinned("requirements-dev.txt", "training/requirements.txt")
    agree(ranges(others), {name: pin for name, pin in pins.items() if name != "libtpu"})


# --- the wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout with the installed build backend, without access to a registry."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_has_all_of_the_app_and_nothing_else(wheel: Path) -> None:
    files = [path for path in (ROOT / "hfjax_app").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    there = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in files}
    with zipfile.ZipFile(wheel) as archive:
        packed = {info.filename: info.file_size for info in archive.infolist()}
    own = {name: size for name, size in packed.items() if ".dist-info/" not in name}
    assert own == there
    for name in ("py.typed", "studio/assets/tokens.css", "embedded/chat-gemma/chat_template.jinja"):
        assert f"hfjax_app/{name}" in own
    for model in (ROOT / "hfjax_app" / "embedded").glob("*/"):
        if model.name != "__pycache__":
            kinds = {Path(name).suffix for name in own if name.startswith(f"hfjax_app/embedded/{model.name}/")}
            assert {".safetensors", ".json", ".md"} <= kinds
    assert any(name.endswith(".js") for name in own)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed)


def test_the_wheel_says_which_version_it_is_and_what_it_needs(wheel: Path, metadata: Message) -> None:
    assert metadata["Version"] == hfjax_app.__version__
    assert wheel.name == f"hfjax_app-{hfjax_app.__version__}-py3-none-any.whl"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == {"tpu", "cuda", "ray", "mcp", "plan", "oauth", "dev"}
    needs = [line for line in metadata.get_all("Requires-Dist", []) if ";" not in line]
    assert ranges(needs).keys() == ranges(PROJECT["dependencies"]).keys()


# --- installed


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), str(wheel)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


def run(installed: Path, *command: str) -> str:
    """Runs a command of the installed package outside the checkout, with the libraries of this environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(installed)
    result = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_the_installed_package_runs(installed: Path) -> None:
    where = run(installed, sys.executable, "-c", "import hfjax_app; print(hfjax_app.__file__)")
    assert Path(where.strip()) == installed / "hfjax_app" / "__init__.py"


@pytest.mark.parametrize("command", [[], ["plan"]])
def test_the_console_command_explains_itself_by_its_own_name(command: list[str], installed: Path) -> None:
    text = run(installed, str(installed / "bin" / "hfjax"), *command, "--help")
    assert text.startswith(f"usage: {' '.join(['hfjax', *command])} ")
    assert "python -m" not in text
    assert "--topology" in text or not command


def test_the_module_explains_itself_by_how_it_is_started(installed: Path) -> None:
    text = run(installed, sys.executable, "-m", "hfjax_app", "--help")
    assert text.startswith("usage: python -m hfjax_app ")
    assert not re.search(r"(?<!-m )\bhfjax\b(?!_app)", text)


def test_the_exit_status_is_the_commands(installed: Path) -> None:
    command = [str(installed / "bin" / "hfjax"), "sentiment", " "]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    result = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")


def test_the_embedded_models_are_found_where_they_are_installed(installed: Path) -> None:
    script = "from hfjax_app.embedded import MODELS, resolve\nfor model in MODELS: print(resolve(model))"
    folders = run(installed, sys.executable, "-c", script).splitlines()
    assert len(folders) > 3
    for folder in map(Path, folders):
        assert folder.parent == installed / "hfjax_app" / "embedded"
        assert [*folder.rglob("*.safetensors")]


@pytest.mark.slow
def test_an_embedded_model_runs_where_it_is_installed(installed: Path) -> None:
    out = run(installed, str(installed / "bin" / "hfjax"), "sentiment", "I loved it.")
    assert '"label": "positive"' in out
