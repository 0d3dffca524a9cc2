"""Checkpoints that can't be loaded: each gets one line that names the model and says what would help.

The hub is played by a server on this machine, asked by a process of its own, because HF_ENDPOINT is read at import.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.weights import load_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of a sound checkpoint, for a test to spoil."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


def refusal(folder: Path) -> str:
    """The message for a folder that must not load."""
    with pytest.raises(ModelUnavailable) as error:
        load_model(AutoModelForCausalLM.from_pretrained, folder)
    message = str(error.value)
    assert "\n" not in message
    assert str(folder) in message
    assert error.value.__cause__ is not None
    return message


def test_a_sound_folder_loads(folder: Path) -> None:
    model = load_model(AutoModelForCausalLM.from_pretrained, folder, dtype=torch.float32)
    assert isinstance(model, LlamaForCausalLM)


def test_truncated_safetensors(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "truncated or corrupt" in refusal(folder)


def test_garbage_and_empty_safetensors(folder: Path) -> None:
    for content in (b"garbage" * 1000, b""):
        (folder / "model.safetensors").write_bytes(content)
        assert "truncated or corrupt" in refusal(folder)


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has no weights (*.safetensors)" in refusal(folder)


def test_bin_weights_are_refused_unopened(folder: Path) -> None:
    """Pickles can run code when they are read; this one would leave a file behind."""
    (folder / "model.safetensors").unlink()
    proof = folder / "proof"

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return open, (str(proof), "w")

    torch.save({"weight": Trap()}, folder / "pytorch_model.bin")
    assert "only safetensors files are loaded" in refusal(folder)
    assert not proof.exists()


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"model_type": "no_such_architecture"}'])
def test_a_missing_or_broken_config(folder: Path, content: str | None) -> None:
    config = folder / "config.json"
    config.unlink() if content is None else config.write_text(content)
    message = refusal(folder)
    assert "config.json" in message or "Transformers is out of date" in message


def test_code_in_a_checkpoint_is_never_run(folder: Path) -> None:
    """A config that maps the model to a Python file of the checkpoint asks for remote code."""
    proof = folder / "proof"
    (folder / "modeling_trap.py").write_text(f"open({str(proof)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "trap", "auto_map": {"AutoModelForCausalLM": "modeling_trap.Trap"}}
    (folder / "config.json").write_text(json.dumps(config))
    assert "code" in refusal(folder)
    assert not proof.exists()


def test_a_path_that_is_not_there() -> None:
    message = refusal(Path("/no/such/folder"))
    assert "there is no such folder" in message


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for what can't be had, with the headers that huggingface_hub reads."""

    ANSWERS = {  # noqa: RUF012
        "/somebody/missing": (401, "RepoNotFound", "Repository not found"),
        "/somebody/gone": (404, "RepoNotFound", "Repository not found"),
        "/somebody/gated": (401, "GatedRepo", "Access to this model is restricted"),
        "/somebody/forbidden": (403, "GatedRepo", "Your request is awaiting a review"),
    }

    def do_GET(self) -> None:
        path = self.path.removeprefix("/api/models")
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
from transformers import AutoModelForCausalLM
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.weights import load_model
messages = {}
for name in sys.argv[1:]:
    try:
        load_model(AutoModelForCausalLM.from_pretrained, name)
    except ModelUnavailable as error:
        messages[name] = str(error)
print(json.dumps(messages))
"""


def ask(endpoint: str, home: Path, *names: str) -> dict[str, str]:
    """What somebody is told who wants these models from a hub at `endpoint`, with an empty cache and no token."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    for variable in ("HF_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        environment.pop(variable, None)
    result = subprocess.run([sys.executable, "-c", ASK, *names], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    messages = json.loads(result.stdout)
    assert set(messages) == set(names)
    for name, message in messages.items():
        assert "\n" not in message
        assert repr(name) in message
    return messages


def test_what_the_hub_refuses(hub: str, tmp_path: Path) -> None:
    names = ("somebody/missing", "somebody/gone", "somebody/gated", "somebody/forbidden", "not a model id")
    messages = ask(hub, tmp_path, *names)
    for name in ("somebody/missing", "somebody/gone"):
        assert "does not exist on the hub" in messages[name]
        assert "HF_TOKEN" in messages[name]
    for name in ("somebody/gated", "somebody/forbidden"):
        assert f"is gated: accept its licence on https://huggingface.co/{name}" in messages[name]
        assert "HF_TOKEN" in messages[name]
    assert "there is no such folder" in messages["not a model id"]


def test_no_network(tmp_path: Path) -> None:
    """Port 9 (discard) refuses the connection, as a machine without a network does at once."""
    messages = ask("http://127.0.0.1:9", tmp_path, "somebody/missing")
    assert "the hub can't be reached" in messages["somebody/missing"]
