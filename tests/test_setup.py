"""Set-up: pins, the Makefile's early errors and its install steps, and the gradio of the Space."""

import ast
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Modules whose distribution has another name.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "markdown_it": "markdown-it-py",
    "prometheus_client": "prometheus-client",
    "pydantic_settings": "pydantic-settings",
}


def pins(name: str) -> dict[str, str]:
    """A requirements file's lines as {distribution: version}; each one is pinned exactly."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith(("#", "-r"))]
    return dict(line.partition(";")[0].strip().split("==") for line in lines)


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_installed_versions_are_the_pinned_ones(name: str) -> None:
    for distribution, pinned in pins(name).items():
        assert version(distribution).split("+")[0] == pinned, distribution


def test_every_library_that_the_app_imports_is_pinned() -> None:
    """No import relies on a dependency of another library."""
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
    extras = {"fastmcp", "ray"}  # imported only where they are installed
    assert wanted <= {name.lower() for name in pins("requirements.txt")} | extras


def test_the_space_runs_the_same_gradio() -> None:
    assert f"\nsdk_version: {pins('requirements.txt')['gradio']}\n" in (ROOT / "README.md").read_text()


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs make on a copy of the Makefile, in a folder without .venv."""
    for path in [ROOT / "Makefile", *ROOT.glob("requirements*.txt")]:
        if not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)
    ours = ("MAKE", "MFLAGS", "ACCELERATOR", "TORCH_INDEX")  # set if `make test` got them
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


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
    """A fake of an older Python, or of Debian's without python3-venv: it fails at that check only."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *{fails_on}*) exit 1;; *--version) echo Python 3.10.0;; esac\n')
    python.chmod(0o755)
    assert says in first_line(make(tmp_path, "run", f"PYTHON={python}"))
    assert not (tmp_path / ".venv").exists()


CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SERVE = "-m hfjax_app serve"


@dataclass(frozen=True)
class StandIn:
    """A folder whose .venv has a Python that only records its arguments."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / ".venv" / "bin").mkdir(parents=True)
        (self.folder / ".venv" / ".created").touch()
        self.fails_on("nothing")

    def fails_on(self, pattern: str) -> None:
        python = self.folder / ".venv" / "bin" / "python"
        case = f'case "$*" in *{pattern}*) echo "a long and scary message" >&2; exit 1;; esac'
        python.write_text(f'#!/bin/sh\necho "$*" >> {self.folder}/log\n{case}\n')
        python.chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "log").write_text("")
        return make(self.folder, "run", *arguments)

    def asked(self, *arguments: str) -> list[str]:
        """The recorded calls of `make run`, each by its last words; it must succeed without errors."""
        result = self.run(*arguments)
        assert (result.returncode, result.stderr) == (0, "")
        return self.log()

    def log(self) -> list[str]:
        text = (self.folder / "log").read_text()
        text = re.sub(r"^-c .*?urllib(?:.|\n)*? (\S+)$", r"answers? \1", text, flags=re.MULTILINE)
        text = re.sub(r"^-m pip .* --no-compile ", "install ", text, flags=re.MULTILINE)
        return [line for line in text.splitlines() if not line.startswith("-c import")]


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


TORCH = f"--no-deps torch=={pins('requirements.txt')['torch']}"
FROM_CPU_INDEX = [f"answers? {CPU_INDEX}/torch/", f"install --index-url {CPU_INDEX} {TORCH}"]
REQUIREMENTS = "install -r requirements.txt"


@needs_make
def test_a_second_start_installs_nothing_until_the_requirements_change(stand_in: StandIn) -> None:
    assert stand_in.asked() == [*FROM_CPU_INDEX, REQUIREMENTS, SERVE]
    assert stand_in.asked() == [SERVE]
    os.utime(stand_in.folder / ".venv" / ".installed", (0, 0))  # as if requirements.txt had changed since
    assert stand_in.asked() == [*FROM_CPU_INDEX, REQUIREMENTS, SERVE]
    assert stand_in.asked() == [SERVE]


