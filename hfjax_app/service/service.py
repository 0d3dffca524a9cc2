"""The service: every page, API and protocol asks here, so that limits, quotas and counts are the same for all.

`ModelsService` is the operator's: load a model beside those that serve, cancel that, unload one.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from hfjax_app.backends import Backends
from hfjax_app.backends.model_loads import Load
from hfjax_app.client import sender
from hfjax_app.limits import OPERATOR_MAX_CHARACTERS
from hfjax_app.service.admission import Admission
from hfjax_app.service.chat import ChatService
from hfjax_app.service.images import ImagesService
from hfjax_app.service.sentiment import SentimentService
from hfjax_app.service.usage import Usage
from hfjax_app.validation import checked_text


class Service:
    """What all clients of an app share.

    Args:
        backends: the models; they may still be warming up.

    Attributes:
        usage: the clients' tokens.
        admission: of all requests.
        chat, sentiment, images, models: answer requests.
    """

    def __init__(self, backends: Backends):
        settings = backends.settings
        self.backends = backends
        self.usage = Usage()
        self.admission = Admission(backends, settings.client_requests, self.usage)
        self.chat = ChatService(backends.chat_models, settings.context, self.usage)
        self.sentiment = SentimentService(backends.sentiment_models, backends.chat_models)
        self.images = ImagesService(backends.image_models)
        self.models = ModelsService(backends)


LOOK_S = 0.25


class ModelsService:
    """Loads and unloads models for clients that send the operator's key.

    Args:
        backends: the models.
    """

    def __init__(self, backends: Backends):
        self._backends = backends

    @property
    def is_open(self) -> bool:
        """Whether there is an operator's key, and models can be loaded at all."""
        return self._backends.operator.has_key and self._backends.takes_models

    def check(self, key: Any) -> None:
        """Raise NotAllowed for a wrong key, Overloaded after too many of them."""
        self._backends.operator.check(key, sender().id)

    def check_model(self, model: Any) -> None:
        """Raise what `begin` would raise for this model."""
        self._backends.operator.checked_model(model)

    def begin(self, model: Any, key: Any, kind: Any) -> Load:
        """Begin to load a model. Every value is what a client sent, of any type.

        Raises:
            NotAllowed: a wrong key, or a folder that may not be named.
            Overloaded: too many wrong keys.
            RequestRejected: see `ModelLoads.begin`.
        """
        self.check(key)
        return self._backends.loads.begin(kind, self._backends.operator.checked_model(model))

    async def watched(self, load: Load) -> AsyncGenerator[str, None]:
        """The progress of a load, whenever it has changed, and once more when it has ended."""
        told = ""
        while not load.is_done:
            line = load.progress
            if line != told:
                yield line
            told = line
            await asyncio.sleep(LOOK_S)
        yield load.progress

    def cancel(self, key: Any) -> None:
        """Cancel the load that runs; errors as for `begin`."""
        self.check(key)
        self._backends.loads.cancel()

    async def unload(self, model: Any, key: Any, kind: Any) -> None:
        """Unload a model; errors as for `begin`, and NotFound."""
        self.check(key)
        name = checked_text(model, "model", OPERATOR_MAX_CHARACTERS).strip()
        await asyncio.to_thread(self._backends.loads.unload, kind, name)
