"""All models of an app: the settings' own, and those that are added and removed while others serve.

They are loaded and traced one after the other, each while those before it are compiled. Chat comes first, because its
visitors wait for nothing else. A model that fails says why; the others go on.
"""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfjax_app.backends.backend import Backend, in_words
from hfjax_app.backends.loaders import ChatLoader, ImageLoader, SentimentLoader
from hfjax_app.backends.models import Models
from hfjax_app.errors import RequestRejected
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
        settings: which models, how many slots, where the compile cache is.

    Attributes:
        chat_models, sentiment_models, image_models: by name, the settings' own first.
        compiler: counts what it is asked for from `start` on, by all models together.
    """

    def __init__(self, settings: Settings):
        self.settings, self.compiler = settings, CompilerCount()
        self.chat_models: Models[ChatAssistant] = Models("chat", ChatLoader(settings))
        self.sentiment_models: Models[SentimentClassifier] = Models("sentiment", SentimentLoader())
        self.image_models: Models[ImageGenerator] = Models("images", ImageLoader(settings))
        self.chat_models.add(name_of(settings.chat_model), settings.chat_model)
        self.sentiment_models.add(name_of(settings.sentiment_model), settings.sentiment_model)
        self.image_models.add(name_of(settings.image_model), settings.image_model)
        self._thread = threading.Thread(target=self._warm_up, name="warm-up", daemon=True)
        self._prepared = threading.Event()

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
        """Begin to warm up in the background."""
        self.compiler.start()
        self._thread.start()
        return self

    def add(self, kind: str, model: str, *, name: str | None = None) -> Backend[Any]:
        """Load one more model beside those that serve; it warms up in the background, once the app has started.

        Does not ask whether it fits the devices beside the others: the engine refuses what fits by no means.

        Args:
            kind: "chat", "sentiment" or "images".
            model: an embedded model's name, a folder, or a hub id.
            name: under which requests find it; None: by `name_of`.

        Raises:
            RequestRejected: an unknown kind, or a name that is taken.
        """
        backend = self._models(kind).add(name or name_of(model), model)
        if self._thread.ident is not None:  # before that, `start` warms it up with the others
            threading.Thread(target=self._warm_up_later, args=(backend,), name=f"warm-up-{kind}", daemon=True).start()
        return backend

    def remove(self, kind: str, name: str) -> None:
        """Stop serving a model and free its memory; requests that it was serving are told.

        Raises:
            RequestRejected: an unknown kind or name, or the only model of its kind.
        """
        backend = self._models(kind).remove(name)
        backend.stop("this model was removed")
        backend.drop()
        collect_removed()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the first models are ready or failed, at most `timeout` seconds; whether that is so."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop serving."""
        for backend in self.all:
            backend.stop()

    def device(self) -> str:
        """The devices in words, such as "4 x TPU v5 lite" or "CPU"; "starting" until the warm-up has them (the hosts of
        a slice wait for each other), "none" where they can't be had."""
        if self._thread.is_alive() and not self._prepared.is_set():
            return "starting"
        try:
            prepare(self.settings.cache_dir)
        except Exception:  # the backends say why
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
        except Exception as error:  # such as jax's cache in a bucket: nothing can be served
            for backend in self.all:
                backend.refuse(in_words(error))
            return
        threads = []
        for backend in self.all:
            if backend.state != "failed":
                has_turn = threading.Event()
                name = f"warm-up-{backend.kind}"
                threads.append(threading.Thread(target=backend.warm_up, args=(has_turn.set,), name=name, daemon=True))
                threads[-1].start()
                has_turn.wait()  # the next one gets in line behind it
        for thread in threads:
            thread.join()
        keep_compiled()
        freeze_objects()

    def _warm_up_later(self, backend: Backend[Any]) -> None:
        """For a model that was added: after the settings' own, or at once where they are done."""
        self._thread.join()
        backend.warm_up()
        keep_compiled()

    def _check_budget(self) -> None:
        """Refuse the models that don't fit this machine's accelerators together, before any is loaded."""
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
    """A model's name for people: a hub id or an embedded model's name as it is, a folder by its last part."""
    path = Path(model)
    return path.resolve().name if path.is_absolute() or model.startswith((".", "~")) or path.is_dir() else model
