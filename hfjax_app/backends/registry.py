"""All models of an app: those of the settings, and models that are added and removed while others serve.

The first models of each kind are loaded and traced one after the other, each while the programs of earlier ones are
compiled. Chat is first, so that it is ready as early as possible. The others follow when these have all their programs,
as far as memory goes. A model that fails reports the reason and does not affect the others. `loaders.py` loads
them.

A model that stops while it serves is logged with its cause and started again, at most once a minute (`Watch`). After
MOST_DEATHS within DEATHS_S the process should end: its device is likely to be broken.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax

from hfjax_app.backends.backend import KINDS, Backend, Loader, Models, in_words
from hfjax_app.backends.budget import bytes_on_first, no_room, planner_for, refusals
from hfjax_app.backends.later_programs import LaterPrograms
from hfjax_app.backends.loaders import is_staged, loader_of
from hfjax_app.backends.model_bundles import model_bundle, prune_bundles
from hfjax_app.backends.model_loads import ModelLoads, Operator
from hfjax_app.chat.interface import ChatModel
from hfjax_app.errors import HfjaxError, RequestRejected
from hfjax_app.images.interface import ImageModel
from hfjax_app.runtime import tracing
from hfjax_app.runtime.compiler_events import CompilerCount
from hfjax_app.runtime.memory import free_memory
from hfjax_app.runtime.mesh import accelerator_memory, devices_in_words
from hfjax_app.runtime.process import collect_removed, freeze_objects, keep_compiled, prepare
from hfjax_app.runtime.topology import memory_of
from hfjax_app.sentiment.interface import SentimentModel
from hfjax_app.settings import Settings

_log = logging.getLogger(__name__)


class Backends:
    """The models of an app.

    Args:
        settings: the models, the number of slots, the folder of the compile cache.
        kinds: those of KINDS that this process has; the others have no models.
        loader: how models of a kind are loaded.

    Attributes:
        chat_models, sentiment_models, image_models: by name, the settings' own first.
        compiler: counts the compilations of all models from `start` on.
        operator, loads: who may load other models, and their loads.
        takes_models: whether models can be added while it runs.
        compiled_for_warm_up: those up to the end of the warm-up; None before that.
    """

    takes_models = True

    def __init__(
        self,
        settings: Settings,
        *,
        kinds: Collection[str] = KINDS,
        loader: Callable[[str, Settings], Loader[Any]] = loader_of,
    ):
        self.settings, self.compiler = settings, CompilerCount()
        self.chat_models: Models[ChatModel] = Models("chat", loader("chat", settings))
        self.sentiment_models: Models[SentimentModel] = Models("sentiment", loader("sentiment", settings))
        self.image_models: Models[ImageModel] = Models("images", loader("images", settings))
        chosen = (settings.chat_models, [settings.sentiment_model], settings.image_models)
        for models, names in zip(self.kinds, chosen, strict=True):
            for model in names if models.kind in kinds else ():
                models.add(name_of(model), model)
        self._thread = threading.Thread(target=self._warm_up, name="warm-up", daemon=True)
        self._prepared, self._settled = threading.Event(), threading.Event()
        self._adding: list[threading.Thread] = []
        self._beside = threading.Lock()  # one model at a time is added to those that serve
        self._later = LaterPrograms(settings)
        self.operator, self.loads = Operator(settings), ModelLoads(self)
        self.compiled_for_warm_up: int | None = None

    @property
    def chat(self) -> Backend[ChatModel]:
        """The first chat model."""
        return self.chat_models.first

    @property
    def sentiment(self) -> Backend[SentimentModel]:
        """The first classifier."""
        return self.sentiment_models.first

    @property
    def images(self) -> Backend[ImageModel]:
        """The first text-to-image pipeline."""
        return self.image_models.first

    @property
    def kinds(self) -> tuple[Models[Any], ...]:
        return self.chat_models, self.sentiment_models, self.image_models

    @property
    def all(self) -> tuple[Backend[Any], ...]:
        """Every model, kind by kind."""
        return tuple(backend for models in self.kinds for backend in models)

    def start(self) -> "Backends":
        """Start the warm-up in the background."""
        self.compiler.start()
        self._thread.start()
        return self

    def add(self, kind: str, model: str, *, name: str | None = None) -> Backend[Any]:
        """Add a model beside those that serve; it warms up in the background, once the app has started.

        A model that does not fit beside the others fails, with the reason.

        Args:
            kind: "chat", "sentiment" or "images".
            model: an embedded model's name, a folder, or a hub id.
            name: the name in requests; None: from `name_of`.

        Raises:
            RequestRejected: an unknown kind, or the name is taken.
        """
        backend = self.hold(kind, model, name=name)
        if self._thread.ident is not None:  # before that, `start` warms it up with the others
            thread = threading.Thread(target=self._warm_up_later, args=(backend,), name=f"warm-up-{kind}", daemon=True)
            self._adding = [*(other for other in self._adding if other.is_alive()), thread]
            thread.start()
        return backend

    def hold(self, kind: str, model: str, *, name: str | None = None) -> Backend[Any]:
        """Add a model that `warm_up_beside` will warm up; arguments and errors as for `add`."""
        return self.models(kind).add(name or name_of(model), model)

    def abandon(self, backend: Backend[Any]) -> None:
        """End the process that compiles programs for this model alone, if there is one."""
        self._later.abandon(backend)

    def remove(self, kind: str, name: str) -> None:
        """Stop serving a model and free its memory; its running requests get an error.

        Raises:
            RequestRejected: an unknown kind or name, or the only model of its kind.
        """
        backend = self.models(kind).remove(name)
        backend.stop("this model was removed")
        backend.drop()
        collect_removed()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the first models of all kinds are ready or failed, at most `timeout` seconds.

        Returns:
            Whether they are. A ready model may get more programs afterwards.
        """
        return self._settled.wait(timeout)

    def wait_for_all_models(self, timeout: float | None = None) -> bool:
        """The same for every model."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for thread in (self._thread, *self._adding):
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in (self._thread, *self._adding))

    def wait_for_all_programs(self, timeout: float | None = None) -> bool:
        """Block until every model has all its programs, or those that can be had; returns whether that is so."""
        return self.wait_for_all_models(timeout) and self._later.wait(timeout)

    def stop(self) -> None:
        """Stop serving."""
        self.loads.stop()
        self._later.stop()
        for backend in self.all:
            backend.stop()

    def processes(self, kind: str) -> int:
        """How many processes serve the models of a kind: this one."""
        return 1

    def device(self) -> str:
        """The devices as text, such as "4 x TPU v5 lite" or "CPU".

        "starting" until the warm-up has found them (the hosts of a slice wait for each other), "none" if that failed.
        """
        if self._thread.is_alive() and not self._prepared.is_set() and not self._settled.is_set():
            return "starting"
        try:
            prepare(self.settings.cache_dir)
        except Exception:  # the backends report the reason
            return "none"
        return devices_in_words()

    def models(self, kind: str) -> Models[Any]:
        """The models of a kind.

        Raises:
            RequestRejected: an unknown kind.
        """
        for models in self.kinds:
            if models.kind == kind:
                return models
        raise RequestRejected(f"kind = {kind!r}: one of {', '.join(models.kind for models in self.kinds)}")

    def _warm_up(self) -> None:
        try:
            prepare(self.settings.cache_dir)
            self._prepared.set()
            self._check_budget()
        except Exception as error:  # for example jax's cache in a bucket: nothing can be served
            for backend in self.all:
                backend.refuse(in_words(error))
            self._settled.set()
            return
        firsts = [models.first for models in self.kinds if len(models)]
        others = [backend for backend in self.all if backend not in firsts]
        threads = []
        for backend in firsts:
            if backend.state != "failed":
                started = threading.Event()
                name = f"warm-up-{backend.kind}"
                threads.append(threading.Thread(target=backend.warm_up, args=(started.set,), name=name, daemon=True))
                threads[-1].start()
                started.wait()  # so that the next one queues after it
        for thread in threads:
            thread.join()
        keep_compiled()
        prune_bundles()
        freeze_objects()
        self._later.take(firsts)
        self.compiled_for_warm_up = self.compiler.compilations
        self._settled.set()
        if others:
            self._later.wait()
        for backend in others:
            self.warm_up_beside(backend)

    def _warm_up_later(self, backend: Backend[Any]) -> None:
        """Warm up an added model, after the settings' own."""
        self._thread.join()
        self.warm_up_beside(backend)

    def warm_up_beside(self, backend: Backend[Any], *, fits: bool = False) -> None:
        """Warm up a model while others serve. Where that is possible, another process traces it.

        Args:
            backend: the model; it fails if it has no room.
            fits: whether there is known to be room for it.
        """
        with self._beside:
            if backend.is_settled or not self._prepared.is_set():
                return
            if not fits and (reason := self._no_room(backend)) is not None:
                _log.warning("%s", reason)
                backend.refuse(reason)
                return
            before = self.compiler.compilations
            if is_staged() and not self._has_programs(backend):
                self._later.compile_before(backend)
            backend.warm_up()
            keep_compiled()
            self._later.take([backend])
            if self.compiled_for_warm_up is not None:
                self.compiled_for_warm_up += self.compiler.compilations - before

    def _has_programs(self, backend: Backend[Any]) -> bool:
        """Whether an earlier start has left programs of this model."""
        try:
            bundle = model_bundle(backend.kind, backend.model, self.settings)
        except HfjaxError:  # which its warm-up will meet again
            return True
        return bundle is None or bool(bundle.names())

    def _no_room(self, backend: Backend[Any]) -> str | None:
        """Why a model does not fit beside those that serve; None where it does, or can't be read."""
        devices = jax.local_devices()
        try:
            with tracing.hold():
                planner = planner_for(
                    KINDS[backend.kind], backend.model, self.settings, devices[0].platform, len(devices)
                )
                size = bytes_on_first(planner, len(devices), memory_of(devices[0]))
        except Exception:  # its warm-up fails with the reason
            return None
        return no_room(backend.kind, backend.name, size, free_memory())

    def _check_budget(self) -> None:
        """Refuse models that do not fit this machine's accelerators together, before any is loaded."""
        if (memory := accelerator_memory()) is None:
            return
        settings = self.settings
        kinds: dict[str, Backend[Any]] = {KINDS[models.kind]: models.first for models in self.kinds if len(models)}
        refused = refusals(
            {kind: backend.model for kind, backend in kinds.items()},
            devices=jax.local_device_count(),
            memory=memory,
            slots=settings.slots,
            context=settings.context,
            dtype="bfloat16" if settings.dtype == "auto" else settings.dtype,
            quantize=settings.quantize,
            image_quantize=settings.image_quantize,
            image_text_encoders=settings.image_text_encoders,
        )
        for kind, reason in refused.items():
            kinds[kind].refuse(reason)


