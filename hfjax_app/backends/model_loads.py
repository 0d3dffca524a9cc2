"""Loads models that the operator names while others serve, and unloads them.

A load is a thread with three parts: another process checks and downloads the model (`hfjax fetch`, which calls
`fetch_model`), another one compiles its programs, and this one loads it. One load runs at a time. What fails or is
cancelled leaves nothing behind, neither memory nor a download.

A config may be large, wrong or hostile, and a download long: the process that serves only reads the lines that the
other one writes, and can end it. The operator's key is always asked for, also on a loopback address: strangers behind
a proxy of this machine come from there too.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from huggingface_hub import constants

from hfjax_app.attempts import Attempts
from hfjax_app.backends.backend import KINDS, Backend, in_words
from hfjax_app.backends.budget import bytes_on_first, in_bytes, no_room, planner_for
from hfjax_app.embedded import MODELS, resolve
from hfjax_app.errors import ModelUnavailable, NotAllowed, NotFound, RequestRejected, without_folders
from hfjax_app.limits import OPERATOR_MAX_CHARACTERS
from hfjax_app.runtime.checkpoints.hub import OnBytes, cached_folder, is_gated
from hfjax_app.runtime.memory import free_memory
from hfjax_app.settings import PREFIX, SECRET, Settings
from hfjax_app.validation import checked_text, quoted

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
        self.is_cancelled = False
        self._end: Future[str | None] = Future()  # with its error, at once
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_done(self) -> bool:
        return self._end.done()

    @property
    def error(self) -> str | None:
        return self._end.result() if self.is_done else None

    @property
    def state(self) -> str:
        """As of a backend."""
        return self.backend.state if self.error is None else "failed"

    @property
    def progress(self) -> str:
        """For a status line."""
        return self.backend.progress if self.error is None else f"failed: {self.error}"

    def wait(self, timeout: float | None = None) -> bool:
        return bool(wait([self._end], timeout).done)

    def end(self, error: str | None) -> None:
        self._end.set_result(error)

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
        error = None
        try:
            backend.prepare("waiting for the app's own models")
            self._backends.wait_for_all_models()
            backend.prepare("checking whether it can run and fits")
            load.run(self._command(backend))
            self._backends.warm_up_beside(backend, fits=True)
            if backend.state != "ready":
                raise ModelUnavailable(str(backend.error))
        except Exception as failure:
            reason = without_folders(in_words(failure).replace(backend.model, backend.name))
            error = _CANCELLED if load.is_cancelled else reason
            _log.warning("%s model %s was not loaded: %s", backend.kind, backend.model, error)
            with contextlib.suppress(NotFound):  # it is gone already
                self._remove(backend)
        finally:
            load.end(error)

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
        names = ("slots", "context", "dtype", "quantize", "image_quantize", "image_text_encoders", "image_sizes")
        return command("fetch", flags | {name: getattr(settings, name) for name in names})


def _check_kind(kind: object) -> None:
    if kind not in LOADED_KINDS:
        raise RequestRejected(f"kind = {kind!r}: one of {', '.join(LOADED_KINDS)}")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)


class Operator:
    """The operator's key and folders.

    Args:
        settings: `operator_key`, `operator_folders`, and the address.

    Attributes:
        one_time_key: what the server prints at its start; None where the setting has a key, or no key opens it.
    """

    def __init__(self, settings: Settings):
        makes_one = not settings.operator_key and settings.is_local
        self.one_time_key = secrets.token_urlsafe(18) if makes_one else None
        key = self.one_time_key or settings.operator_key
        self._digest = _digest(key) if key else None
        self._attempts = Attempts("operator's keys")
        named = [Path(name.strip()) for name in settings.operator_folders.split(",") if name.strip()]
        usual = [Path("/")] if settings.is_local else []
        self._folders = [folder.expanduser().resolve() for folder in named or usual]

    @property
    def has_key(self) -> bool:
        """Whether models can be loaded at all."""
        return self._digest is not None

    def check(self, key: object, client: str) -> None:
        """Let the operator in. The time does not depend on how nearly right a key is.

        Args:
            key: what a client sent, of any type.
            client: its id.

        Raises:
            NotAllowed: a wrong key, or there is none.
            Overloaded: too many keys of this client were wrong.
        """
        if self._digest is None:
            raise NotAllowed("no models are loaded here while the server runs: HFJAX_OPERATOR_KEY is not set")
        forgive = self._attempts.begin(client)
        if not isinstance(key, str) or not hmac.compare_digest(_digest(key), self._digest):
            raise NotAllowed(
                "this is not the operator's key: the server printed it at its start, or HFJAX_OPERATOR_KEY is it"
            )
        forgive()

    def checked_model(self, model: object) -> str:
        """The model that the operator names: an embedded one's name, a whole path, or a hub id.

        Args:
            model: what a client sent, of any type.

        Raises:
            RequestRejected: it can't be a model.
            NotAllowed: a folder outside of `operator_folders`, whether it exists or not.
        """
        name = checked_text(model, "model", OPERATOR_MAX_CHARACTERS).strip()
        if "," in name:
            raise RequestRejected(f"model {quoted(name)}: one model at a time, whose name has no comma")
        if name in MODELS:
            return name
        path = Path(name)
        if path.is_absolute() or name.startswith((".", "~")) or "\\" in name or path.exists():
            return self._checked_folder(name)
        if not _HUB_ID.fullmatch(name):
            raise RequestRejected(f"model {quoted(name)}: name a folder by its whole path, or a hub id as owner/name")
        return name

    def _checked_folder(self, name: str) -> str:
        try:
            path = Path(name).expanduser().resolve()
        except (OSError, RuntimeError):  # a ring of links, or ~ of an unknown user
            raise RequestRejected(f"model {quoted(name)}: there is no such folder") from None
        if not any(path.is_relative_to(folder) for folder in self._folders):
            raise NotAllowed(f"model {quoted(name)}: only folders in HFJAX_OPERATOR_FOLDERS may be named, and hub ids")
        if not path.is_dir():
            raise RequestRejected(f"model {quoted(name)}: there is no such folder")
        return str(path)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()


def fetch_model(
    kind: str,
    model: str,
    settings: Settings,
    *,
    platform: str = "cpu",
    devices: int = 1,
    free: int | None = None,
    on_checked: Callable[[dict[str, Any]], None] = lambda found: None,
    on_bytes: OnBytes | None = None,
) -> None:
    """Check a model, and download what is not here.

    Args:
        kind: "chat", "image" or "sentiment".
        model: an embedded model's name, a folder, or a hub id.
        settings: of the app that will serve it.
        platform, devices: what it will be served on, see `planner_for`.
        free: bytes that the fullest device has left; None: unknown.
        on_checked: called before the download, with the architecture, the bytes that it needs on the first device, the
            bytes of the download, and whether it is gated (None: unknown).
        on_bytes: see `hub.fetch`.

    Raises:
        ModelUnavailable: it can't run, does not fit the memory or the disk, or can't be downloaded; says why.
    """
    planner = planner_for(kind, model, settings, platform, devices)
    needed = bytes_on_first(planner, devices, free)
    if (reason := no_room(kind, model, needed, free)) is not None:
        raise ModelUnavailable(reason)
    download = planner.missing_bytes()
    if download and download > (room := shutil.disk_usage(_existing(Path(constants.HF_HUB_CACHE))).free):
        raise ModelUnavailable(
            f"model {model!r}: its download has {in_bytes(download)}, and the disk has {in_bytes(room)} left for "
            f"{constants.HF_HUB_CACHE}: make room there, or set HF_HOME to a folder on another disk"
        )
    gated = is_gated(resolve(model))
    architecture = planner.facts.architecture
    on_checked({"architecture": architecture, "bytes": needed, "download": download, "gated": gated})
    planner.fetch(on_bytes)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


# Models of this app that are not that process's, and secrets, which a process that reads foreign files does not need.
_LEFT_OUT = {PREFIX + name.upper() for name in ("chat_model", "sentiment_model", "image_model", *SECRET)}


def command(name: str, flags: Mapping[str, object]) -> list[str]:
    """A command of this app that writes JSON lines; flags without a value are left out."""
    given = [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items() if value]
    return [sys.executable, "-m", "hfjax_app", name, "--json", *given]


def environment() -> dict[str, str]:
    """The variables of such a process."""
    return {name: value for name, value in os.environ.items() if name.upper() not in _LEFT_OUT}
