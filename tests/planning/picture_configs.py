"""Image models of today as folders of configs, with the shapes of their repositories; no weights.

    python -m tests.planning.picture_configs FOLDER

Tokenizers are small ones of the same classes: a plan reads their lengths only. Cards have the steps and the guidance
scale of the real ones, and 1024x1024 pixels.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import init_empty_weights
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    UNet2DConditionModel,
    ZImageTransformer2DModel,
)
from transformers import CLIPTextConfig, Qwen2_5_VLConfig, Qwen3Config, T5Config

from tests.images.families import DYNAMIC, qwen_tokenizer
from tests.images.pipelines import clip_tokenizer, t5_tokenizer

_CARD = """---
inference:
  parameters: {{num_inference_steps: {}, guidance_scale: {}, width: 1024, height: 1024}}
---
"""
Parts = dict[str, tuple[str, Any]]  # by name: the class, and what has `save_config` or `save_pretrained`


def _autoencoder(channels: int, **options: Any) -> tuple[str, Any]:
    kind = AutoencoderKLFlux2 if channels == 32 else AutoencoderKL
    blocks = {
        "block_out_channels": (128, 256, 512, 512),
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "layers_per_block": 2,
        "latent_channels": channels,
        "sample_size": 1024,
    }
    return kind.__name__, kind(**blocks | options)


def _of_16_channels(**options: Any) -> tuple[str, Any]:
    return _autoencoder(16, use_quant_conv=False, use_post_quant_conv=False, **options)


def _clip_l(kind: str) -> tuple[str, Any]:
    return kind, CLIPTextConfig(
        vocab_size=49408,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        projection_dim=768,
    )


def _clip_g() -> tuple[str, Any]:
    return "CLIPTextModelWithProjection", CLIPTextConfig(
        vocab_size=49408,
        hidden_size=1280,
        intermediate_size=5120,
        num_hidden_layers=32,
        num_attention_heads=20,
        hidden_act="gelu",
        projection_dim=1280,
    )


def _t5() -> tuple[str, Any]:
    return "T5EncoderModel", T5Config(
        vocab_size=32128,
        d_model=4096,
        d_kv=64,
        d_ff=10240,
        num_layers=24,
        num_heads=64,
        feed_forward_proj="gated-gelu",
    )


def _qwen3(kind: str) -> tuple[str, Any]:
    return kind, Qwen3Config(
        vocab_size=151936,
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        pad_token_id=0,
    )


def _long_t5_tokenizer() -> tuple[str, Any]:
    tokenizer = t5_tokenizer()
    tokenizer.model_max_length = 512
    return "T5Tokenizer", tokenizer


def _scheduler(**options: Any) -> tuple[str, Any]:
    return "FlowMatchEulerDiscreteScheduler", FlowMatchEulerDiscreteScheduler(**options)


def flux_schnell() -> Parts:
    return {
        "transformer": ("FluxTransformer2DModel", FluxTransformer2DModel(guidance_embeds=False)),
        "vae": _of_16_channels(scaling_factor=0.3611, shift_factor=0.1159),
        "text_encoder": _clip_l("CLIPTextModel"),
        "text_encoder_2": _t5(),
        "tokenizer": ("CLIPTokenizer", clip_tokenizer(77)),
        "tokenizer_2": _long_t5_tokenizer(),
        "scheduler": _scheduler(shift=1.0),
    }


def flux_2_klein() -> Parts:
    transformer = Flux2Transformer2DModel(
        num_layers=5,
        num_single_layers=20,
        num_attention_heads=24,
        joint_attention_dim=3 * 2560,
        guidance_embeds=False,
    )
    return {
        "transformer": ("Flux2Transformer2DModel", transformer),
        "vae": _autoencoder(32),
        "text_encoder": _qwen3("Qwen3ForCausalLM"),
        "tokenizer": ("Qwen2Tokenizer", qwen_tokenizer()),
        "scheduler": _scheduler(**DYNAMIC),
    }


def qwen_image() -> Parts:
    text = {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1e6},
    }
    vision = {"depth": 32, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420, "out_hidden_size": 3584}
    return {
        "transformer": ("QwenImageTransformer2DModel", QwenImageTransformer2DModel()),
        "vae": ("AutoencoderKLQwenImage", AutoencoderKLQwenImage()),
        "text_encoder": (
            "Qwen2_5_VLForConditionalGeneration",
            Qwen2_5_VLConfig(text_config=text, vision_config=vision),
        ),
        "tokenizer": ("Qwen2Tokenizer", qwen_tokenizer()),
        "scheduler": _scheduler(
            **DYNAMIC | {"max_shift": 0.9, "max_image_seq_len": 8192, "shift": 1.0, "shift_terminal": 0.02},
            time_shift_type="exponential",
        ),
    }


def z_image_turbo() -> Parts:
    return {
        "transformer": ("ZImageTransformer2DModel", ZImageTransformer2DModel()),
        "vae": _of_16_channels(scaling_factor=0.3611, shift_factor=0.1159),
        "text_encoder": _qwen3("Qwen3Model"),
        "tokenizer": ("Qwen2Tokenizer", qwen_tokenizer()),
        "scheduler": _scheduler(shift=3.0),
    }


def stable_diffusion_xl() -> Parts:
    unet = UNet2DConditionModel(
        sample_size=128,
        cross_attention_dim=2048,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
        transformer_layers_per_block=(1, 2, 10),
        use_linear_projection=True,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(5, 10, 20),
    )
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, timestep_spacing="leading"
    )
    return {
        "unet": ("UNet2DConditionModel", unet),
        "vae": _autoencoder(4, scaling_factor=0.13025),
        "text_encoder": _clip_l("CLIPTextModel"),
        "text_encoder_2": _clip_g(),
        "tokenizer": ("CLIPTokenizer", clip_tokenizer(77)),
        "tokenizer_2": ("CLIPTokenizer", clip_tokenizer(77)),
        "scheduler": ("EulerDiscreteScheduler", scheduler),
    }


def stable_diffusion_3_5_medium() -> Parts:
    transformer = SD3Transformer2DModel(
        sample_size=128,
        num_layers=24,
        num_attention_heads=24,
        joint_attention_dim=4096,
        caption_projection_dim=1536,
        pooled_projection_dim=2048,
        out_channels=16,
        pos_embed_max_size=384,
        dual_attention_layers=tuple(range(13)),
        qk_norm="rms_norm",
    )
    return {
        "transformer": ("SD3Transformer2DModel", transformer),
        "vae": _of_16_channels(scaling_factor=1.5305, shift_factor=0.0609),
        "text_encoder": _clip_l("CLIPTextModelWithProjection"),
        "text_encoder_2": _clip_g(),
        "text_encoder_3": _t5(),
        "tokenizer": ("CLIPTokenizer", clip_tokenizer(77)),
        "tokenizer_2": ("CLIPTokenizer", clip_tokenizer(77)),
        "tokenizer_3": _long_t5_tokenizer(),
        "scheduler": _scheduler(shift=3.0),
    }


# By repository: the pipeline's class, its parts, and the card's steps and guidance scale.
MODELS: dict[str, tuple[str, Callable[[], Parts], int, float]] = {
    "FLUX.1-schnell": ("FluxPipeline", flux_schnell, 4, 0.0),
    "FLUX.2-klein-4B": ("Flux2KleinPipeline", flux_2_klein, 4, 1.0),
    "Qwen-Image": ("QwenImagePipeline", qwen_image, 50, 4.0),
    "Z-Image-Turbo": ("ZImagePipeline", z_image_turbo, 9, 0.0),
    "stable-diffusion-3.5-medium": ("StableDiffusion3Pipeline", stable_diffusion_3_5_medium, 40, 4.5),
    "stable-diffusion-xl-base-1.0": ("StableDiffusionXLPipeline", stable_diffusion_xl, 50, 5.0),
}


def save_configs(model: str, folder: Path) -> None:
    """Write one of MODELS into a folder."""
    pipeline, parts, steps, guidance = MODELS[model]
    index: dict[str, Any] = {"_class_name": pipeline}
    if pipeline == "Flux2KleinPipeline":
        index["is_distilled"] = True
    with init_empty_weights():
        made = parts()
    for name, (kind, part) in made.items():
        library = "diffusers" if hasattr(part, "save_config") else "transformers"
        (part.save_config if library == "diffusers" else part.save_pretrained)(folder / name)
        index[name] = [library, kind]
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "README.md").write_text(_CARD.format(steps, guidance))


if __name__ == "__main__":
    for each in MODELS:
        save_configs(each, Path(sys.argv[1]) / each)
