"""The files of deploy/ can't be run here; linters check them, and its Dockerfiles name only files that exist."""

import json
import os
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from hfjax_app.settings import Settings

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


def test_kubernetes_accepts_the_manifests() -> None:
    program = Path(sys.executable).with_name("kubernetes-validate")
    command = [program, "--strict", ROOT / "deploy" / "kubernetes.yaml"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (result.stdout + result.stderr).count(" passed for resource ") == 3


def test_kubernetes_accepts_what_kuberay_makes_of_its_manifest(tmp_path: Path) -> None:
    """The pods of a RayService are Kubernetes' own; the RayService is KubeRay's, which no package here describes."""
    manifests = [*yaml.safe_load_all((ROOT / "deploy" / "kuberay.yaml").read_text())]
    [service] = [manifest for manifest in manifests if manifest["kind"] == "RayService"]
    cluster = service["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": group["template"]["spec"]}
        for number, group in enumerate(groups)
    ]
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all([*(each for each in manifests if each is not service), *pods]))
    program = Path(sys.executable).with_name("kubernetes-validate")
    result = subprocess.run([program, "--strict", file], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (result.stdout + result.stderr).count(" passed for resource ") == 5


def test_kuberay_runs_the_ray_and_the_settings_of_this_project() -> None:
    manifests = yaml.safe_load_all((ROOT / "deploy" / "kuberay.yaml").read_text())
    [service] = [manifest["spec"] for manifest in manifests if manifest["kind"] == "RayService"]
    assert f"ray[serve]=={service['rayClusterConfig']['rayVersion']}" in (ROOT / "requirements-ray.txt").read_text()
    [application] = yaml.safe_load(service["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    assert f"def {name}(" in (ROOT / f"{module.replace('.', '/')}/application.py").read_text()
    settings = Settings(**application["args"])
    [chat] = [options for options in application["deployments"] if options["name"] == "chat"]
    [tpus] = [group for group in service["rayClusterConfig"]["workerGroupSpecs"] if group["groupName"] == "tpu"]
    [container] = tpus["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["google.com/tpu"] == str(chat["ray_actor_options"]["resources"]["TPU"])
    assert tpus["maxReplicas"] == chat["autoscaling_config"]["max_replicas"]
    assert chat["autoscaling_config"]["target_ongoing_requests"] == settings.slots


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


@pytest.mark.parametrize("variable", ["HFJAX_PORT", "PORT"])
@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.name)
def test_the_health_check_uses_the_port_that_is_served(file: Path, variable: str) -> None:
    """With another HFJAX_PORT it still used 7860, and the container never became healthy. Cloud Run sets PORT."""
    text = file.read_text().replace("\\\n", "")
    check = json.loads(re.search(r"^HEALTHCHECK .* CMD (.*)$", text, re.MULTILINE)[1])
    asked = []

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        environment = os.environ | {variable: str(server.server_port)}
        with subprocess.Popen([sys.executable, *check[1:]], env=environment) as process:
            server.timeout = 120
            server.handle_request()
        assert process.returncode == 0
    assert asked == ["/ready"]


def run_script(folder: Path, *arguments: str, settings: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs tpu-vm.sh with a gcloud that prints its arguments, and optionally a studio.env."""
    script = folder / "deploy" / "tpu-vm.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "deploy" / "tpu-vm.sh", script)
    if settings is not None:
        (script.parent / "studio.env").write_text(settings)
    gcloud = folder / "gcloud"
    gcloud.write_text('#!/bin/sh\necho "$@"\n')
    gcloud.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("settings", "port"), [(None, 7860), ("HFJAX_SLOTS=8\n", 7860), ("HFJAX_PORT=8000\n", 8000)])
def test_the_tunnel_leads_to_the_port_that_is_served(settings: str | None, port: int, tmp_path: Path) -> None:
    result = run_script(tmp_path, "tunnel", "studio", "us-west4-a", settings=settings)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith(f" -L 7860:127.0.0.1:{port}\n")


@pytest.mark.parametrize(
    ("slice_type", "image"),
    [("v5litepod-1", "v2-alpha-tpuv5-lite"), ("v5litepod-8", "v2-alpha-tpuv5-lite"), ("v6e-4", "v2-alpha-tpuv6e")],
)
def test_a_slice_of_one_host_is_made(slice_type: str, image: str, tmp_path: Path) -> None:
    result = run_script(tmp_path, "create", "studio", "us-west4-a", slice_type)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith(f" --accelerator-type {slice_type} --version {image}\n")


@pytest.mark.parametrize("slice_type", ["v5litepod-16", "v5litepod-2", "v6e-256", "v6e-", "v4-8"])
def test_a_slice_that_one_studio_can_not_serve_is_refused(slice_type: str, tmp_path: Path) -> None:
    """Slices of several hosts were created and paid for, and only their first host was used."""
    result = run_script(tmp_path, "create", "studio", "us-west4-a", slice_type)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: type {slice_type}: v5litepod-1, -4, -8 or v6e-1, -4, -8")
    assert result.stderr.count("\n") == 1


def test_the_script_explains_itself() -> None:
    result = subprocess.run(["./tpu-vm.sh"], cwd=ROOT / "deploy", capture_output=True, text=True)
    assert result.returncode == 2
    for command in ("create", "update", "tunnel"):
        assert f"tpu-vm.sh {command} NAME ZONE" in result.stderr
