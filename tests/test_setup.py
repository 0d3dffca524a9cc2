"""Set-up: pins, the Makefile's early errors, and the Space front matter agree with what is there."""

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Modules whose distribution has another name.
DISTRIBUTIONS = {"PIL": "pillow", "pydantic_settings": "pydantic-settings"}


def pins(name: str) -> dict[str, str]:
    """A requirements file's own lines as {distribution: version}; every one is pinned exactly."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith(("#", "-r"))]
    return dict(line.partition(";")[0].strip().split("==") for line in lines)


def test_torch_is_first_so_that_a_cpu_build_at_hand_is_taken() -> None:
    assert (ROOT / "requirements.txt").read_text().startswith("torch==")


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_what_is_installed_is_what_is_pinned(name: str) -> None:
    for distribution, pinned in pins(name).items():
        assert version(distribution).split("+")[0] == pinned, distribution


def test_the_other_files_include_the_runtime() -> None:
    for name in ("requirements-dev.txt", "requirements-tpu.txt"):
        assert (ROOT / name).read_text().startswith("-r requirements.txt\n")
    assert pins("requirements-tpu.txt") == {"jax[tpu]": pins("requirements.txt")["jax"]}


def test_every_library_that_the_app_imports_is_pinned() -> None:
    """Nothing is there only because something else happens to need it."""
    imported = set()
    for path in [*ROOT.glob("hfjax_app/**/*.py"), ROOT / "app.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
    third_party = imported - set(sys.stdlib_module_names) - {"hfjax_app"}
    wanted = {DISTRIBUTIONS.get(name, name).lower() for name in third_party}
    assert len(wanted) > 8
    assert wanted <= {name.lower() for name in pins("requirements.txt")}


def test_the_space_runs_the_same_gradio_on_a_python_that_is_supported() -> None:
    front = (ROOT / "README.md").read_text().split("---")[1]
    fields = dict(re.findall(r"^(\w+): \"?([^\"\n]+)\"?$", front, re.MULTILINE))
    assert fields["sdk"] == "gradio"
    assert fields["sdk_version"] == pins("requirements.txt")["gradio"]
    assert fields["python_version"] == "3.11"
    assert (ROOT / fields["app_file"]).is_file()


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs make on a copy of the Makefile, where there is no .venv yet."""
    for name in ("Makefile", "requirements.txt"):
        if not (folder / name).exists():
            shutil.copy(ROOT / name, folder / name)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def first_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode != 0
    ours, *rest = result.stderr.splitlines()
    assert all(line.startswith("make") for line in rest), result.stderr
    return ours


@needs_make
def test_large_arrays_get_large_pages_unless_the_user_tunes_glibc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = "--eval=show: ; @echo $$GLIBC_TUNABLES"
    asked = make(tmp_path, show, "show").stdout.strip()
    assert asked == "glibc.malloc.hugetlb=1"
    assert f"GLIBC_TUNABLES={asked}" in (ROOT / "deploy" / "Dockerfile.cpu").read_text()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=3")
    assert make(tmp_path, show, "show").stdout.strip() == "glibc.malloc.check=3"


@needs_make
def test_a_missing_python_is_one_line(tmp_path: Path) -> None:
    assert "python9 not found" in first_line(make(tmp_path, "run", "PYTHON=python9"))


@needs_make
@pytest.mark.parametrize(
    ("fails_on", "says"),
    [("version_info", "is too old: Python 3.11 or newer"), ("ensurepip", "install the package python3-venv")],
)
def test_an_old_python_and_a_missing_venv_are_one_line(fails_on: str, says: str, tmp_path: Path) -> None:
    """A stand-in for a Python that is older, or Debian's without python3-venv: it fails on that check only."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *{fails_on}*) exit 1;; *--version) echo Python 3.10.0;; esac\n')
    python.chmod(0o755)
    assert says in first_line(make(tmp_path, "run", f"PYTHON={python}"))
    assert not (tmp_path / ".venv").exists()


@needs_make
def test_a_second_start_skips_what_is_done_until_the_requirements_change(tmp_path: Path) -> None:
    """A stand-in venv whose Python only writes down what it is asked for."""
    log = tmp_path / "log"
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >> {log}\n')
    python.chmod(0o755)
    (tmp_path / ".venv" / ".created").touch()

    def asked(*arguments: str) -> list[str]:
        log.write_text("")
        assert make(tmp_path, "run", *arguments).returncode == 0
        lines = log.read_text().splitlines()
        return ["install" if "pip" in line else line for line in lines if not line.startswith("-c import")]

    serve = "-m hfjax_app serve"
    assert asked() == ["install", serve]
    assert asked() == [serve]
    os.utime(tmp_path / ".venv" / ".installed", (0, 0))  # as if requirements.txt had changed since
    assert asked("TORCH_INDEX=https://download.pytorch.org/whl/cpu") == ["install", "install", serve]
    assert asked() == [serve]
