"""The programs that join models while they serve: from bundles, and from a process of low priority that fills them.

Tracing holds Python's lock for seconds and would stop every stream, so another process does it. It reads configs and no
weights, and keeps each program in the bundle as soon as it is compiled.
"""

import contextlib
import json
import logging
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from hfjax_app.backends.backend import KINDS, Backend
from hfjax_app.backends.model_loads import command, environment
from hfjax_app.runtime.process import keep_compiled
from hfjax_app.runtime.topology import topology_here
from hfjax_app.settings import Settings

_log = logging.getLogger(__name__)

_LOWEST = 19  # nice
_ENDING_S = 5.0


class LaterPrograms:
    """A thread that gives ready models their missing programs, in the order in which models were handed over.

    Args:
        settings: of the app; the process gets the same.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self._models: queue.Queue[Sequence[Backend[Any]]] = queue.Queue()
        self._stopping = threading.Event()
        self._processes: dict[subprocess.Popen[str], Sequence[Backend[Any]]] = {}
        self._thread: threading.Thread | None = None

    def take(self, backends: Sequence[Backend[Any]]) -> None:
        """Complete these models after those that were taken before."""
        self._models.put(backends)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="later-programs", daemon=True)
            self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until nothing is left or wanted, at most `timeout` seconds; returns whether that is so."""
        with self._models.all_tasks_done:
            return self._models.all_tasks_done.wait_for(
                lambda: self._stopping.is_set() or not self._models.unfinished_tasks, timeout
            )

    def compile_before(self, backend: Backend[Any]) -> None:
        """Compile the programs of a model into its bundle before this process loads it."""
        backend.prepare("its programs are compiled by another process")
        for count, _ in enumerate(self._compiled_elsewhere([backend]), 1):
            backend.prepare(f"its programs are compiled by another process, {count} so far")

    def abandon(self, backend: Backend[Any]) -> None:
        """End the process that compiles for this model alone, if there is one."""
        for process, backends in tuple(self._processes.items()):
            if [*backends] == [backend]:
                self._processes.pop(process, None)
                process.terminate()

    def stop(self) -> None:
        """End the process, if it runs, and do no more. May be called twice."""
        self._stopping.set()
        with self._models.all_tasks_done:
            self._models.all_tasks_done.notify_all()
        for process in tuple(self._processes):
            process.terminate()
            try:
                process.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _run(self) -> None:
        while not self._stopping.is_set():
            backends = self._models.get()
            self._complete(backends)
            del backends  # of a removed model nothing may be held here
            self._models.task_done()

    def _complete(self, backends: Sequence[Backend[Any]]) -> None:
        for backend in backends:
            for name in backend.missing:
                if not self._stopping.is_set():
                    backend.join(name)
        backends = [backend for backend in backends if backend.missing]
        if not backends or self._stopping.is_set():
            return
        for kind, model, name in self._compiled_elsewhere(backends):
            for backend in backends:
                if (backend.kind, backend.model) == (kind, model):
                    backend.join(name)
        for backend in backends:
            for name in backend.missing:
                if not self._stopping.is_set():
                    backend.compile(name)  # the process failed, or could not keep it
            if backend.missing:
                backend.give_up("the others can't be compiled")
        keep_compiled()

    def _compiled_elsewhere(self, backends: Sequence[Backend[Any]]) -> Iterator[tuple[str, str, str]]:
        """Kind, model and name of each program that the process keeps in a bundle."""
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                self._command(backends),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
            )
            self._processes[process] = backends
            if self._stopping.is_set():  # `stop` may have come before this process
                process.terminate()
            with contextlib.suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST)
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    found = json.loads(line)
                    yield found["kind"], found["model"], found["name"]
            status = process.wait()
            is_wanted = self._processes.pop(process, None) is not None
            if status and is_wanted and not self._stopping.is_set():
                errors.seek(0)
                reason = (errors.read().strip().splitlines() or [f"exit status {status}"])[-1]
                _log.warning("the process that compiles programs failed, so this one does it: %s", reason)

    def _command(self, backends: Sequence[Backend[Any]]) -> list[str]:
        settings = self._settings
        flags: dict[str, object] = {
            f"{flag}-model": ",".join(dict.fromkeys(backend.model for backend in backends if backend.kind == kind))
            for kind, flag in KINDS.items()
        }
        names = ("slots", "context", "dtype", "quantize", "image_quantize", "image_text_encoders")
        flags |= {name: getattr(settings, name) for name in names}
        flags |= {"image-sizes": settings.image_sizes, "topology": topology_here(), "cache-dir": settings.cache_dir}
        return command("compile", flags)
