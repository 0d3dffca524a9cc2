"""The loading of each kind of model with the app's settings, and the first answer of a model: whether it serves is
known only after it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import jax

from hfjax_app.backends.backend import Loader, Watcher
from hfjax_app.backends.model_bundles import model_bundle
from hfjax_app.chat.assistant import ChatAssistant
from hfjax_app.chat.engine.llm_engine import ChatEngine
from hfjax_app.chat.interface import ChatModel
from hfjax_app.chat.zero_shot import ZeroShot
from hfjax_app.embedded import resolve
from hfjax_app.errors import ModelUnavailable
from hfjax_app.images.generator import ImageGenerator
from hfjax_app.images.interface import ImageModel
from hfjax_app.images.lora import Lora
from hfjax_app.images.networks import Storage
from hfjax_app.runtime.memory import HeldMemory
from hfjax_app.runtime.warm_up import WarmUp
from hfjax_app.sentiment.classifier import SentimentClassifier
from hfjax_app.sentiment.interface import SentimentModel
from hfjax_app.settings import Settings


class ChatLoader:
    """Causal language models with the engine that decodes them.

    Args:
        settings: of the app.
        whole: whether a model has all its programs when it is loaded, also those that are only faster.
    """

    def __init__(self, settings: Settings, *, whole: bool = False):
        self._settings, self._whole = settings, whole

    def load(self, model: str, watcher: Watcher) -> ChatAssistant:
        engine = ChatEngine.from_pretrained(
            resolve(model),
            slots=self._settings.slots,
            context=self._settings.context,
            dtype=self._settings.dtype,
            quantize=self._settings.quantize,
            pictures=True,
            bundle=model_bundle("chat", model, self._settings),
        )
        zero_shot: ZeroShot | None = None
        with suppress(ModelUnavailable):  # chat works without labels; a request for labels is refused
            zero_shot = ZeroShot(engine)
        assistant = ChatAssistant(engine, zero_shot, system_prompt=self._settings.system_prompt)  # before it compiles
        engine.start(
            watcher.record,
            on_expected=watcher.expect,
            others=[zero_shot.spec()] if zero_shot is not None else [],
            staged=is_staged() and not self._whole,
        )
        return assistant

    def warm_up(self, served: ChatAssistant) -> WarmUp:
        return served.engine.warm_up

    def held_memory(self, served: ChatAssistant) -> HeldMemory:
        return served.held_memory

    def failure(self, served: ChatAssistant) -> str | None:
        return served.broken

    def restart(self, served: ChatAssistant) -> None:
        served.engine.restart()

    def stop(self, served: ChatAssistant) -> None:
        served.stop()


class SentimentLoader:
    """Sequence classifiers."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def load(self, model: str, watcher: Watcher) -> SentimentClassifier:
        return SentimentClassifier.from_pretrained(
            resolve(model),
            on_report=watcher.record,
            on_expected=watcher.expect,
            bundle=model_bundle("sentiment", model, self._settings),
            staged=is_staged(),
        )

    def warm_up(self, served: SentimentClassifier) -> WarmUp:
        return served.warm_up

    def held_memory(self, served: SentimentClassifier) -> HeldMemory:
        return served.held_memory

    def failure(self, served: SentimentClassifier) -> str | None:
        return None

    def restart(self, served: SentimentClassifier) -> None:
        """Never needed: `failure` knows none."""

    def stop(self, served: SentimentClassifier) -> None:
        served.stop()


class ImageLoader:
    """Text-to-image pipelines."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def load(self, model: str, watcher: Watcher) -> ImageGenerator:
        settings = self._settings
        is_first = model == settings.image_models[0]
        return ImageGenerator.from_pretrained(
            resolve(model),
            sizes=settings.sizes,
            storage=Storage(
                dtype=settings.dtype,
                quantize=settings.image_quantize,
                text_encoders=settings.image_text_encoders,
            ),
            on_report=watcher.record,
            on_expected=watcher.expect,
            bundle=model_bundle("images", model, settings),
            staged=is_staged(),
            # of the first model: others may be of another architecture
            loras=[Lora(source=source, weight=weight) for source, weight in settings.loras if is_first],
        )

    def warm_up(self, served: ImageGenerator) -> WarmUp:
        return served.warm_up

    def held_memory(self, served: ImageGenerator) -> HeldMemory:
        return served.held_memory

    def failure(self, served: ImageGenerator) -> str | None:
        return None

    def restart(self, served: ImageGenerator) -> None:
        """Never needed: `failure` knows none."""

    def stop(self, served: ImageGenerator) -> None:
        """Nothing to do: a running request ends by itself, with an error at its next step."""


def loader_of(kind: str, settings: Settings) -> Loader[Any]:
    """The loader of one kind of model: "chat", "sentiment" or "images"."""
    kinds: Mapping[str, Callable[[Settings], Loader[Any]]] = {
        "chat": ChatLoader,
        "sentiment": SentimentLoader,
        "images": ImageLoader,
    }
    return kinds[kind](settings)


def is_staged() -> bool:
    """Whether models serve before all their programs are compiled: where another process can compile for the devices.

    That process must not need the devices. It compiles for CPUs of the same kind, and for TPUs by their topology.
    """
    is_quick = jax.config.read("jax_disable_most_optimizations")  # jax's switch for tests: nothing to wait for
    return not is_quick and jax.default_backend() in ("cpu", "tpu")


def _one_token(assistant: ChatModel) -> None:
    assistant.answer_once()


def _one_text(classifier: SentimentModel) -> None:
    classifier.classify(["ready"])


def _one_picture(generator: ImageModel) -> None:
    for _ in generator.generate(generator.facts.trial(steps=2, seed=0), previews=False):
        pass


# By kind of model. Each blocks until its answer is there, and raises what a request would.
FIRST_ANSWERS: Mapping[str, Callable[[Any], None]] = {
    "chat": _one_token,
    "sentiment": _one_text,
    "images": _one_picture,
}
