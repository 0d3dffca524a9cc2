"""Who sends a request: the unit of limits, of fairness, of quotas and of shared prefixes."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

SCOPE_KEY = "hfjax.client"  # in the ASGI scope of a request


@dataclass(frozen=True, kw_only=True)
class Client:
    """The sender of a request.

    Args:
        id: unique and stable: "key:NAME", "user:NAME" or "address:IP".
        is_known: whether it showed a key or is logged in.
        daily_tokens: the tokens that it may use in a day; None: any number.
    """

    id: str
    is_known: bool = False
    daily_tokens: int | None = None


LOCAL = Client(id="local", is_known=True)  # calls in this process
_sender: ContextVar[Client] = ContextVar("sender", default=LOCAL)


def sender() -> Client:
    """The client of the request that the current task serves; not known in threads of an executor."""
    return _sender.get()


@contextmanager
def sent_by(client: Client) -> Iterator[None]:
    """Serve the block for this client."""
    token = _sender.set(client)
    try:
        yield
    finally:
        _sender.reset(token)


def client_of(scope: MutableMapping[str, Any]) -> Client:
    """The client of an ASGI scope; without the middleware that identifies it, the peer's address."""
    found = scope.get(SCOPE_KEY)
    if isinstance(found, Client):
        return found
    peer = scope.get("client")
    return Client(id=f"address:{peer[0]}") if peer else LOCAL
