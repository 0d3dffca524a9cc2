"""Loads models that the operator names while others serve, and unloads them.

A load is a thread with three parts: another process checks and downloads the model (`fetching.py`), another one
compiles its programs, and this one loads it. One load runs at a time. What fails or is cancelled leaves nothing behind,
neither memory nor a download. `operator.py` decides who may.
"""

import contextlib
import json
import logging
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from hfjax_app.backends.backend import Backend, in_words
from hfjax_app.backends.child_process import command, environment
from hfjax_app.backends.models import KINDS
from hfjax_app.errors import ModelUnavailable, NotFound, RequestRejected, without_folders
from hfjax_app.runtime.checkpoints.hub import cached_folder
from hfjax_app.runtime.memory import free_memory

if TYPE_CHECKING:
    from hfjax_app.backends.registry import Backends

_log = logging.getLogger(__name__)

LOADED_KINDS = ("chat", "images")
_CANCELLED = "cancelled by the operator"


class Load:
    """One load, from its beginning to its end.

    Attributes:
        backend: the model; of a load that failed it is gone from the app.
        error: why it failed, in one line; None while it has not.
    """

    def __init__(self, backend: Backend[Any]):
        self.backend = backend
        self.error: str | None = None
        self.is_cancelled = False
        self._done = threading.Event()
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def state(self) -> str:
        """As of a backend."""
        return self.backend.state if self.error is None else "failed"

    @property
    def progress(self) -> str:
        """For a status line."""
        return self.backend.progress if self.error is None else f"failed: {self.error}"

    def wait(self, timeout: float | None = None) -> bool:
        return self._done.wait(timeout)

    def end(self) -> None:
        self._done.set()

    def run(self, arguments: list[str]) -> None:
        """Run the process that fetches the model, and tell its progress.

        Raises:
            ModelUnavailable: what the process says.
        """
        with tempfile.TemporaryFile("w+") as errors:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
            )
            if self.is_cancelled:  # `cancel` may have come before this process
                self._process.terminate()
            assert self._process.stdout is not None
            with self._process.stdout as lines:
                for line in lines:
                    self._tell(line)
            if status := self._process.wait():
                errors.seek(0)
                said = [line for line in errors.read().splitlines() if line.startswith("error: ")]
                raise ModelUnavailable((said or [f"error: exit status {status}"])[-1].removeprefix("error: "))

    def _tell(self, line: str) -> None:
        match json.loads(line):
            case {"stage": "checked", "architecture": architecture, "download": download}:
                size = f", {_gb(download)} to download" if download else ""
                self.backend.prepare(f"{architecture} can run and fits{size}")
            case {"stage": "downloading", "here": here, "whole": whole} if whole:
                self.backend.prepare(f"downloading, {_gb(here)} of {_gb(whole)}", here / whole)

    def cancel(self) -> None:
        self.is_cancelled = True
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.terminate()
        self.backend.stop(_CANCELLED)


class ModelLoads:
    """The loads of an app.

    Args:
        backends: to which loaded models are added.

    Attributes:
        current: the load that runs, or the last one; None before the first.
    """

    def __init__(self, backends: "Backends"):
        self._backends = backends
        self._changing = threading.Lock()
        self._downloads: dict[tuple[str, str], Path] = {}  # kind and name of a model -> its folder in the hub's cache
        self._is_stopped = False
        self.current: Load | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a load runs."""
        return self.current is not None and not self.current.is_done

    def begin(self, kind: str, model: str) -> Load:
        """Begin to load a model.

        Args:
            kind: "chat" or "images".
            model: see `Operator.checked_model`.

        Raises:
            RequestRejected: an unknown kind, another load runs, or a model of this name is there.
        """
        _check_kind(kind)
        with self._changing:
            if self._is_stopped:
                raise RequestRejected("the server is stopping: try again in a moment")
            if self.current is not None and self.is_busy:
                raise RequestRejected(f"{self.current.backend.name!r} is being loaded: wait for it, or cancel that")
            load = self.current = Load(self._backends.hold(kind, model))
        threading.Thread(target=self._run, args=(load,), name="model-load", daemon=True).start()
        return load

    def cancel(self) -> None:
        """Cancel the load that runs.

        Raises:
            RequestRejected: none runs.
        """
        if self.current is None or not self.is_busy:
            raise RequestRejected("no model is being loaded")
        self._backends.abandon(self.current.backend)
        self.current.cancel()

    def unload(self, kind: str, name: str) -> None:
        """Unload a model: its requests get an error, its memory is free, and what was downloaded for it is gone.

        Raises:
            RequestRejected: an unknown kind, or no other model of its kind is ready.
            NotFound: there is no such model.
        """
        _check_kind(kind)
        models = self._backends.models(kind)
        backend = models.find(name)
        if self.current is not None and self.is_busy and backend is self.current.backend:
            raise RequestRejected(f"{name!r} is being loaded: cancel that")
        if not any(other.state == "ready" for other in models if other is not backend):
            raise RequestRejected(f"{name!r} is the only {kind} model that is ready: load another one first")
        self._remove(backend)
        _log.info("%s model %s was unloaded", kind, name)

    def stop(self) -> None:
        """Cancel what runs, and begin nothing more."""
        with self._changing:
            self._is_stopped = True
        if self.current is not None and self.is_busy:
            self.current.cancel()

    def _run(self, load: Load) -> None:
        backend = load.backend
        download = cached_folder(backend.model)
        if download is not None and not download.exists():
            self._downloads[backend.kind, backend.name] = download
        try:
            backend.prepare("waiting for the app's own models")
            self._backends.wait_for_all_models()
            backend.prepare("checking whether it can run and fits")
            load.run(self._command(backend))
            self._backends.warm_up_beside(backend, fits=True)
            if backend.state != "ready":
                raise ModelUnavailable(str(backend.error))
        except Exception as error:
            reason = without_folders(in_words(error).replace(backend.model, backend.name))
            load.error = _CANCELLED if load.is_cancelled else reason
            _log.warning("%s model %s was not loaded: %s", backend.kind, backend.model, load.error)
            with contextlib.suppress(NotFound):  # it is gone already
                self._remove(backend)
        finally:
            load.end()

    def _remove(self, backend: Backend[Any]) -> None:
        self._backends.abandon(backend)
        self._backends.remove(backend.kind, backend.name)
        if (folder := self._downloads.pop((backend.kind, backend.name), None)) is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def _command(self, backend: Backend[Any]) -> list[str]:
        settings, devices = self._backends.settings, jax.local_devices()
        flags: dict[str, object] = {
            f"{KINDS[backend.kind]}-model": backend.model,
            "devices": f"{devices[0].platform}:{len(devices)}",
            "free": free_memory(),
        }
        names = ("slots", "context", "dtype", "quantize", "image_quantize", "image_sizes")
        return command("fetch", flags | {name: getattr(settings, name) for name in names})


def _check_kind(kind: object) -> None:
    if kind not in LOADED_KINDS:
        raise RequestRejected(f"kind = {kind!r}: one of {', '.join(LOADED_KINDS)}")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
