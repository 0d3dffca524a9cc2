"""The Model Context Protocol at /mcp: chat, sentiment and pictures as tools of other programs' assistants.

It needs the extra `mcp` and is not there without it. Requests pass the same door and the same admission as all others;
each is answered by itself, so there are no sessions.
"""

import asyncio
import importlib.util
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import Field
from starlette.applications import Starlette

from hfjax_app.backends import Backend
from hfjax_app.chat import SamplingParams
from hfjax_app.chat.request import ChatRequest
from hfjax_app.client import Client, client_of, sent_by
from hfjax_app.errors import HfjaxError, without_folders
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.steps import ImageStep
from hfjax_app.service.service import Service

if TYPE_CHECKING:
    from fastmcp import FastMCP

PATH = "/mcp"
_ABOUT = (
    "Models that run on this machine: a chat model, one that judges the mood of texts, and one that draws pictures."
)


def mcp_app(service: Service) -> Starlette | None:
    """The ASGI app whose only route is /mcp, and whose lifespan must run; None without the extra.

    Args:
        service: answers; its models may still be warming up.
    """
    if importlib.util.find_spec("fastmcp") is None:
        return None
    from fastmcp import FastMCP

    server = FastMCP("hfjax", instructions=_ABOUT, mask_error_details=True)
    _Tools(service).add_to(server)
    app: Starlette = server.http_app(path=PATH, stateless_http=True, json_response=True)
    return app


class _Tools:
    """The tools.

    Args: as for `mcp_app`.
    """

    def __init__(self, service: Service):
        self._service, self._backends = service, service.backends

    def add_to(self, server: "FastMCP") -> None:
        for tool in (self.chat, self.classify, self.image):
            server.tool(tool)

    async def chat(
        self,
        message: Annotated[str, Field(description="what to say to the model")],
        system_prompt: Annotated[str, Field(description="instructions before it; may be empty")] = "",
        max_tokens: Annotated[int | None, Field(description="of the answer; left out: 256")] = None,
        temperature: Annotated[float | None, Field(description="0 to 10; left out: the model's own")] = None,
        seed: Annotated[int | None, Field(description="the same seed gives the same answer")] = None,
    ) -> str:
        """Ask the chat model, and get its whole answer."""
        with self._admitted("chat", self._backends.chat) as client:
            sampling = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
            request = ChatRequest(
                messages=[{"role": "user", "content": message}],
                system_prompt=system_prompt,
                sampling=SamplingParams.from_options(sampling),
                client=client.id,
            )
            text = ""
            async with aclosing(self._service.chat.reply(request, client)) as replies:
                async for reply in replies:
                    text = reply.text
            return text

    async def classify(self, text: Annotated[str, Field(description="any text")]) -> dict[str, float]:
        """Judge the mood of a text: the probability of each label, such as positive and negative."""
        with self._admitted("sentiment", self._backends.sentiment):
            scores: dict[str, float] = (await self._service.sentiment.predict(text)).scores
            return scores

    async def image(
        self,
        prompt: Annotated[str, Field(description="what the picture shows")],
        negative_prompt: Annotated[str, Field(description="what it does not show")] = "",
        seed: Annotated[int | None, Field(description="the same seed gives the same picture")] = None,
        steps: Annotated[int | None, Field(description="1 to 100; left out: as recommended")] = None,
    ) -> Any:  # an Image of fastmcp's, which may not be here
        """Draw a picture, as a PNG file."""
        from fastmcp.utilities.types import Image

        backend = self._backends.images
        with self._admitted("images", backend) as client:
            request = ImageRequest(prompt, negative_prompt=negative_prompt, seed=seed, steps=steps)
            running = backend.get().generate(request, client=client.id)
            newest = None
            async with aclosing(self._service.images.run(backend, running)) as drawn:
                async for step in drawn:
                    newest = step
            [picture] = cast(ImageStep, newest).pictures
            return Image(data=await asyncio.to_thread(getattr, picture, "png"), format="png")

    @contextmanager
    def _admitted(self, line: str, backend: Backend[Any]) -> Iterator[Client]:
        """Serve the block for the client of the request, if it may come in; its errors become the tool's."""
        from fastmcp.exceptions import ToolError
        from fastmcp.server.dependencies import get_http_request

        client = client_of(get_http_request().scope)
        try:
            with self._service.admission.enter(client, line, backend), sent_by(client):
                yield client
        except HfjaxError as error:
            raise ToolError(without_folders(str(error))) from None