@needs_make
def test_another_index_for_torch_is_used_without_a_check(stand_in: StandIn) -> None:
    index = "http://127.0.0.1/torch"
    assert stand_in.asked(f"TORCH_INDEX={index}") == [f"install --index-url {index} {TORCH}", REQUIREMENTS, SERVE]


@needs_make
def test_a_failing_index_for_torch_is_an_error_if_it_was_given(stand_in: StandIn) -> None:
    stand_in.fails_on("--index-url")
    assert stand_in.run("TORCH_INDEX=http://127.0.0.1/torch").returncode != 0
    assert not (stand_in.folder / ".venv" / ".installed").exists()


@needs_make
def test_an_empty_index_for_torch_is_the_usual_one(stand_in: StandIn) -> None:
    assert stand_in.asked("TORCH_INDEX=") == [REQUIREMENTS, SERVE]


@needs_make
@pytest.mark.parametrize(
    ("fails_on", "steps", "says"),
    [("urllib", 1, "does not answer"), ("--index-url", 2, "has no build for this machine")],
)
def test_without_a_cpu_build_the_usual_index_is_used_and_one_line_says_so(
    fails_on: str, steps: int, says: str, stand_in: StandIn
) -> None:
    stand_in.fails_on(fails_on)
    result = stand_in.run()
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1:] == [f"{CPU_INDEX} {says}: PyTorch comes from pip's usual index"]
    assert stand_in.log() == [*FROM_CPU_INDEX[:steps], REQUIREMENTS, SERVE]


@needs_make
def test_the_check_of_the_cpu_index(tmp_path: Path) -> None:
    """An index that answers, one that accepts the connection without an answer, and one that does not exist."""

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/torch/" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    def answers(port: int) -> bool:
        show = "--eval=show: ; @$(ANSWERS) $(CPU_INDEX)/torch/ && echo yes || echo no"
        result = make(tmp_path, show, "show", f"PY={sys.executable}", f"CPU_INDEX=http://127.0.0.1:{port}")
        assert (result.returncode, result.stderr) == (0, "")
        return {"yes\n": True, "no\n": False}[result.stdout]

    with HTTPServer(("127.0.0.1", 0), Index) as index:
        threading.Thread(target=index.serve_forever, daemon=True).start()
        assert answers(index.server_port)
        index.shutdown()
    with socket.socket() as closed:  # nobody listens, and nobody else can take the port
        closed.bind(("127.0.0.1", 0))
        assert not answers(closed.getsockname()[1])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not answers(silent.getsockname()[1])


@needs_make
def test_an_accelerator_is_installed_when_it_is_first_requested(stand_in: StandIn) -> None:
    """It stays for starts that do not name it: JAX_PLATFORMS chooses the device."""
    tpu, cuda = ("install -r requirements-tpu.txt", "install -r requirements-cuda.txt")
    assert stand_in.asked() == [*FROM_CPU_INDEX, REQUIREMENTS, SERVE]
    assert stand_in.asked("ACCELERATOR=tpu") == [tpu, SERVE]
    assert stand_in.asked("ACCELERATOR=tpu") == [SERVE]
    assert stand_in.asked("ACCELERATOR=cuda") == [cuda, SERVE]
    assert stand_in.asked() == [SERVE]
    os.utime(stand_in.folder / ".venv" / ".installed", (0, 0))
    os.utime(stand_in.folder / ".venv" / ".installed-tpu", (0, 0))
    assert stand_in.asked("ACCELERATOR=tpu") == [*FROM_CPU_INDEX, REQUIREMENTS, tpu, SERVE]


@needs_make
def test_an_unknown_accelerator_gives_one_line_and_installs_nothing(stand_in: StandIn) -> None:
    assert "ACCELERATOR=gpu: must be tpu or cuda" in first_line(stand_in.run("ACCELERATOR=gpu"))
    assert stand_in.log() == []
