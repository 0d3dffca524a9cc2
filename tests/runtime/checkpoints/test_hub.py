"""The hub and its cache: each failure is one line with the model's name and a remedy.

A local server simulates the hub. A new process sends the requests, because HF_ENDPOINT is read at import.
"""

import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.load_errors import explain


class Hub(BaseHTTPRequestHandler):
    """Answers like the hub: errors with the headers that the client reads, metadata, and files."""

    ANSWERS = {  # noqa: RUF012
        "/owner/missing": (401, "RepoNotFound", "Repository not found"),
        "/owner/gone": (404, "RepoNotFound", "Repository not found"),
        "/owner/gated": (401, "GatedRepo", "Access to this model is restricted"),
        "/owner/forbidden": (403, "GatedRepo", "Your request is awaiting a review"),
        "/owner/licence/resolve": (401, "GatedRepo", "Access to this model is restricted"),
        "/owner/public": (404, "RevisionNotFound", "Revision Not Found"),
    }

    METADATA = {"/owner/licensed": "manual", "/owner/open": False}  # noqa: RUF012

    PIPELINE = (
        "model_index.json",
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "unet/diffusion_pytorch_model.bin",
        "text_encoder/model-00001-of-00002.safetensors",
        "text_encoder/model-00002-of-00002.safetensors",
        "text_encoder/model.fp16-00001-of-00001.safetensors",
        "vae/diffusion_pytorch_model.fp16.safetensors",
        "image_encoder/model.bf16.safetensors",
        "safety_checker/model.safetensors",
        "sd.safetensors",
    )

    def do_GET(self) -> None:
        path = self.path.removeprefix("/api/models")
        if path in self.METADATA:
            body = json.dumps({"id": path[1:], "gated": self.METADATA[path]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        if path.startswith(("/owner/pipeline/", "/owner/licence/revision/", "/owner/licence/tree/")):
            self.send_pipeline(path.split("/", 3)[3])
            return
        status, code, message = next(
            (a for start, a in self.ANSWERS.items() if path.startswith(start)), (404, None, "")
        )
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def send_pipeline(self, path: str) -> None:
        """A repository whose files all contain "{}"."""
        answers: dict[str, Any] = {"revision": {"id": "owner/pipeline", "sha": "a" * 40}, "resolve": {}}
        answers["tree"] = [{"type": "file", "path": file, "size": 2, "oid": "b" * 40} for file in self.PIPELINE]
        body = json.dumps(answers[path.partition("/")[0]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", hashlib.sha1(path.encode()).hexdigest())
        self.send_header("X-Repo-Commit", "a" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


ASK = """
import json, sys
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.hub import fetch, is_gated
from hfjax_app.runtime.checkpoints.tokenizer_files import load
messages = {}
for name in sys.argv[1:]:
    if name.startswith("parts?"):
        folder = fetch(name[6:], parts=("unet", "text_encoder", "vae", "image_encoder"))
        messages[name] = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
        continue
    if name.startswith("load?"):
        messages[name] = load(lambda name, **options: options, name[5:])
        continue
    if name.startswith("gated?"):
        messages[name] = is_gated(name[6:])
        continue
    try:
        print(fetch(name), file=sys.stderr)
    except ModelUnavailable as error:
        messages[name] = str(error)
print(json.dumps(messages))
"""


def ask(endpoint: str, home: Path, *names: str, **variables: str) -> dict[str, Any]:
    """The messages for requests of these models from a hub at `endpoint`, with an empty cache and no token.

    "gated?NAME": whether the model is gated; "parts?NAME": the files that four networks download; "load?NAME": the
    options of the tokenizer's loading.
    """
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        **variables,
    }
    for variable in ("HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        environment.pop(variable, None)
    result = subprocess.run([sys.executable, "-c", ASK, *names], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    messages = json.loads(result.stdout)
    for name, message in messages.items():
        if "?" in name:
            continue
        assert "\n" not in message
        assert repr(name) in message
    return messages


def test_models_that_the_hub_refuses(hub: str, tmp_path: Path) -> None:
    names = ("owner/missing", "owner/gone", "owner/gated", "owner/forbidden", "owner/licence", "not a model id")
    messages = ask(hub, tmp_path, *names)
    for name in ("owner/missing", "owner/gone"):
        assert "does not exist on the hub" in messages[name]
        assert "HF_TOKEN" in messages[name]
    for name in ("owner/gated", "owner/forbidden", "owner/licence"):  # of the last one all see the list of files
        assert f"is gated: accept its licence on https://huggingface.co/{name}" in messages[name]
        assert "HF_TOKEN" in messages[name]
    assert "there is no such folder" in messages["not a model id"]


def test_whether_a_model_is_gated(hub: str, tmp_path: Path) -> None:
    names = [f"gated?owner/{name}" for name in ("licensed", "open", "gated", "missing")]
    assert list(ask(hub, tmp_path, *names, f"gated?{tmp_path}").values()) == [True, False, True, None, False]


def test_only_the_weights_of_a_pipeline_that_are_read_are_downloaded(hub: str, tmp_path: Path) -> None:
    """Not the same weights in other formats, not other networks; a variant if there is nothing else."""
    [files] = ask(hub, tmp_path, "parts?owner/pipeline").values()
    assert files == [
        "image_encoder/model.bf16.safetensors",
        "model_index.json",
        "text_encoder/model-00001-of-00002.safetensors",
        "text_encoder/model-00002-of-00002.safetensors",
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.fp16.safetensors",
    ]


def test_no_network(tmp_path: Path) -> None:
    """Port 9 (discard) refuses the connection at once, as on a machine without a network."""
    messages = ask("http://127.0.0.1:9", tmp_path, "owner/missing", "gated?owner/licensed")
    assert "the hub can't be reached" in messages["owner/missing"]
    assert messages["gated?owner/licensed"] is None


def cached(home: Path, *files: str) -> str:
    """A snapshot in the hub's cache, as after a download: the id, and a folder for each commit."""
    repository = home / "hub" / "models--owner--cached"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    for file in files:
        (snapshot / file).write_text("{}")
    return "owner/cached"


def test_offline_the_cache_is_enough(tmp_path: Path) -> None:
    """HF_HUB_OFFLINE is respected: the endpoint would answer, and gets no request."""
    name = cached(tmp_path, "config.json", "model.safetensors")
    assert ask("http://127.0.0.1:9", tmp_path, name, f"{name}@{'a' * 40}", HF_HUB_OFFLINE="1") == {}
    missing = ask("http://127.0.0.1:9", tmp_path, "owner/else", f"{name}@v2", HF_HUB_OFFLINE="1")
    for message in missing.values():
        assert "HF_HUB_OFFLINE forbids to download it" in message
    assert len(missing) == 2


def test_without_a_network_the_cache_is_enough(tmp_path: Path) -> None:
    """The hub gets one request: a request for each file of a tokenizer would wait for its retries each time."""
    name = cached(tmp_path, "config.json", "tokenizer.json")
    options = {"trust_remote_code": False, "local_files_only": True}
    assert ask("http://127.0.0.1:9", tmp_path, name, f"load?{name}") == {f"load?{name}": options}


def test_a_missing_revision(hub: str, tmp_path: Path) -> None:
    message = ask(hub, tmp_path, "owner/public@v9")["owner/public@v9"]
    assert "the hub has no such revision" in message


def test_a_folder_is_used_unchanged(tmp_path: Path) -> None:
    assert fetch(tmp_path) == tmp_path


def gguf(**metadata: str | int | list[str]) -> bytes:
    """A GGUF file of no tensors; names have underscores for the dots."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def entry(value: str | int | list[str]) -> bytes:
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        if isinstance(value, int):
            return struct.pack("<Ii", 5, value)
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))

    entries = b"".join(text(name.replace("__", ".")) + entry(value) for name, value in metadata.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata)) + entries


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gguf(general__name="Some 7B", general__tags=["a", "b"], general__file_type=7), "that it was made from, with"),
        (gguf(general__base_model__0__repo_url="https://huggingface.co/owner/some-7b"), "'owner/some-7b', with"),
        (gguf(general__type="model", general__source__huggingface__repository="owner/x"), "'owner/x', with"),
        (b"GGUF" + b"\xff" * 100, "that it was made from, with"),
        (b"", "that it was made from, with"),
    ],
)
@pytest.mark.parametrize("as_folder", [True, False])
def test_a_gguf_file_names_what_to_take_instead(content: bytes, says: str, as_folder: bool, tmp_path: Path) -> None:
    file = tmp_path / "model-q4.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelUnavailable, match=f"is in the GGUF format, which is for other programs: take .*{says}"):
        fetch(tmp_path if as_folder else file)
    assert "GGUF format" in explain("owner/some-7b-GGUF", OSError("no file named config.json"))
