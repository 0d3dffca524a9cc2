"""An image model whose replicas are other processes, as the studio and the API see it."""

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any, cast

from hfjax_app.images.interface import ImageFacts
from hfjax_app.images.request import CompletedRequest, ImageRequest
from hfjax_app.images.steps import ImageStep, Waiting
from hfjax_app.serving.replica_calls import ReplicaCalls

_HEARTBEAT_S = 0.5


class RemoteImages:
    """An `ImageModel` that asks replicas.

    Args:
        calls: of its replicas.
        facts: from one of them. A size that a replica compiles for a request is not offered: the others don't have it.
    """

    def __init__(self, calls: ReplicaCalls, facts: Mapping[str, Any]):
        self.calls = calls
        self.steps_per_s: float | None = None  # known to the replicas
        self.facts: ImageFacts = facts["facts"]
        self.offered_sizes: tuple[tuple[int, int], ...] = facts["offered_sizes"]

    @property
    def steps(self) -> int:
        return self.calls.figure("steps")

    def generate(
        self, request: ImageRequest, *, previews: bool = True, client: str = ""
    ) -> Generator[ImageStep | Waiting, None, None]:
        """As `ImageGenerator.generate`. A scheduler or mask that the model refuses is refused at the first step."""
        return self._steps(self.facts.completed(request), previews, client)

    def _steps(
        self, request: CompletedRequest, previews: bool, client: str
    ) -> Generator[ImageStep | Waiting, None, None]:
        is_taken = False
        found = self.calls.stream_from_thread("generate", request, previews, client, every_s=_HEARTBEAT_S)
        with closing(cast("Generator[Any, None, None]", found)) as steps:
            for step in steps:
                if step is not None:
                    is_taken = True
                    yield step
                elif not is_taken:
                    yield Waiting(reason="every replica is busy")
