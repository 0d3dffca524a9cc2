"""Files for contributors: the hooks and the guide agree with the Makefile, and GitHub accepts the issue forms."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_hooks_run_the_tools_of_make_lint() -> None:
    """From .venv, so that their versions are those that requirements-dev.txt pins."""
    [repository] = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = [hook["entry"].replace(" --force-exclude", "") for hook in repository["hooks"]]
    asked = ["make", "--dry-run", "--always-make", "--no-print-directory", "lint"]
    printed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    linters = (".venv/bin/ruff", ".venv/bin/python -m mypy")
    assert hooks == [line.strip() for line in printed if line.startswith(linters)]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_issue_forms_are_valid_for_github(form: Path) -> None:
    fields = loaded(form)
    assert set(fields) == {"name", "description", "labels", "body"}
    questions = [element for element in fields["body"] if element["type"] != "markdown"]
    assert {element["type"] for element in questions} <= {"input", "textarea", "dropdown"}
    names = [element["id"] for element in questions]
    assert len(set(names)) == len(names) > 2
    for element in questions:
        assert set(element) <= {"type", "id", "attributes", "validations"}
        assert element["attributes"]["label"]
        assert ("options" in element["attributes"]) == (element["type"] == "dropdown")


def test_there_are_forms_for_bugs_and_for_models() -> None:
    assert [form.name for form in FORMS] == ["bug_report.yml", "model_request.yml"]
    assert loaded(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml") == {"blank_issues_enabled": True}


def test_the_contributors_guide_has_the_three_recipes() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for heading in ("A new model transform", "A new tab", "A new endpoint"):
        assert f"\n### {heading}\n" in text
    for command in re.findall(r"^    make ([a-z-]+) ", text, re.MULTILINE):
        assert re.search(rf"^(?:\S+ )*{command}(?: \S+)*:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
