"""Weights as int8, and files of float8: what is drawn is what torch's networks with such weights are."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import load_file, save_file

from hfjax_app.errors import RequestRejected
from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.networks import Storage
from hfjax_app.runtime.checkpoints.int8 import round_in_place

from .families import family

STEPS = 2
INT8 = Storage(quantize="int8")


def latents(generator: ImageGenerator) -> np.ndarray:
    request = ImageRequest("a red dot", steps=STEPS, seed=3, guidance_scale=3.0, width=32, height=32)
    return list(generator.generate(request))[-1].pictures[0].latents


CARD = """---
inference:
  parameters: {num_inference_steps: 2, guidance_scale: 0, width: 32, height: 32}
---
"""


@pytest.mark.parametrize("name", ["Stable Diffusion", pytest.param("Z-Image", marks=pytest.mark.slow)])
def test_int8_weights_are_rounded_weights(name: str, pipeline: StableDiffusionPipeline, tmp_path: Path) -> None:
    """The denoiser and the text encoders, read from files; the autoencoder stays as it is."""
    exact = copy.deepcopy(pipeline) if name == "Stable Diffusion" else family(name)
    for folder in ("exact", "rounded"):
        exact.save_pretrained(tmp_path / folder)
        (tmp_path / folder / "README.md").write_text(CARD)
        for key in ("text_encoder", "unet", "transformer"):
            if (network := getattr(exact, key, None)) is not None:
                round_in_place(network)
    whole = ImageGenerator.from_pretrained(tmp_path / "exact")
    want = latents(ImageGenerator.from_pretrained(tmp_path / "rounded"))
    generator = ImageGenerator.from_pretrained(tmp_path / "exact", storage=INT8)
    np.testing.assert_allclose(latents(generator), want, rtol=0, atol=2e-4 * np.abs(want).max())
    assert np.abs(latents(whole) - want).max() > 1e-3, "rounding must matter"
    assert generator.facts.versions["dtype"] == "int8 and float32"
    assert generator.held_memory.weights < 0.8 * whole.held_memory.weights


def test_an_unknown_quantisation_is_refused(pipeline: StableDiffusionPipeline) -> None:
    with pytest.raises(RequestRejected, match=r"^quantize = 'int3': one of none, int8$"):
        ImageGenerator(pipeline, storage=Storage(quantize="int3"))


def test_float8_files_are_read(pipeline: StableDiffusionPipeline, tmp_path: Path) -> None:
    """As model sites offer them: the same tensors, cast. Each number is that of the file."""
    pipeline.save_pretrained(tmp_path)
    [file] = (tmp_path / "unet").glob("*.safetensors")
    small = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(file).items()}
    save_file(small, file, metadata={"format": "pt"})
    cast = copy.deepcopy(pipeline)
    cast.unet.load_state_dict({name: tensor.float() for name, tensor in small.items()})
    got = latents(ImageGenerator.from_pretrained(tmp_path))
    np.testing.assert_array_equal(got, latents(ImageGenerator(cast)))
    assert np.isfinite(got).all()
