"""What is in deploy/ can't be run here; its linters can, and its Dockerfiles name only files that exist."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCKERFILES = sorted((ROOT / "deploy").glob("Dockerfile.*"))
SCRIPTS = [*sorted((ROOT / "deploy").glob("*.sh")), ROOT / ".ci" / "run"]


def lint(tool: str, file: Path) -> None:
    program = shutil.which(tool, path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"{tool} is not installed")
    result = subprocess.run([program, str(file)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_pass_shellcheck(file: Path) -> None:
    lint("shellcheck", file)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_pass_hadolint(file: Path) -> None:
    lint("hadolint", file)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)
def test_images_copy_what_exists_and_do_not_run_as_root(file: Path) -> None:
    text = file.read_text()
    copied = [source for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for source in line.split()]
    assert {"app.py", "hfjax_app", "requirements.txt"} <= set(copied)
    assert all((ROOT / source).exists() for source in copied)
    users = re.findall(r"^USER (\S+)$", text, re.MULTILINE)
    assert users == ["1000"]
    for instruction in ("HEALTHCHECK", "VOLUME /data"):
        assert instruction in text


def test_the_script_explains_itself() -> None:
    result = subprocess.run([ROOT / "deploy" / "tpu-vm.sh"], capture_output=True, text=True)
    assert result.returncode == 2
    for command in ("create", "update", "tunnel"):
        assert f"tpu-vm.sh {command} NAME ZONE" in result.stderr
