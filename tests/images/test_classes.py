"""Every class of pipeline, read from its files, against itself in torch: the latents, within 1e-3."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline, StableDiffusionPipeline

from hfjax_app.errors import RequestRejected
from hfjax_app.images import ImageGenerator, ImageRequest, noise
from hfjax_app.images.schedule import GivenNoise

from .pipelines import CLASSES

SEED = 7
CARD = """---
inference:
  parameters: {{num_inference_steps: {steps}, guidance_scale: {guidance_scale}}}
---
"""
# The usual settings of distilled models.
USUAL = {"SD-Turbo": {"steps": 1, "guidance_scale": 0.0}, "SDXL-Turbo": {"steps": 2, "guidance_scale": 0.0}}


def torch_latents(pipeline: DiffusionPipeline, shape: tuple[int, ...], prompt: str, **options: Any) -> np.ndarray:
    """diffusers' own latents, given the generator's noise."""
    first, _ = noise.first_noise(SEED, shape)
    fresh = (torch.tensor(np.asarray(noise.step_noise(noise.key_of(SEED), i, shape))) for i in range(options["steps"]))
    plain = {"use_resolution_binning": False, "clean_caption": False} if "PixArt" in type(pipeline).__name__ else {}
    with GivenNoise(fresh):
        return pipeline(
            prompt,
            latents=torch.from_numpy(first),
            num_inference_steps=options.pop("steps"),
            output_type="latent",
            **options,
            **plain,
        ).images.numpy()


# The others have the networks of one of these and the settings of another.
DISTINCT = {"SD-Turbo", "SDXL", "PixArt", "SD 3"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in DISTINCT)) for name in CLASSES]
)
def test_latents_equal_torch(name: str, tmp_path: Path) -> None:
    pipeline = CLASSES[name]()
    options = USUAL.get(name, {"steps": 3, "guidance_scale": 3.0})
    pipeline.save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text(CARD.format(**options))
    generator = ImageGenerator.from_pretrained(tmp_path)
    [picture] = list(generator.generate(ImageRequest("red dot", seed=SEED, **options)))[-1].pictures
    if not isinstance(pipeline, StableDiffusionPipeline):
        with pytest.raises(RequestRejected, match="clip skip = 1: this model takes none"):
            generator.generate(ImageRequest("red dot", clip_skip=1))
    want = torch_latents(pipeline, generator.facts.latent_shape, "red dot", **options)
    assert picture.latents.shape == want.shape == generator.facts.latent_shape
    assert want.std() > 0.1
    np.testing.assert_allclose(picture.latents, want, rtol=0, atol=1e-3)
    assert (picture.image.size, np.isfinite(picture.pixels).all()) == ((32, 32), True)
    [other] = list(generator.generate(ImageRequest("blue", seed=SEED, **options)))[-1].pictures
    assert np.abs(other.latents - picture.latents).max() > 1e-2, "the prompt must matter"
    if options["guidance_scale"] > 1:
        [third] = list(generator.generate(ImageRequest("red dot", negative_prompt="cat", seed=SEED, **options)))[
            -1
        ].pictures
        want = torch_latents(pipeline, generator.facts.latent_shape, "red dot", negative_prompt="cat", **options)
        np.testing.assert_allclose(third.latents, want, rtol=0, atol=1e-3)
