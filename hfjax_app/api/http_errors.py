"""Maps the app's errors to HTTP: a status, one line, and when to try again; for OpenAI's clients in
their envelope: {"error": {"message", "type", "param", "code"}}.
"""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from hfjax_app.errors import (
    Draining,
    EngineStopped,
    HfjaxError,
    ModelUnavailable,
    NotAllowed,
    NotFound,
    Overloaded,
    RequestRejected,
    WrongMediaType,
    without_folders,
)
from hfjax_app.limits import RETRY_AFTER_S
from hfjax_app.validation import quoted

_STATUS = (  # subclasses first
    (NotAllowed, 403),
    (NotFound, 404),
    (WrongMediaType, 415),
    (RequestRejected, 422),
    (Overloaded, 429),
    (ModelUnavailable, 503),
    (EngineStopped, 503),
    (Draining, 503),
)


def status_of(error: HfjaxError) -> int:
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def as_http(error: HfjaxError, shown_as: Callable[[str], str] = str) -> HTTPException:
    """The answer to a request that raised this.

    Args:
        error: its message may quote the request, and name folders of this machine.
        shown_as: `html.escape` for pages, which show messages as HTML.
    """
    status = status_of(error)
    message = str(error) if isinstance(error, RequestRejected) else without_folders(str(error))
    # what JSON can't hold: half a surrogate pair that the client sent
    message = message.encode(errors="backslashreplace").decode()
    headers = None
    if status in (429, 503):
        headers = {"Retry-After": str(error.retry_after_s if isinstance(error, Overloaded) else RETRY_AFTER_S)}
    return HTTPException(status, shown_as(message), headers)


@contextmanager
def refusals_as_http(shown_as: Callable[[str], str] = str) -> Iterator[None]:
    """Answer what the block refuses: an HfjaxError by its status, another client's session by 403."""
    try:
        yield
    except HfjaxError as error:
        raise as_http(error, shown_as) from None
    except PermissionError:
        raise HTTPException(403, "this session belongs to another client: load the page again") from None


UNKNOWN = "this app does not know this field; GET /docs lists those that it knows"
CUT = 499  # the status of a request whose client left, as nginx logs it
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def envelope(message: str, status: int, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body of an error.

    Args:
        message: one line for the client.
        status: of HTTP.
        param: the argument that is wrong.
        code: a word for programs.
    """
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def as_answer(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for what a route raised. OpenAI's clients expect 400 for a wrong argument."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"] if part != "body") or None
        if first["type"] == "extra_forbidden":
            message = f"{param}: {UNKNOWN}"
        elif first["type"] == "missing":
            message = f"{param}: this field is needed"
        else:
            message = f"{param or 'the body'} = {quoted(first.get('input'))}: {first['msg']}"
        return 400, envelope(message, 400, param=param), {}
    if isinstance(error, HfjaxError):
        error_as_http = as_http(error)
        status = error_as_http.status_code
        status = 400 if isinstance(error, RequestRejected) and status == 422 else status
        code = "model_not_found" if isinstance(error, NotFound) else None
        return status, envelope(error_as_http.detail, status, code=code), dict(error_as_http.headers or {})
    if isinstance(error, HTTPException):
        return error.status_code, envelope(str(error.detail), error.status_code), dict(error.headers or {})
    raise error


class ClientLeft(Exception):
    """No one reads the answer any more: the work for it ends."""


class EnvelopeRoute(APIRoute):
    """A route whose errors are in the envelope."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except (HfjaxError, HTTPException, RequestValidationError) as error:
                status, body, headers = as_answer(error)
                return JSONResponse(body, status_code=status, headers=headers)
            except ClientLeft:
                return Response(status_code=CUT)

        return handled
