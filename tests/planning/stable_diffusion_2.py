"""Stable Diffusion 2 at 512x512 as a folder of configs, with the shapes of its model cards; no weights."""

import json
from pathlib import Path

from accelerate import init_empty_weights
from diffusers import AutoencoderKL, PNDMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig

from tests.images.pipelines import clip_tokenizer

UNET_PARAMETERS, VAE_PARAMETERS, TEXT_PARAMETERS = 865_910_724, 83_653_863, 340_387_840
_INDEX = {
    "_class_name": "StableDiffusionPipeline",
    "feature_extractor": [None, None],
    "requires_safety_checker": False,
    "safety_checker": [None, None],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def save_configs(folder: Path) -> None:
    with init_empty_weights():
        unet = UNet2DConditionModel(
            sample_size=64, attention_head_dim=[5, 10, 20, 20], cross_attention_dim=1024, use_linear_projection=True
        )
        vae = AutoencoderKL(
            sample_size=512,
            block_out_channels=[128, 256, 512, 512],
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            layers_per_block=2,
        )
    unet.save_config(folder / "unet")
    vae.save_config(folder / "vae")
    CLIPTextConfig(
        vocab_size=49408,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=23,
        num_attention_heads=16,
        hidden_act="gelu",
        projection_dim=512,
    ).save_pretrained(folder / "text_encoder")
    clip_tokenizer(77).save_pretrained(folder / "tokenizer")
    PNDMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1
    ).save_config(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps(_INDEX))
