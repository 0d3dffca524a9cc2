"""The operator's endpoints of Gradio's API. Each takes the operator's key. Models are listed by `/v1/models`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import gradio as gr

from hfjax_app.api.gradio_errors import Concurrency, errors_shown, streamed
from hfjax_app.limits import LOADS_WATCHED
from hfjax_app.service.service import ModelsService, Service

LOAD_EVENT: Concurrency = {"concurrency_id": "loads", "concurrency_limit": LOADS_WATCHED}
EVENT: Concurrency = {"concurrency_id": "models", "concurrency_limit": LOADS_WATCHED}


class ModelsApi:
    """Answers the three endpoints.

    Args:
        service: of the operator.
    """

    def __init__(self, service: ModelsService):
        self._service = service

    @streamed
    async def load_model(self, model: str, key: str, kind: str = "chat") -> AsyncGenerator[dict[str, Any], None]:
        """Load a model, a hub id or a folder, beside those that serve: streams {"model", "state", "progress"}. `kind`
        is "chat" or "images". Goes on when the client leaves; /cancel_load ends it."""
        load = self._service.begin(model, key, kind)
        async with aclosing(self._service.watched(load)) as progress:
            async for line in progress:
                yield {"model": load.backend.name, "state": load.state, "progress": line}

    async def cancel_load(self, key: str) -> str:
        """Cancel the load that runs; what was downloaded for it is removed."""
        with errors_shown():
            self._service.cancel(key)
            return "cancelled"

    async def unload_model(self, model: str, key: str, kind: str = "chat") -> str:
        """Unload a model; its running requests get an error, and what was downloaded for it is removed."""
        with errors_shown():
            await self._service.unload(model, key, kind)
            return "unloaded"

    def check_load_model(self, model: Any, key: Any, kind: Any) -> None:
        """Raise what /load_model would refuse, before the request is queued."""
        self._service.check(key)
        self._service.check_model(model)

    def check_cancel_load(self, key: Any) -> None:
        """The same for /cancel_load."""
        self._service.check(key)

    def check_unload_model(self, model: Any, key: Any, kind: Any) -> None:
        """The same for /unload_model."""
        self._service.check(key)


def register(service: Service) -> None:
    api = ModelsApi(service.models)
    gr.api(api.load_model, api_name="load_model", **LOAD_EVENT)
    gr.api(api.cancel_load, api_name="cancel_load", **EVENT)
    gr.api(api.unload_model, api_name="unload_model", **EVENT)
