"""Networks in bfloat16, as on accelerators: half the bytes, and pictures as accurate as torch's in bfloat16."""

from pathlib import Path

import numpy as np
import torch
from diffusers import StableDiffusionPipeline

from hfjax_app.images import Comparison, ImageGenerator, ImageRequest, replay
from hfjax_app.images.networks import Storage

OPTIONS = {"steps": 4, "guidance_scale": 2.0}


def test_networks_in_bfloat16(generator: ImageGenerator, folder: Path) -> None:
    """The error is compared with that of torch's own pipeline in bfloat16.

    Both round after each operation, but not after the same ones (XLA fuses others than torch does, and torch rounds the
    latents too), so their errors are of one size and not equal.
    """
    half = ImageGenerator.from_pretrained(folder, storage=Storage(dtype="bfloat16"))
    assert half._programs.argument_bytes < 0.55 * generator._programs.argument_bytes

    noise = np.random.default_rng(7).standard_normal(generator.facts.latent_shape).astype(np.float32)
    ours, exact = (
        list(made.generate(ImageRequest("red dot", latents=noise, seed=3, **OPTIONS)))[-1].pictures[0]
        for made in (half, generator)
    )
    in_torch = StableDiffusionPipeline.from_pretrained(folder, dtype=torch.bfloat16)
    in_torch.set_progress_bar_config(disable=True)
    latents = torch.from_numpy(noise).to(torch.bfloat16)
    steps, scale = OPTIONS["steps"], OPTIONS["guidance_scale"]
    theirs = in_torch(
        "red dot", latents=latents, num_inference_steps=steps, guidance_scale=scale, output_type="latent"
    ).images

    def apart(latents: np.ndarray) -> float:
        return float(np.sqrt(np.square(latents - exact.latents).mean()))

    assert ours.latents.dtype == ours.pixels.dtype == np.float32
    assert 1e-4 < apart(ours.latents) < 1.5 * apart(theirs.float().numpy()) < 0.1 * exact.latents.std()

    *_, comparison = replay(half, list(half.generate(ImageRequest("red dot", seed=3, **OPTIONS)))[-1].pictures[0].png)
    assert isinstance(comparison, Comparison)
    assert comparison.is_identical
    *_, comparison = replay(
        half, list(generator.generate(ImageRequest("red dot", seed=3, **OPTIONS)))[-1].pictures[0].png
    )
    assert comparison.changes == ("dtype float32, now bfloat16",)
    assert not comparison.is_identical
