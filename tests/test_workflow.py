"""The workflow runs the README's commands, on the package's Python versions, with actions pinned by commit."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


@pytest.fixture
def jobs() -> dict[str, Any]:
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]


def test_actions_are_pinned_by_commit_and_say_their_release() -> None:
    used = [line.strip() for line in WORKFLOW.read_text().splitlines() if "uses:" in line]
    assert len(used) == 6
    for line in used:
        assert re.fullmatch(r"- uses: actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_the_workflow_may_only_read() -> None:
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {"contents": "read"}


def test_the_workflow_lints_and_runs_the_readmes_commands(jobs: dict[str, Any]) -> None:
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands["tests"] == [".ci/run"]
    assert commands["ray"] == ["make test-ray"]
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "exec make test"
    assert "    make test " in (ROOT / "README.md").read_text()
    lint, part = commands["pythons"]
    assert lint == "make lint"
    paths = part.removeprefix(".venv/bin/python -m pytest ").split()
    assert len(paths) > 2
    assert all((ROOT / path).exists() for path in paths), part


def test_the_workflow_tries_the_pythons_that_the_package_names(jobs: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert jobs["pythons"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"
