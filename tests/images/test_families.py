"""The families of today, read from their files, against their own `__call__` in torch: pictures, before rounding."""

import inspect
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hfjax_app.images import ImageGenerator, ImageRequest, noise
from hfjax_app.images.checkpoint import network_names, read_empty
from hfjax_app.images.schedule import GivenNoise
from hfjax_app.images.stand_ins import UncleanedText

from .families import FAMILIES, family

SEED = 7
STEPS = 2
PROMPT = "a red dot"
GUIDED, ALONE = 3.0, 0.0
OWN, OTHER = (64, 32), (32, 32)
CARD = """---
inference:
  parameters: {num_inference_steps: 2, guidance_scale: 0, width: 64, height: 32}
---
"""
# A transformer that packs its latents, one that takes lists and reads lengths of prompts, and a UNet whose text encoder
# has the axis of tokens first.
REPRESENTATIVE = {"Flux.1 dev", "Z-Image", "Kolors"}
# Letters of the longest prompt, a token each, beside the tokens that a template or tokenizer adds.
LONGEST = {"Z-Image": 506, "Kolors": 253, "CogView 4": 1023, "PRX": 255, "Krea 2": 392}
# Whose class cleans each prompt, with ftfy, and refuses a guidance scale below 1.
UNCLEANED = {"PRX"}
# The argument of the guidance scale and what it needs, where that is not `guidance_scale` alone.
TRUE = ("true_cfg_scale", {"negative_prompt": " "})
GUIDANCE: dict[str, tuple[str, dict[str, Any]]] = {"Qwen-Image": TRUE, "Flux.1 schnell": TRUE}


def torch_pixels(name: str, pipeline: Any, shape: tuple[int, ...], request: dict[str, Any]) -> np.ndarray:
    """diffusers' own picture, given the generator's noise: float32 [height, width, 3]."""
    key, options = noise.key_of(SEED), dict(request)
    first, _ = noise.first_noise(SEED, shape)
    fresh = (torch.tensor(np.asarray(noise.step_noise(key, i, shape))) for i in range(STEPS))
    argument, needed = GUIDANCE.get(name, ("guidance_scale", {}))
    options[argument] = max(options.pop("guidance_scale"), 1.0 if name in UNCLEANED else 0.0)
    accepted = inspect.signature(pipeline.__call__).parameters
    plain = {"use_resolution_binning": False, "clean_caption": False, "max_area": options["width"] * options["height"]}
    if name in UNCLEANED:
        pipeline.text_preprocessor = UncleanedText()
    if hasattr(pipeline, "resolutions"):  # the only sizes of its class
        pipeline.resolutions = [OWN, OTHER]
    options |= {name: value for name, value in plain.items() if name in accepted}
    with GivenNoise(chain([torch.from_numpy(first)], fresh)):
        return pipeline(num_inference_steps=STEPS, output_type="np", **needed | options)[0][0]


def drawn(generator: ImageGenerator, **options: Any) -> Any:
    return list(generator.generate(ImageRequest(steps=STEPS, seed=SEED, **options)))[-1].pictures


@pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")  # diffusers' own import, in Chroma
@pytest.mark.filterwarnings("ignore:`LoraLoaderMixin` is deprecated:FutureWarning")  # diffusers' own base class, in PRX
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in REPRESENTATIVE)) for name in FAMILIES]
)
def test_pictures_equal_diffusers(
    name: str, tmp_path: Path, compilations: Callable, capfd: pytest.CaptureFixture[str]
) -> None:
    """With and without guidance, at two sizes; nothing compiles then, and two seeds together equal each alone."""
    pipeline = family(name)
    pipeline.save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text(CARD)
    empty = read_empty(tmp_path)
    parts = [getattr(empty, part) for part in network_names(empty)]
    assert {each.untyped_storage().nbytes() for part in parts for each in part.parameters()} == {4}, "no weights yet"
    generator = ImageGenerator.from_pretrained(tmp_path, sizes=[OTHER])
    assert "is ignored" not in capfd.readouterr().err, "warnings of a class are not about a user's request"
    facts = generator.facts
    assert facts.size == OWN
    seen: list[np.ndarray] = []
    for size, guidance in ((OWN, GUIDED), (OTHER, ALONE)):
        options: dict[str, Any] = {
            "prompt": PROMPT,
            "guidance_scale": guidance,
            "width": size[0],
            "height": size[1],
        }
        with compilations() as compiled:
            [picture] = drawn(generator, **options)
        assert compiled == []
        want = torch_pixels(name, pipeline, facts.latents.of(size), options)
        assert want.shape == (size[1], size[0], 3)
        assert want.std() > 0.05, "the comparison needs a picture"
        np.testing.assert_allclose(picture.pixels, want, rtol=0, atol=2e-4)
        seen.append(picture.pixels)
    with compilations() as compiled:
        [first, second] = drawn(generator, **options, images=2)
        steps = list(generator.generate(ImageRequest(**options, steps=STEPS, seed=SEED + 1)))
        assert steps[0].previews[0].size == OTHER
        [other] = drawn(generator, **options | {"prompt": "the blue one"})
    assert compiled == []
    np.testing.assert_array_equal(first.pixels, seen[1])
    np.testing.assert_array_equal(second.pixels, steps[-1].pictures[0].pixels)
    assert np.abs(other.pixels - seen[1]).max() > 1e-3, "the prompt must matter"
    if name in LONGEST:
        read, end = LONGEST[name], "b" * 9
        *_, step = generator.generate(ImageRequest(**options | {"prompt": "a" * read + end}, steps=STEPS))
        assert step.notice == f"the end of the prompt was not read: {end!r}"
        *_, step = generator.generate(ImageRequest(**options | {"prompt": "a" * read}, steps=STEPS))
        assert step.notice is None
    if facts.takes_negative_prompt:
        options |= {"guidance_scale": GUIDED, "negative_prompt": "blue"}
        [picture] = drawn(generator, **options)
        want = torch_pixels(name, pipeline, facts.latents.of(OTHER), options)
        np.testing.assert_allclose(picture.pixels, want, rtol=0, atol=2e-4)
