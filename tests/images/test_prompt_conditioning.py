"""Conditioning from the pipelines' own code: while a network is traced, and for pipelines that are refused."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffusers import StableDiffusionPipeline

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.checkpoint import denoiser_name
from hfjax_app.images.prompt_conditioning import PromptReader
from hfjax_app.runtime.module import pure_function, weights_of
from hfjax_app.runtime.programs import Programs

from .pipelines import CLASSES, latent_consistency, stable_diffusion


@pytest.mark.parametrize("name", ["SD 2", "SDXL", "PixArt", "SD 3"])
def test_prompts_are_read_while_a_network_is_traced(name: str) -> None:
    """While a new size was compiled, other requests failed: their pipeline read the dtype and device of networks whose
    parameters the trace had replaced ("Could not run 'aten::empty_strided'")."""
    pipeline = CLASSES[name]()
    reader = PromptReader(pipeline, Programs())
    request = ImageRequest("red", guidance_scale=2.0, width=32, height=32)
    before = reader.read(request)
    for network in (getattr(pipeline, denoiser_name(pipeline)), pipeline.vae):
        is_inside, may_end = threading.Event(), threading.Event()

        def slow(module: Any, x: Any, is_inside: Any = is_inside, may_end: Any = may_end) -> Any:
            is_inside.set()
            assert may_end.wait(120)
            return x * 1

        def trace(network: Any = network, slow: Any = slow) -> None:
            jax.eval_shape(pure_function(network, slow), weights_of(network), jnp.ones(3))

        thread = threading.Thread(target=trace)
        thread.start()
        try:
            assert is_inside.wait(120)
            conditioning = reader.read(request)
        finally:
            may_end.set()
            thread.join()
        for got, want in zip(conditioning.arrays, before.arrays, strict=True):
            assert (got is None) == (want is None)
            if got is not None:
                np.testing.assert_array_equal(got, want)


class Unpadded(StableDiffusionPipeline):
    """Its denoiser gets as many tokens as a prompt has letters, without a mask."""

    def encode_prompt(self, prompt: str | list[str], *args: Any, **kwargs: Any) -> Any:
        letters = max(map(len, [prompt] if isinstance(prompt, str) else prompt))
        states, negative = super().encode_prompt(prompt, *args, **kwargs)
        return states[:, :letters], negative[:, :letters]


def test_a_pipeline_whose_prompts_can_t_be_padded_is_refused() -> None:
    """Each length of a prompt would have needed another program."""
    pipeline = Unpadded(**stable_diffusion().components, requires_safety_checker=False)
    with pytest.raises(ModelUnavailable, match=r"Unpadded can't run .* each length of a prompt needs"):
        ImageGenerator(pipeline)


def test_a_pipeline_without_a_negative_prompt_refuses_one() -> None:
    """diffusers raised a TypeError while drawing."""
    generator = ImageGenerator(latent_consistency())
    with pytest.raises(RequestRejected, match="negative prompt: this model takes none; leave it empty"):
        generator.generate(ImageRequest("red dot", negative_prompt="blue"))
    [step] = generator.generate(ImageRequest("red dot", negative_prompt=" ", steps=1, guidance_scale=2.0))
    assert step.image is not None
