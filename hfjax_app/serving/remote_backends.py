"""The models of the app as its ingress has them: each is ready while replicas of it run."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hfjax_app.backends import Backends
from hfjax_app.backends.backend import Watcher
from hfjax_app.errors import ModelUnavailable
from hfjax_app.serving.remote_chat import RemoteChat
from hfjax_app.serving.remote_images import RemoteImages
from hfjax_app.serving.remote_sentiment import RemoteSentiment
from hfjax_app.serving.replica import Description
from hfjax_app.serving.replica_calls import ReplicaCalls
from hfjax_app.settings import Settings

_log = logging.getLogger(__name__)

LOOK_S = 0.5
_MODELS: Mapping[str, Callable[[ReplicaCalls, Mapping[str, Any]], Any]] = {
    "chat": RemoteChat,
    "sentiment": RemoteSentiment,
    "images": RemoteImages,
}


class RemoteLoader:
    """Waits for the replicas of a model. Ray loads, watches, stops and starts them.

    Args:
        kind: of model.
        calls: of the replicas.

    Attributes:
        device: that the replicas compute on; empty before the first one is there.
    """

    def __init__(self, kind: str, calls: ReplicaCalls):
        self._kind, self._calls = kind, calls
        self.device = ""

    def load(self, model: str, watcher: Watcher) -> Any:
        """Blocks until a replica runs, however long that takes.

        Raises:
            ModelUnavailable: none can be started.
        """
        description: Description = self._calls.ask_from_thread("describe")
        watcher.expect([report.name for report in description.reports], len(description.reports))
        for report in description.reports:
            watcher.record(report)
        self.device = description.device
        return _MODELS[self._kind](self._calls, description.facts)

    def warm_up(self, served: Any) -> None:
        """Programs are the replicas' own."""

    def failure(self, served: Any) -> str | None:
        return None if self._calls.running else "no replica of it runs; Ray starts another one"

    def restart(self, served: Any) -> None:
        if reason := self.failure(served):
            raise ModelUnavailable(reason)

    def stop(self, served: Any) -> None:
        """Ray stops replicas."""

    @property
    def running(self) -> int:
        """Replicas that answer."""
        return self._calls.running


class RemoteBackends(Backends):
    """The same as Backends, without any computation in this process.

    Args:
        settings: of one machine.
        calls: of the replicas of each kind of model.
    """

    def __init__(self, settings: Settings, calls: Mapping[str, ReplicaCalls]):
        self._loaders = {kind: RemoteLoader(kind, each) for kind, each in calls.items()}
        super().__init__(settings, loader=lambda kind, _: self._loaders[kind])

    def start(self) -> "RemoteBackends":
        for backend in self.all:
            threading.Thread(target=backend.load, name=f"await-{backend.kind}", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        return self

    def device(self) -> str:
        """The devices of all replicas, such as "3 x CPU", or "2 replicas: 4 x TPU v5 lite, 1 replica: CPU"."""
        counts: dict[str, int] = {}
        for loader in self._loaders.values():
            if loader.device:
                counts[loader.device] = counts.get(loader.device, 0) + loader.running
        shown = [f"{count} replica{'s' * (count != 1)} on {device}" for device, count in counts.items()]
        return ", ".join(shown) or "starting"

    def _watch(self) -> None:
        """A model whose last replica has gone serves again when there is another one."""
        pause = threading.Event()
        while not pause.wait(LOOK_S):
            for backend in self.all:
                if backend.has_died and self._loaders[backend.kind].running:
                    backend.restart()
                    _log.warning("%s model %s has a replica again", backend.kind, backend.name)
