"""The models of one kind, by name. Any thread may add, remove and look up models while others serve."""

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

from hfjax_app.backends.backend import Backend, Loader
from hfjax_app.errors import NotFound, RequestRejected
from hfjax_app.validation import quoted

T = TypeVar("T")

KINDS = {"chat": "chat", "sentiment": "sentiment", "images": "image"}  # as planners and flags name them


class Models(Generic[T]):
    """Several named models of one kind; the first one is the default of requests.

    Args:
        kind: "chat", "sentiment" or "images".
        loader: of all models of this kind.
    """

    def __init__(self, kind: str, loader: Loader[T]):
        self.kind = kind
        self._loader = loader
        self._changing = threading.Lock()
        self._backends: tuple[Backend[T], ...] = ()  # replaced as a whole, so that readers need no lock

    def __iter__(self) -> Iterator[Backend[T]]:
        return iter(self._backends)

    def __len__(self) -> int:
        return len(self._backends)

    @property
    def first(self) -> Backend[T]:
        return self._backends[0]

    @property
    def usable(self) -> Backend[T]:
        """The first one that is ready; the first one while none is."""
        return next((backend for backend in self._backends if backend.state == "ready"), self.first)

    def find(self, name: str | None = None) -> Backend[T]:
        """The model of this name; None: the first one.

        Raises:
            NotFound: an unknown name; the message lists the known ones.
        """
        if name is None:
            return self.first
        for backend in self._backends:
            if backend.name == name:
                return backend
        names = ", ".join(backend.name for backend in self._backends)
        raise NotFound(f"{self.kind} model {quoted(name)} is not loaded; there are: {names}")

    def add(self, name: str, model: str) -> Backend[T]:
        """Add a model, which waits for its warm-up.

        Raises:
            RequestRejected: the name is taken.
        """
        backend = Backend(kind=self.kind, name=name, model=model, loader=self._loader)
        with self._changing:
            if any(other.name == name for other in self._backends):
                raise RequestRejected(f"{self.kind} model {name!r} is there already; remove it first")
            self._backends = (*self._backends, backend)
        return backend

    def remove(self, name: str) -> Backend[T]:
        """Remove a model; later requests do not find it.

        Raises:
            RequestRejected: an unknown name, or the only model of its kind.
        """
        with self._changing:
            backend = self.find(name)
            if len(self._backends) == 1:
                raise RequestRejected(f"{self.kind} model {name!r} is the only one; add another before removing it")
            self._backends = tuple(other for other in self._backends if other is not backend)
        return backend
