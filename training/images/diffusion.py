"""The denoiser and its text encoder, trained together on the autoencoder's latents.

v-prediction (Salimans and Ho, 2022) on a schedule whose last step has no signal left (Lin et al., 2023: without it a
picture's mean is hard to move, and "a black background" comes out gray), a tenth of the captions empty for
classifier-free guidance (Ho and Salimans, 2022), and an exponential average of the weights.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from training.checkpoint import Checkpoint
from training.images.autoencoder import rate
from training.images.tokenizer import LENGTH

BATCH = 32
EMPTY_SHARE = 0.1
WIDTH = 128


def build_scheduler() -> DDIMScheduler:
    """The noise schedule, for training and for sampling."""
    return DDIMScheduler(
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
        steps_offset=1,
    )


def build_text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """An untrained CLIPTextModel of 0.6 M parameters."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_unet() -> UNet2DConditionModel:
    """An untrained UNet2DConditionModel of 2.9 M parameters that attends to the text at every size."""
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64, 96),
        down_block_types=("CrossAttnDownBlock2D",) * 3,
        up_block_types=("CrossAttnUpBlock2D",) * 3,
        cross_attention_dim=WIDTH,
        attention_head_dim=(2, 4, 4),  # diffusers' name for the number of heads
        norm_num_groups=8,
    )


def token_ids(tokenizer: CLIPTokenizer, captions: list[str]) -> torch.Tensor:
    """int64 [count, LENGTH], as StableDiffusionPipeline makes them."""
    return tokenizer(captions, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt").input_ids


def timesteps(count: int, generator: torch.Generator) -> torch.Tensor:
    """int64 [count] of 0 to 999, spread evenly over the batch, denser in strong noise, where scenes take shape."""
    even = (torch.arange(count) + torch.rand(count, generator=generator)) / count
    return (1000 * (1 - even**1.3)).long().clamp(0, 999)


def train(
    text_encoder: CLIPTextModel,
    unet: UNet2DConditionModel,
    latents: torch.Tensor,
    captions: torch.Tensor,
    empty: torch.Tensor,
    *,
    weights: torch.Tensor,
    steps: int,
    peak: float,
    decay: bool,
    seed: int,
    report: Callable[[str], None],
    checkpoint: Checkpoint,
) -> tuple[CLIPTextModel, UNet2DConditionModel]:
    """Trains both networks; returns their averages.

    ``latents``: float32 [count, 4, 16, 16] of unit variance; ``captions``: int64 [count, variants, LENGTH], several
    wordings of each scene; ``empty``: int64 [LENGTH]; ``weights``: how often each scene is drawn, [count]. The learning
    rate stays at its ``peak`` or, with ``decay``, falls to nothing. The ``checkpoint`` is written every 500 steps; what
    is in it at the start is gone on from, to the same weights.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = build_scheduler()
    networks = torch.nn.ModuleList([text_encoder, unet])
    average = AveragedModel(networks, multi_avg_fn=get_ema_multi_avg_fn(0.997))
    # Torch's fused attention has a slow backward on CPU for so few tokens; the plain one computes the same.
    unet.set_attn_processor(AttnProcessor())
    optimizer = torch.optim.AdamW(networks.parameters(), peak, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
    begun, running, began = 0, 0.0, time.monotonic()
    if kept := checkpoint.load():
        begun = kept["step"]
        generator.set_state(kept["generator"])
        networks.load_state_dict(kept["networks"])
        average.load_state_dict(kept["average"])
        optimizer.load_state_dict(kept["optimizer"])
    for step in range(begun, steps):
        if decay:
            optimizer.param_groups[0]["lr"] = rate(step, steps, peak)
        else:
            optimizer.param_groups[0]["lr"] = peak * min(1.0, (step + 1) / 100)
        pick = torch.multinomial(weights, BATCH, replacement=True, generator=generator)
        wording = torch.randint(0, captions.shape[1], (BATCH,), generator=generator)
        z, ids = latents[pick], captions[pick, wording]
        ids[torch.rand(BATCH, generator=generator) < EMPTY_SHARE] = empty
        t = timesteps(BATCH, generator)
        n = torch.randn(z.shape, generator=generator)
        with torch.autocast("cpu", torch.bfloat16):
            states = text_encoder(ids).last_hidden_state
            v = unet(noise.add_noise(z, n, t), t, encoder_hidden_states=states).sample
        loss = F.mse_loss(v.float(), noise.get_velocity(z, n, t))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(networks.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(networks)
        running += loss.item()
        if (step + 1) % 100 == 0:
            report(f"step {step + 1}/{steps} loss {running / 100:.4f} seconds {time.monotonic() - began:.0f}")
            running = 0.0
        if (step + 1) % 500 == 0:
            checkpoint.save(
                step=step + 1,
                generator=generator.get_state(),
                networks=networks.state_dict(),
                average=average.state_dict(),
                optimizer=optimizer.state_dict(),
            )
    return tuple(average.module)
