"""The loading of each kind of model with the app's settings; torch and the models' code are imported at that time."""

from typing import TYPE_CHECKING

from hfjax_app.backends.backend import OnReport
from hfjax_app.embedded import resolve
from hfjax_app.errors import ModelUnavailable
from hfjax_app.settings import Settings

if TYPE_CHECKING:
    from hfjax_app.chat.assistant import ChatAssistant
    from hfjax_app.images.generator import ImageGenerator
    from hfjax_app.sentiment.classifier import SentimentClassifier


class ChatLoader:
    """Causal language models with the engine that decodes them."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def load(self, model: str, on_report: OnReport) -> "ChatAssistant":
        from hfjax_app.chat.assistant import ChatAssistant
        from hfjax_app.chat.engine.llm_engine import ChatEngine
        from hfjax_app.chat.zero_shot import ZeroShot

        engine = ChatEngine.from_pretrained(
            resolve(model),
            slots=self._settings.slots,
            context=self._settings.context,
            dtype=self._settings.dtype,
            quantize=self._settings.quantize,
            speculation=self._settings.speculation,
            bundled=True,
        )
        try:
            zero_shot = ZeroShot(engine)
        except ModelUnavailable:  # chat works without labels; a request for labels is refused
            engine.start(on_report)
            return ChatAssistant(engine, None)
        engine.start(on_report, zero_shot.compile)
        zero_shot.run_once()
        return ChatAssistant(engine, zero_shot)

    def failure(self, served: "ChatAssistant") -> str | None:
        return served.broken

    def stop(self, served: "ChatAssistant") -> None:
        served.stop()


class SentimentLoader:
    """Sequence classifiers."""

    def load(self, model: str, on_report: OnReport) -> "SentimentClassifier":
        from hfjax_app.sentiment.classifier import SentimentClassifier

        return SentimentClassifier.from_pretrained(resolve(model), on_report=on_report, bundled=True)

    def failure(self, served: "SentimentClassifier") -> str | None:
        return None

    def stop(self, served: "SentimentClassifier") -> None:
        served.stop()


class ImageLoader:
    """Text-to-image pipelines."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def load(self, model: str, on_report: OnReport) -> "ImageGenerator":
        from hfjax_app.images.generator import ImageGenerator

        settings = self._settings
        return ImageGenerator.from_pretrained(
            resolve(model), sizes=settings.sizes, dtype=settings.dtype, on_report=on_report, bundled=True
        )

    def failure(self, served: "ImageGenerator") -> str | None:
        return None

    def stop(self, served: "ImageGenerator") -> None:
        """Nothing to do: a running request ends by itself, with an error at its next step."""
