"""What the studio and the API use of an image model, whether it runs in this process or in another one.

`generator.py` is the model itself; `serving/remote_images.py` asks one in another process.
"""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the page is served before jax is imported
    from PIL import Image

    from hfjax_app.images.checkpoint import Recommended
    from hfjax_app.images.steps import ImageStep, Waiting


class ImageModel(Protocol):
    """An image model; `ImageGenerator` documents the members."""

    @property
    def recommended(self) -> "Recommended": ...

    @property
    def revision(self) -> str | None: ...

    @property
    def versions(self) -> dict[str, str]: ...

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def latent_shape(self) -> tuple[int, int, int, int]: ...

    @property
    def offered_sizes(self) -> tuple[tuple[int, int], ...]: ...

    @property
    def schedulers(self) -> Sequence[str]: ...

    @property
    def max_steps(self) -> int: ...

    @property
    def takes_negative_prompt(self) -> bool: ...

    @property
    def takes_weights(self) -> bool: ...

    @property
    def steps(self) -> int: ...

    @property
    def steps_per_s(self) -> float | None: ...

    def nearest_size(self, width: int, height: int) -> tuple[int, int]: ...

    def generate(
        self,
        prompt: str,
        *,
        negative_prompt: str = "",
        steps: int = 20,
        guidance_scale: float = 7.5,
        seed: int | None = None,
        images: int = 1,
        width: int | None = None,
        height: int | None = None,
        scheduler: str | None = None,
        image: "Image.Image | None" = None,
        mask: "Image.Image | None" = None,
        strength: float = 0.8,
        background: str = "#ffffff",
        variation_of: int | None = None,
        variation: float = 0.3,
        previews: bool = True,
        client: str = "",
    ) -> "Generator[ImageStep | Waiting, None, None]": ...
