"""All models of an app: those of the settings, and models that are added and removed while others serve.

They are loaded and traced one after the other, each while the programs of earlier ones are compiled. Chat is first, so
that it is ready as early as possible. A model that fails reports the reason and does not affect the others. Does not
load models itself: `loaders.py` does.
"""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfjax_app.backends.backend import Backend, in_words
from hfjax_app.backends.later_programs import LaterPrograms
from hfjax_app.backends.loaders import ChatLoader, ImageLoader, SentimentLoader
from hfjax_app.backends.models import Models
from hfjax_app.errors import RequestRejected
from hfjax_app.runtime.checkpoints.bundles import prune_bundles
from hfjax_app.runtime.process import collect_removed, freeze_objects, keep_compiled, prepare
from hfjax_app.runtime.programs import CompilerCount
from hfjax_app.settings import Settings

if TYPE_CHECKING:
    from hfjax_app.chat.assistant import ChatAssistant
    from hfjax_app.images.generator import ImageGenerator
    from hfjax_app.sentiment.classifier import SentimentClassifier


class Backends:
    """The models of an app.

    Args:
        settings: the models, the number of slots, the folder of the compile cache.

    Attributes:
        chat_models, sentiment_models, image_models: by name, the settings' own first.
        compiler: counts the compilations of all models from `start` on.
        compiled_for_warm_up: those up to the end of the warm-up; None before that.
    """

    def __init__(self, settings: Settings):
        self.settings, self.compiler = settings, CompilerCount()
        self.chat_models: Models[ChatAssistant] = Models("chat", ChatLoader(settings))
        self.sentiment_models: Models[SentimentClassifier] = Models("sentiment", SentimentLoader(settings))
        self.image_models: Models[ImageGenerator] = Models("images", ImageLoader(settings))
        self.chat_models.add(name_of(settings.chat_model), settings.chat_model)
        self.sentiment_models.add(name_of(settings.sentiment_model), settings.sentiment_model)
        self.image_models.add(name_of(settings.image_model), settings.image_model)
        self._thread = threading.Thread(target=self._warm_up, name="warm-up", daemon=True)
        self._prepared = threading.Event()
        self._later = LaterPrograms(settings)
        self.compiled_for_warm_up: int | None = None

    @property
    def chat(self) -> "Backend[ChatAssistant]":
        """The first chat model."""
        return self.chat_models.first

    @property
    def sentiment(self) -> "Backend[SentimentClassifier]":
        """The first classifier."""
        return self.sentiment_models.first

    @property
    def images(self) -> "Backend[ImageGenerator]":
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

        Does not check whether it fits beside the others; the engine refuses a model that does not fit alone.

        Args:
            kind: "chat", "sentiment" or "images".
            model: an embedded model's name, a folder, or a hub id.
            name: the name in requests; None: from `name_of`.

        Raises:
            RequestRejected: an unknown kind, or the name is taken.
        """
        backend = self._models(kind).add(name or name_of(model), model)
        if self._thread.ident is not None:  # before that, `start` warms it up with the others
            threading.Thread(target=self._warm_up_later, args=(backend,), name=f"warm-up-{kind}", daemon=True).start()
        return backend

    def remove(self, kind: str, name: str) -> None:
        """Stop serving a model and free its memory; its running requests get an error.

        Raises:
            RequestRejected: an unknown kind or name, or the only model of its kind.
        """
        backend = self._models(kind).remove(name)
        backend.stop("this model was removed")
        backend.drop()
        collect_removed()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the settings' models are ready or failed, at most `timeout` seconds; returns whether they are.

        A ready model may get more programs afterwards, see `wait_for_all_programs`.
        """
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def wait_for_all_programs(self, timeout: float | None = None) -> bool:
        """Block until every model has all its programs, or those that can be had; returns whether that is so."""
        return self.wait(timeout) and self._later.wait(timeout)

    def stop(self) -> None:
        """Stop serving."""
        self._later.stop()
        for backend in self.all:
            backend.stop()

    def device(self) -> str:
        """The devices as text, such as "4 x TPU v5 lite" or "CPU".

        "starting" until the warm-up has found them (the hosts of a slice wait for each other), "none" if that failed.
        """
        if self._thread.is_alive() and not self._prepared.is_set():
            return "starting"
        try:
            prepare(self.settings.cache_dir)
        except Exception:  # the backends report the reason
            return "none"
        import jax  # after prepare(): the first look at the devices starts jax

        devices = jax.local_devices()
        kind = "CPU" if devices[0].platform == "cpu" else devices[0].device_kind
        return kind if len(devices) == 1 else f"{len(devices)} x {kind}"

    def _models(self, kind: str) -> Models[Any]:
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
            return
        threads = []
        for backend in self.all:
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
        self._later.take(self.all)
        self.compiled_for_warm_up = self.compiler.compilations

    def _warm_up_later(self, backend: Backend[Any]) -> None:
        """Warm up an added model, after the settings' own."""
        self._thread.join()
        backend.warm_up()
        keep_compiled()
        self._later.take([backend])

    def _check_budget(self) -> None:
        """Refuse models that do not fit this machine's accelerators together, before any is loaded."""
        import jax  # after prepare()

        from hfjax_app.runtime.mesh import accelerator_memory

        if (memory := accelerator_memory()) is None:
            return
        from hfjax_app.planning.budget import refusals

        settings = self.settings
        kinds: dict[str, Backend[Any]] = {"chat": self.chat, "sentiment": self.sentiment, "image": self.images}
        refused = refusals(
            {kind: backend.model for kind, backend in kinds.items()},
            devices=jax.local_device_count(),
            memory=memory,
            slots=settings.slots,
            context=settings.context,
            dtype="bfloat16" if settings.dtype == "auto" else settings.dtype,
            quantize=settings.quantize,
        )
        for kind, reason in refused.items():
            kinds[kind].refuse(reason)


def name_of(model: str) -> str:
    """A model's display name: a hub id or an embedded model's name unchanged, the last part of a folder."""
    path = Path(model)
    return path.resolve().name if path.is_absolute() or model.startswith((".", "~")) or path.is_dir() else model
