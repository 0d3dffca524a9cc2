"""An image model whose replicas are other processes, as the studio and the API see it."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

from hfjax_app.images.checkpoint import Recommended
from hfjax_app.images.request import check_before_loading
from hfjax_app.images.sizes import Sizes
from hfjax_app.images.steps import ImageStep, Waiting
from hfjax_app.serving.replica_calls import ReplicaCalls

_HEARTBEAT_S = 0.5
_CHECKED = ("negative_prompt", "steps", "guidance_scale", "seed")


class RemoteImages:
    """An `ImageModel` that asks replicas.

    Args:
        calls: of its replicas.
        facts: from one of them. A size that a replica compiles for a request is not offered: the others don't have it.
    """

    def __init__(self, calls: ReplicaCalls, facts: Mapping[str, Any]):
        self.calls = calls
        self.steps_per_s: float | None = None  # known to the replicas
        self.recommended: Recommended = facts["recommended"]
        self.revision: str | None = facts["revision"]
        self.versions: dict[str, str] = facts["versions"]
        self.size: tuple[int, int] = facts["size"]
        self.latent_shape: tuple[int, int, int, int] = facts["latent_shape"]
        self.offered_sizes: tuple[tuple[int, int], ...] = facts["offered_sizes"]
        self.schedulers: Sequence[str] = facts["schedulers"]
        self.max_steps: int = facts["max_steps"]
        self.takes_negative_prompt: bool = facts["takes_negative_prompt"]
        self.takes_weights: bool = facts["takes_weights"]
        self._sizes: Sizes = facts["sizes"]

    @property
    def steps(self) -> int:
        return self.calls.figure("steps")

    def nearest_size(self, width: int, height: int) -> tuple[int, int]:
        return self._sizes.nearest(width, height)

    def generate(
        self, prompt: str, *, previews: bool = True, **options: Any
    ) -> Generator[ImageStep | Waiting, None, None]:
        """As `ImageGenerator.generate`.

        The call itself refuses only what every model refuses; the rest is refused at the first step.
        """
        checked = {name: options[name] for name in _CHECKED if name in options}
        check_before_loading(prompt, **checked)
        self._sizes.checked(options.get("width"), options.get("height"))
        return self._steps(prompt, previews, options)

    def _steps(
        self, prompt: str, previews: bool, options: Mapping[str, Any]
    ) -> Generator[ImageStep | Waiting, None, None]:
        is_taken = False
        found = self.calls.stream_from_thread("generate", prompt, previews, options, every_s=_HEARTBEAT_S)
        with closing(cast("Generator[Any, None, None]", found)) as steps:
            for step in steps:
                if step is not None:
                    is_taken = True
                    yield step
                elif not is_taken:
                    yield Waiting(reason="every replica is busy")