def name_of(model: str) -> str:
    """A model's display name: a hub id or an embedded model's name unchanged, the last part of a folder."""
    path = Path(model)
    return path.resolve().name if path.is_absolute() or model.startswith((".", "~")) or path.is_dir() else model


LOOK_S = 0.5
RESTART_S = 60.0  # the least time between two restarts
MOST_DEATHS, DEATHS_S = 3, 600.0


class Watch:
    """A thread that looks at every model twice a second.

    Args:
        backends: the models.
        give_up: called once, with the reason, when a model has died too often.
    """

    def __init__(self, backends: Backends, give_up: Callable[[str], None]):
        self._backends, self._give_up = backends, give_up
        self._deaths: deque[float] = deque()
        self._restarted = -RESTART_S
        self._known: set[tuple[int, int]] = set()  # deaths that were logged: the model, and which of its lives
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> "Watch":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            for backend in self._backends.all:
                if backend.has_died and not self._tended(backend):
                    return

    def _tended(self, backend: Backend[Any]) -> bool:
        """Log a death and start the model again, if it is time; False if it has died too often."""
        now = time.monotonic()
        if (death := (id(backend), backend.restarts)) not in self._known:
            self._known.add(death)
            self._deaths.append(now)
            _log.error("%s model %s died: %s", backend.kind, backend.name, backend.error)
            while now - self._deaths[0] > DEATHS_S:
                self._deaths.popleft()
            if len(self._deaths) >= MOST_DEATHS:
                reason = f"{backend.kind} died {MOST_DEATHS} times in {DEATHS_S / 60:g} minutes: {backend.error}"
                self._give_up(reason)
                return False
        if now - self._restarted >= RESTART_S:
            self._restarted = now
            backend.restart()
            if not backend.has_died:
                _log.warning("%s model %s was started again", backend.kind, backend.name)
        return True
