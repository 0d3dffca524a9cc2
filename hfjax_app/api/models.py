"""The operator's endpoints: load a model beside those that serve, cancel that, unload one.

Each takes the operator's key. The page loads through the same object. Models are listed by `/v1/models`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import gradio as gr

from hfjax_app.api.concurrency import Concurrency
from hfjax_app.api.gradio_errors import errors_shown, streamed
from hfjax_app.backends import Backends
from hfjax_app.backends.model_loads import Load
from hfjax_app.client import sender
from hfjax_app.limits import LOADS_WATCHED, OPERATOR_MAX_CHARACTERS
from hfjax_app.service.service import Service
from hfjax_app.validation import checked_text

LOAD_EVENT: Concurrency = {"concurrency_id": "loads", "concurrency_limit": LOADS_WATCHED}
EVENT: Concurrency = {"concurrency_id": "models", "concurrency_limit": LOADS_WATCHED}
LOOK_S = 0.25


class ModelsApi:
    """Loads and unloads models.

    Args:
        backends: the models.
    """

    def __init__(self, backends: Backends):
        self._backends = backends

    @property
    def is_open(self) -> bool:
        """Whether there is an operator's key, and models can be loaded at all."""
        return self._backends.operator.has_key and self._backends.takes_models

    @streamed
    async def load_model(self, model: str, key: str, kind: str = "chat") -> AsyncGenerator[dict[str, Any], None]:
        """Load a model, a hub id or a folder, beside those that serve: streams {"model", "state", "progress"}. `kind`
        is "chat" or "images". Goes on when the client leaves; /cancel_load ends it."""
        load = self.begin(model, key, kind)
        async with aclosing(self.watched(load)) as progress:
            async for line in progress:
                yield {"model": load.backend.name, "state": load.state, "progress": line}

    async def cancel_load(self, key: str) -> str:
        """Cancel the load that runs; what was downloaded for it is removed."""
        with errors_shown():
            self.cancel(key)
            return "cancelled"

    async def unload_model(self, model: str, key: str, kind: str = "chat") -> str:
        """Unload a model; its running requests get an error, and what was downloaded for it is removed."""
        with errors_shown():
            await self.unload(model, key, kind)
            return "unloaded"

    def check_load_model(self, model: Any, key: Any, kind: Any) -> None:
        """Raise what /load_model would refuse, before the request is queued."""
        self._backends.operator.check(key, sender().id)
        self._backends.operator.checked_model(model)

    def check_cancel_load(self, key: Any) -> None:
        """The same for /cancel_load."""
        self._backends.operator.check(key, sender().id)

    def check_unload_model(self, model: Any, key: Any, kind: Any) -> None:
        """The same for /unload_model."""
        self._backends.operator.check(key, sender().id)

    def begin(self, model: Any, key: Any, kind: Any) -> Load:
        """Begin to load a model. Every value is what a client sent, of any type.

        Raises:
            NotAllowed: a wrong key, or a folder that may not be named.
            Overloaded: too many wrong keys.
            RequestRejected: see `ModelLoads.begin`.
        """
        operator = self._backends.operator
        operator.check(key, sender().id)
        return self._backends.loads.begin(kind, operator.checked_model(model))

    async def watched(self, load: Load) -> AsyncGenerator[str, None]:
        """The progress of a load, whenever it has changed, until it has ended."""
        told = ""
        while True:
            is_done, line = load.is_done, load.progress
            if line != told:
                yield line
            if is_done:
                return
            told = line
            await asyncio.sleep(LOOK_S)

    def cancel(self, key: Any) -> None:
        """Cancel the load that runs; errors as for `begin`."""
        self._backends.operator.check(key, sender().id)
        self._backends.loads.cancel()

    async def unload(self, model: Any, key: Any, kind: Any) -> None:
        """Unload a model; errors as for `begin`, and NotFound."""
        self._backends.operator.check(key, sender().id)
        name = checked_text(model, "model", OPERATOR_MAX_CHARACTERS).strip()
        await asyncio.to_thread(self._backends.loads.unload, kind, name)


def register(service: Service) -> ModelsApi:
    api = ModelsApi(service.backends)
    gr.api(api.load_model, api_name="load_model", **LOAD_EVENT)
    gr.api(api.cancel_load, api_name="cancel_load", **EVENT)
    gr.api(api.unload_model, api_name="unload_model", **EVENT)
    return api
