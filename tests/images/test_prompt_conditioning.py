"""Conditioning from the pipelines' own code: while a network is traced, and for pipelines that are refused."""

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.images import ImageGenerator, ImageRequest
from hfjax_app.images.checkpoint import denoiser_name
from hfjax_app.images.prompt_conditioning import PromptReader
from hfjax_app.runtime.module import pure_function, weights_of
from hfjax_app.runtime.programs import Programs

from .pipelines import CLASSES, aura_flow, cog_view_4, latent_consistency


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


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (aura_flow, "AuraFlowPipeline can't run .* a time of its own, 1 where the scheduler's is 1000"),
        (cog_view_4, "CogView4Pipeline can't run .* once with the prompt and once without it"),
    ],
    ids=["time", "guidance"],
)
def test_a_pipeline_that_uses_its_denoiser_otherwise_is_refused(make: Callable[[], Any], says: str) -> None:
    """It was loaded, and drew with a wrong timestep, or without guidance."""
    with pytest.raises(ModelUnavailable, match=says):
        ImageGenerator(make())


def test_a_pipeline_without_a_negative_prompt_refuses_one() -> None:
    """diffusers raised a TypeError while drawing."""
    generator = ImageGenerator(latent_consistency())
    with pytest.raises(RequestRejected, match="negative prompt: this model takes none; leave it empty"):
        generator.generate(ImageRequest("red dot", negative_prompt="blue"))
    [step] = generator.generate(ImageRequest("red dot", negative_prompt=" ", steps=1, guidance_scale=2.0))
    assert step.image is not None
