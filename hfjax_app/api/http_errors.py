"""Maps the app's errors to HTTP: a status, one line, and when to try again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import HTTPException

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
