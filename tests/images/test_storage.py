"""Weights as int8, and files of float8: what is drawn is what torch's networks with such weights are."""

import copy
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import load_file, save_file

from hfjax_app.errors import RequestRejected
from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.networks import Storage
from hfjax_app.runtime.checkpoints.int8 import round_in_place
from hfjax_app.runtime.memory import is_on_host

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


@pytest.mark.parametrize("quantize", ["none", pytest.param("int8", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name != "Stable Diffusion"))
        for name in ("Stable Diffusion", "Z-Image", "Qwen-Image", "Stable Diffusion 3.5")
    ],
)
def test_text_encoders_on_the_host_draw_the_same(
    name: str, quantize: str, pipeline: StableDiffusionPipeline, tmp_path: Path, compilations: Callable[..., Any]
) -> None:
    """To the last bit, and a device holds nothing of them, also while two prompts are drawn in turns."""
    (pipeline if name == "Stable Diffusion" else family(name)).save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text(CARD)
    before = live()
    on_device = ImageGenerator.from_pretrained(tmp_path, storage=Storage(quantize=quantize))
    between = live()
    on_host = ImageGenerator.from_pretrained(tmp_path, storage=Storage(quantize=quantize, text_encoders="host"))
    of_device, of_host = (
        [after - earlier for after, earlier in zip(*pair, strict=True)]
        for pair in ((between, before), (live(), between))
    )
    encoders = on_device.held_memory.weights - on_host.held_memory.weights
    assert of_host[1] == encoders > 0
    assert of_device[1] == 0
    assert of_device[0] - of_host[0] >= encoders
    with compilations() as compiled:
        np.testing.assert_array_equal(latents(on_host), latents(on_device))
        options = {"steps": STEPS, "seed": 3, "guidance_scale": 3.0, "width": 32, "height": 32}
        drawn = [[g.generate(ImageRequest(p, **options)) for p in ("a hat", "a cat")] for g in (on_host, on_device)]
        steps = [[list(step)[-1] for step in zip(*pair, strict=True)] for pair in drawn]
    assert compiled == []
    for step, want in zip(*steps, strict=True):
        np.testing.assert_array_equal(step.pictures[0].latents, want.pictures[0].latents)


def live() -> tuple[int, int]:
    """Bytes of jax's arrays on the device, and in the host's memory."""
    gc.collect()
    found = {True: 0, False: 0}
    for array in jax.live_arrays():
        found[is_on_host(array)] += array.nbytes
    return found[False], found[True]


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
