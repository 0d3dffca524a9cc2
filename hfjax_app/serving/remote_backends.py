"""The models of the app as its ingress has them: each is ready while replicas of it run."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hfjax_app.backends import Backend, Backends
from hfjax_app.backends.backend import Watcher
from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.serving.remote_models import RemoteChat, RemoteImages, RemoteSentiment
from hfjax_app.serving.replica import Description
from hfjax_app.serving.replica_calls import ReplicaCalls
from hfjax_app.settings import Settings

_log = logging.getLogger(__name__)

LOOK_S = 0.5
_MODELS: Mapping[str, Callable[[ReplicaCalls, Mapping[str, Any]], "RemoteModel"]] = {
    "chat": RemoteChat,
    "sentiment": RemoteSentiment,
    "images": RemoteImages,
}


class RemoteModel(Protocol):
    """A model whose replicas are other processes."""

    @property
    def calls(self) -> ReplicaCalls: ...


class RemoteLoader:
    """Waits for the replicas of models of one kind. Ray loads, watches, stops and starts them.

    Args:
        kind: of model.
        calls: of the replicas, by model.

    Attributes:
        devices: that the replicas compute on, by model; of those that had a replica.
    """

    def __init__(self, kind: str, calls: Mapping[str, ReplicaCalls]):
        self._kind, self._calls = kind, calls
        self.devices: dict[str, str] = {}

    def load(self, model: str, watcher: Watcher) -> RemoteModel:
        """Blocks until a replica runs, however long that takes.

        Raises:
            ModelUnavailable: none can be started.
        """
        calls = self._calls[model]
        description: Description = calls.ask_from_thread("describe")
        watcher.expect([report.name for report in description.reports], len(description.reports))
        for report in description.reports:
            watcher.record(report)
        self.devices[model] = description.device
        return _MODELS[self._kind](calls, description.facts)

    def warm_up(self, served: RemoteModel) -> None:
        """Programs are the replicas' own."""

    def held_memory(self, served: RemoteModel) -> None:
        """The replicas' memory is theirs."""

    def failure(self, served: RemoteModel) -> str | None:
        return None if served.calls.running else "no replica of it runs; Ray starts another one"

    def restart(self, served: RemoteModel) -> None:
        if reason := self.failure(served):
            raise ModelUnavailable(reason)

    def stop(self, served: RemoteModel) -> None:
        """Ray stops replicas."""

    def running(self, model: str) -> int:
        """Replicas of a model that answer."""
        return self._calls[model].running


class RemoteBackends(Backends):
    """The same as Backends, without any computation in this process.

    Args:
        settings: of one machine.
        calls: of the replicas, by kind of model and by model.
    """

    takes_models = False

    def __init__(self, settings: Settings, calls: Mapping[str, Mapping[str, ReplicaCalls]]):
        self._loaders = {kind: RemoteLoader(kind, each) for kind, each in calls.items()}
        super().__init__(settings, loader=lambda kind, _: self._loaders[kind])

    def start(self) -> "RemoteBackends":
        for backend in self.all:
            threading.Thread(target=backend.load, name=f"await-{backend.kind}", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        return self

    def hold(self, kind: str, model: str, *, name: str | None = None) -> Backend[Any]:
        """Refuse another model: each has a deployment of its own."""
        raise RequestRejected("models are Ray's deployments here: name them in the settings and deploy again")

    def processes(self, kind: str) -> int:
        """The replicas of all models of this kind that answer."""
        return max(1, sum(self._loaders[kind].running(backend.model) for backend in self.all if backend.kind == kind))

    def device(self) -> str:
        """The devices of all replicas, such as "2 replicas on 4 x TPU v6 lite, 1 replica on CPU"."""
        counts: dict[str, int] = {}
        for loader in self._loaders.values():
            for model, device in loader.devices.items():
                counts[device] = counts.get(device, 0) + loader.running(model)
        shown = [f"{count} replica{'s' * (count != 1)} on {device}" for device, count in counts.items()]
        return ", ".join(shown) or "starting"

    def _watch(self) -> None:
        """A model whose last replica has gone serves again when there is another one."""
        pause = threading.Event()
        while not pause.wait(LOOK_S):
            for backend in self.all:
                if backend.has_died and self._loaders[backend.kind].running(backend.model):
                    backend.restart()
                    _log.warning("%s model %s has a replica again", backend.kind, backend.name)
