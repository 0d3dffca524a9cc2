"""A Stable Diffusion pipeline with random weights, 32x32 pixels, that tests share, and a generator around it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline

from hfjax_app.images import ImageGenerator
from hfjax_app.runtime.process import prepare
from tests.conftest import quickly_compiled

from .pipelines import stable_diffusion


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """More threads only slow down networks this small."""
    prepare()
    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def compiled_quickly(quick_compiler: None) -> None:
    """These tests check results, not speed."""


@pytest.fixture(scope="session")
def make_pipeline() -> Callable[..., StableDiffusionPipeline]:
    """`make_pipeline(latent_size=16)`: a pipeline of its own."""
    return stable_diffusion


@pytest.fixture(scope="session")
def pipeline(make_pipeline: Callable[..., StableDiffusionPipeline]) -> StableDiffusionPipeline:
    """Shared by tests, which must not change it."""
    return make_pipeline()


@pytest.fixture(scope="session")
def folder(pipeline: StableDiffusionPipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline")
    pipeline.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def generator(folder: Path) -> ImageGenerator:
    with quickly_compiled():  # made before a module's own fixtures
        return ImageGenerator.from_pretrained(folder)
