"""Pipelines of each class with random weights, made on the spot: as small as their architectures go, 32x32 pixels."""

from collections.abc import Callable
from typing import Any

import torch
from diffusers import (
    AuraFlowPipeline,
    AuraFlowTransformer2DModel,
    AutoencoderKL,
    DDIMScheduler,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    LatentConsistencyModelPipeline,
    LCMScheduler,
    PixArtAlphaPipeline,
    PixArtTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

TOKENS = 16
WIDTH = 32
LETTERS = "abcdefghijklmnopqrstuvwxyz"
V_PREDICTION = {
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "timestep_spacing": "trailing",
    "clip_sample": False,
    "steps_offset": 1,  # has no effect with trailing timesteps, but StableDiffusionPipeline warns of anything else
}


def clip_tokenizer(tokens: int = TOKENS) -> CLIPTokenizer:
    """A token for each letter."""
    pieces = ["<|startoftext|>", "<|endoftext|>", *LETTERS, *(letter + "</w>" for letter in LETTERS)]
    return CLIPTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], model_max_length=tokens)


def clip(kind: type[CLIPTextModel] | type[CLIPTextModelWithProjection] = CLIPTextModel, width: int = WIDTH) -> Any:
    config = CLIPTextConfig(
        vocab_size=2 + 2 * len(LETTERS),
        hidden_size=width,
        intermediate_size=64,
        projection_dim=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return kind(config)


def t5_tokenizer() -> T5Tokenizer:
    pieces = ["<pad>", "</s>", "<unk>", "▁", *LETTERS]
    return T5Tokenizer(vocab=[(piece, -2.0) for piece in pieces], extra_ids=0, model_max_length=TOKENS)


def t5() -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(vocab_size=4 + len(LETTERS), d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    )


def unet(latent_size: int = 16, **options: Any) -> UNet2DConditionModel:
    return UNet2DConditionModel(
        **{
            "sample_size": latent_size,
            "in_channels": 4,
            "out_channels": 4,
            "layers_per_block": 1,
            "block_out_channels": (16, 32),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": WIDTH,
            "attention_head_dim": 2,
            "norm_num_groups": 8,
        }
        | options
    )


def vae(latent_size: int = 16, blocks: int = 2, **options: Any) -> AutoencoderKL:
    """All blocks but one halve the picture's sides."""
    return AutoencoderKL(
        sample_size=2 ** (blocks - 1) * latent_size,
        block_out_channels=(16,) * blocks,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        layers_per_block=1,
        norm_num_groups=8,
        **({"latent_channels": 4, "scaling_factor": 0.7, "mid_block_add_attention": False} | options),
    )


def stable_diffusion(latent_size: int = 16, scheduler: Any = None, **options: Any) -> StableDiffusionPipeline:
    torch.manual_seed(0)
    parts = {
        "text_encoder": clip(),
        "unet": unet(latent_size, **options),
        "vae": vae(latent_size),
    }
    return finished(
        StableDiffusionPipeline(
            **{name: amplified(part) for name, part in parts.items()},
            tokenizer=clip_tokenizer(),
            scheduler=scheduler or DDIMScheduler(**V_PREDICTION),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    )


def stable_diffusion_2() -> StableDiffusionPipeline:
    """Version 2 differs in its attention: a linear projection, and heads of one width at every level."""
    scheduler = DDIMScheduler(**V_PREDICTION)
    return stable_diffusion(scheduler=scheduler, use_linear_projection=True, attention_head_dim=(2, 4))


def sd_turbo() -> StableDiffusionPipeline:
    scheduler = EulerDiscreteScheduler(timestep_spacing="trailing", steps_offset=1, beta_schedule="scaled_linear")
    return stable_diffusion(scheduler=scheduler, use_linear_projection=True, attention_head_dim=(2, 4))


def latent_consistency() -> LatentConsistencyModelPipeline:
    """The guidance scale is an input of its denoiser, and it has no negative prompt."""
    torch.manual_seed(0)
    parts = {"text_encoder": clip(), "unet": unet(time_cond_proj_dim=8), "vae": vae()}
    return finished(
        LatentConsistencyModelPipeline(
            **{name: amplified(part) for name, part in parts.items()},
            tokenizer=clip_tokenizer(),
            scheduler=LCMScheduler(),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    )


def aura_flow() -> AuraFlowPipeline:
    """Passes its denoiser a timestep from 0 to 1."""
    torch.manual_seed(0)
    transformer = AuraFlowTransformer2DModel(
        sample_size=16,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=WIDTH,
        caption_projection_dim=32,
        pos_embed_max_size=256,
    )
    return finished(
        AuraFlowPipeline(
            tokenizer=t5_tokenizer(),
            text_encoder=t5(),
            vae=vae(),
            transformer=transformer,
            scheduler=FlowMatchEulerDiscreteScheduler(shift=1.73),
        )
    )


def stable_diffusion_xl(scheduler: Any = None) -> StableDiffusionXLPipeline:
    torch.manual_seed(0)
    parts = {
        "text_encoder": clip(),
        "text_encoder_2": clip(CLIPTextModelWithProjection, 16),
        "unet": unet(
            cross_attention_dim=WIDTH + 16,
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=24 + 6 * 8,
            transformer_layers_per_block=(1, 2),
            use_linear_projection=True,
        ),
        "vae": vae(),
    }
    return finished(
        StableDiffusionXLPipeline(
            **{name: amplified(part) for name, part in parts.items()},
            tokenizer=clip_tokenizer(),
            tokenizer_2=clip_tokenizer(),
            scheduler=scheduler or EulerDiscreteScheduler(beta_schedule="scaled_linear", steps_offset=1),
            add_watermarker=False,
        )
    )


def sdxl_turbo() -> StableDiffusionXLPipeline:
    return stable_diffusion_xl(
        EulerAncestralDiscreteScheduler(timestep_spacing="trailing", steps_offset=1, beta_schedule="scaled_linear")
    )


def pixart() -> PixArtAlphaPipeline:
    """A transformer that takes the prompt's mask and predicts a variance besides the noise."""
    torch.manual_seed(0)
    transformer = PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        cross_attention_dim=WIDTH,
        caption_channels=WIDTH,
        sample_size=16,
        use_additional_conditions=False,
    )
    return finished(
        PixArtAlphaPipeline(
            tokenizer=t5_tokenizer(),
            text_encoder=amplified(t5()),
            vae=amplified(vae()),
            transformer=transformer,  # not amplified: its latents would be in the thousands
            scheduler=DPMSolverMultistepScheduler(),
        )
    )


def stable_diffusion_3(blocks: int = 2) -> StableDiffusion3Pipeline:
    """A transformer over words and pixels together, three text encoders, and flow matching."""
    torch.manual_seed(0)
    transformer = SD3Transformer2DModel(
        sample_size=16,
        in_channels=8,
        out_channels=8,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=64,
        caption_projection_dim=32,
        pooled_projection_dim=48,
        pos_embed_max_size=16,
    )
    t5_wide = T5EncoderModel(
        T5Config(vocab_size=4 + len(LETTERS), d_model=64, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    )
    parts = {
        "transformer": transformer,
        "text_encoder": clip(CLIPTextModelWithProjection),
        "text_encoder_2": clip(CLIPTextModelWithProjection),
        "text_encoder_3": t5_wide,
        "vae": vae(blocks=blocks, latent_channels=8, shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False),
    }
    return finished(
        StableDiffusion3Pipeline(
            **{name: amplified(part) for name, part in parts.items()},
            tokenizer=clip_tokenizer(),
            tokenizer_2=clip_tokenizer(),
            tokenizer_3=t5_tokenizer(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        )
    )


CLASSES: dict[str, Callable[[], DiffusionPipeline]] = {
    "SD 2": stable_diffusion_2,
    "SD-Turbo": sd_turbo,
    "SDXL": stable_diffusion_xl,
    "SDXL-Turbo": sdxl_turbo,
    "PixArt": pixart,
    "SD 3": stable_diffusion_3,
}


def amplified(module: torch.nn.Module) -> torch.nn.Module:
    """Matrices doubled, so that prompts and steps make a visible difference."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
    return module


def finished(pipeline: Any) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()  # as `from_pretrained` leaves it: without dropout
    return pipeline
