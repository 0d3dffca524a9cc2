"""`hfjax compile`: one process makes the programs, another one loads them."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hfjax_app.backends.model_bundles import model_bundle
from hfjax_app.runtime.process import prepare
from hfjax_app.sentiment import SentimentClassifier
from hfjax_app.settings import load_settings
from tests.backends.checkpoints import save_classifier
from tests.conftest import quickly_compiled

ROOT = Path(__file__).parents[2]


def compiled(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hfjax_app", "compile", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_what_one_process_compiled_another_loads(tmp_path: Path, compilations: Callable) -> None:
    """Nothing is compiled or traced a second time, and a program that is lost is compiled alone."""
    model, out = save_classifier(tmp_path / "model"), tmp_path / "programs"
    with quickly_compiled():
        ran = compiled("--sentiment-model", model, "--out", out)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout == f"3 programs are ready, 3 of them new; start the server with HFJAX_CACHE_DIR={out}\n"
        [folder] = (out / "bundles").iterdir()
        (folder / "classify_1x16.program").unlink()
        again = compiled("--sentiment-model", model, "--out", out, "--json")
        assert [json.loads(line)["name"] for line in again.stdout.splitlines()] == ["classify_1x16"]
        prepare()
        bundle = model_bundle("sentiment", str(model), load_settings(), root=out / "bundles")
        reports: list = []
        with compilations() as seen:
            classifier = SentimentClassifier.from_pretrained(model, bundle=bundle, on_report=reports.append)
            classifier.explain("w1 w2")
        assert (len(reports), all(report.cached for report in reports)) == (3, True)
        assert len(seen) < 5, "single operations beside the programs"
        classifier.stop()


@pytest.mark.tpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("topology", "kind"), [("v5e:1x1", "TPU v5 lite"), ("v6e:2x2", "TPU v6 lite")])
def test_programs_for_a_tpu_that_is_not_here(tmp_path: Path, topology: str, kind: str) -> None:
    """They are kept with the chips that they are for, and found again. Loading them takes a TPU."""
    arguments = ("--chat-model", "chat-llama", "--slots", 2, "--topology", topology, "--out", tmp_path)
    ran = compiled(*arguments)
    assert ran.returncode == 0, ran.stderr
    [folder] = (tmp_path / "bundles").iterdir()
    programs = list(folder.glob("*.program"))
    assert len(programs) == ran.stderr.count(": compiled in")
    for path in programs:
        with path.open("rb") as file:
            file.readline()
            header = json.loads(file.readline())
        assert (header["platform"], header["kind"]) == ("tpu", kind)
    again = compiled(*arguments, "--json")
    assert (again.returncode, again.stdout) == (0, ""), again.stderr


def test_a_wrong_topology_is_refused_before_anything_is_imported(tmp_path: Path) -> None:
    ran = compiled("--topology", "v9:1x1", "--out", tmp_path / "programs")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: topology = 'v9:1x1': known are ")
    assert not (tmp_path / "programs").exists()
