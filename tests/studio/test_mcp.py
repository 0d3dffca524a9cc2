"""The Model Context Protocol, through its own client."""

import asyncio
import base64
import io
from typing import Any

import pytest
from PIL import Image

from tests.studio.conftest import Studio, http

fastmcp = pytest.importorskip("fastmcp", reason="needs the extra mcp")


def called(studio: Studio, name: str, **arguments: Any) -> Any:
    async def call() -> Any:
        async with fastmcp.Client(f"{studio.url}/mcp") as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(call())


def test_tools_are_listed_and_called(studio: Studio) -> None:
    async def listed() -> dict[str, Any]:
        async with fastmcp.Client(f"{studio.url}/mcp") as client:
            return {tool.name: tool.input_schema for tool in await client.list_tools()}

    tools = asyncio.run(listed())
    assert tools.keys() == {"chat", "classify", "image"}
    assert tools["chat"]["required"] == ["message"]
    assert "Python" in called(studio, "chat", message="What is JAX?", temperature=0.0).data
    scores = called(studio, "classify", text="I loved it.").data
    assert scores["positive"] > scores["negative"]
    drawn = called(studio, "image", prompt="a red circle", seed=7, steps=3)
    [content] = drawn.content
    assert content.type == "image"
    assert Image.open(io.BytesIO(base64.b64decode(content.data))).format == "PNG"
    studio.wait_idle()


def test_what_is_wrong_is_said_in_one_line(studio: Studio) -> None:
    with pytest.raises(fastmcp.exceptions.ToolError, match=r"temperature = 99.0: must be a number from 0 to 10"):
        called(studio, "chat", message="Hi", temperature=99)
    with pytest.raises(fastmcp.exceptions.ToolError, match="text is empty"):
        called(studio, "classify", text=" ")
    assert http.post(f"{studio.url}/mcp", content=b"{").status_code in (400, 406, 415)
