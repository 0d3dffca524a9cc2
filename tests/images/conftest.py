"""A Stable Diffusion pipeline with random weights, 32x32 pixels, made on the spot; and a generator around it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from hfjax_app.images import ImageGenerator
from hfjax_app.runtime.process import prepare

TOKENS = 16
LETTERS = "abcdefghijklmnopqrstuvwxyz"
V_PREDICTION = {
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "timestep_spacing": "trailing",
    "clip_sample": False,
    "steps_offset": 1,  # has no effect with trailing timesteps, but StableDiffusionPipeline warns of anything else
}


def build(latent_size: int = 16) -> StableDiffusionPipeline:
    """Random weights, doubled where they are matrices, so that prompts and steps make a visible difference."""
    torch.manual_seed(0)
    pieces = ["<|startoftext|>", "<|endoftext|>", *LETTERS, *(letter + "</w>" for letter in LETTERS)]
    tokenizer = CLIPTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=TOKENS)
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(pieces),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=TOKENS,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    unet = UNet2DConditionModel(
        sample_size=latent_size,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=2,
        norm_num_groups=8,
    )
    vae = AutoencoderKL(
        sample_size=2 * latent_size,
        latent_channels=4,
        block_out_channels=(16, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=8,
        mid_block_add_attention=False,
        scaling_factor=0.7,
    )
    with torch.no_grad():
        for module in (text_encoder, unet, vae):
            for parameter in module.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(2)
    pipeline = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=DDIMScheduler(**V_PREDICTION),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="session")
def make_pipeline() -> Callable[..., StableDiffusionPipeline]:
    """`make_pipeline(latent_size=16)`: a pipeline of its own."""
    prepare()
    torch.set_num_threads(1)  # networks this small only wait for each other's threads
    return build


@pytest.fixture(scope="session")
def pipeline(make_pipeline: Callable[..., StableDiffusionPipeline]) -> StableDiffusionPipeline:
    """One that tests share: don't change it."""
    return make_pipeline()


@pytest.fixture(scope="session")
def folder(pipeline: StableDiffusionPipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline")
    pipeline.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def generator(folder: Path) -> ImageGenerator:
    return ImageGenerator.from_pretrained(folder)
