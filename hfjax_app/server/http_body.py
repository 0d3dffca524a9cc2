"""Reads a request's JSON body."""

import json
from typing import Any

from fastapi import Request

from hfjax_app.errors import RequestRejected, WrongMediaType


async def json_object(request: Request) -> dict[str, Any]:
    """The body as an object. Numbers may be NaN and infinite: backends refuse them by name.

    Raises:
        WrongMediaType: the body is declared as something else than JSON.
        RequestRejected: it is not JSON, or not an object.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise WrongMediaType("send JSON, with the header Content-Type: application/json")
    try:
        found = json.loads(await request.body())
    except RecursionError:
        raise RequestRejected("the body is nested too deeply") from None
    except ValueError:  # also of bytes that are no text, and of numbers of thousands of digits
        raise RequestRejected("the body is not JSON") from None
    if not isinstance(found, dict):
        raise RequestRejected(f"the body must be an object, not {type(found).__name__}")
    return found
