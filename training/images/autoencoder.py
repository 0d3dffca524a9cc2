"""The autoencoder: 64x64 pixels to 4x16x16 latents and back, trained on the drawn scenes, without an adversary.

The loss is L1 and L2 on pixels and L1 on their differences along rows and columns, which makes edges crisp. Instead of
learning how uncertain each latent is, the encoder keeps its posterior at a small fixed deviation, and a light weight
on the latents' squares holds their scale (Ghosh et al., 2020, "From variational to deterministic autoencoders").
"""

import math
import time
from collections.abc import Callable

import torch
from diffusers import AutoencoderKL

CROP = 32
CROPS = 8
FULL = 2
CROPPED_SHARE = 0.75
ENCODER_SHARE = 2 / 7
PEAK_LEARNING_RATE = 1e-3
DEVIATION = 0.05


def build() -> AutoencoderKL:
    """An untrained AutoencoderKL of 0.65 M parameters whose posterior has the deviation DEVIATION everywhere."""
    vae = AutoencoderKL(
        sample_size=64,
        latent_channels=4,
        block_out_channels=(16, 32, 64),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
        norm_num_groups=4,
        mid_block_add_attention=False,
    )
    with torch.no_grad():
        vae.quant_conv.weight[4:] = 0
        vae.quant_conv.bias[4:] = 2 * math.log(DEVIATION)
    return vae


def differences(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Differences of neighbours along columns and rows."""
    return x[..., 1:, :] - x[..., :-1, :], x[..., :, 1:] - x[..., :, :-1]


def reconstruction_loss(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """L1 and L2 on pixels, L1 on their differences."""
    edges = sum((a - b).abs().mean() for a, b in zip(differences(y), differences(x), strict=True))
    return (y - x).abs().mean() + (y - x).square().mean() + 0.5 * edges


def rate(step: int, steps: int, peak: float, warm_up: int = 100) -> float:
    """Linear warm-up, then half a cosine down to nothing."""
    return peak * min(1.0, (step + 1) / warm_up) * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(
    vae: AutoencoderKL,
    pixels: torch.Tensor,
    steps: int,
    seed: int,
    report: Callable[[str], None],
    first: int = 0,
    encoded: Callable[[], None] = lambda: None,
) -> None:
    """Trains in place on uint8 ``pixels`` [count, 3, 64, 64]: on crops at first, then, at equal cost, on whole scenes.

    The encoder is done after ENCODER_SHARE of the steps, when ``encoded`` is called: from then on the latents stay as
    they are, a denoiser may be trained on them, and only the decoder goes on. ``first``: the step to start from.
    """
    generator = torch.Generator().manual_seed(seed + first)
    optimizer = torch.optim.AdamW(vae.parameters(), PEAK_LEARNING_RATE, betas=(0.9, 0.99), weight_decay=1e-3)
    running, began = 0.0, time.monotonic()
    for step in range(first, steps):
        if step == round(ENCODER_SHARE * steps):
            vae.encoder.requires_grad_(False)
            vae.quant_conv.requires_grad_(False)
            encoded()
        optimizer.param_groups[0]["lr"] = rate(step, steps, PEAK_LEARNING_RATE)
        whole = step >= CROPPED_SHARE * steps
        x = pixels[torch.randint(0, len(pixels), (FULL if whole else CROPS,), generator=generator)]
        if not whole:
            top, left = (4 * torch.randint(0, (64 - CROP) // 4 + 1, (2,), generator=generator)).tolist()
            x = x[:, :, top : top + CROP, left : left + CROP]
        x = x.float() / 127.5 - 1
        with torch.autocast("cpu", torch.bfloat16):
            z = vae.encode(x).latent_dist.mean
            y = vae.decode(z + DEVIATION * torch.randn(z.shape, generator=generator)).sample
        loss = reconstruction_loss(y.float(), x)
        total = loss + 1e-3 * z.float().square().mean()
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        running += loss.item()
        if (step + 1) % 200 == 0:
            report(
                f"autoencoder step {step + 1}/{steps} loss {running / 200:.4f} seconds {time.monotonic() - began:.0f}"
            )
            running = 0.0


@torch.no_grad()
def encode(vae: AutoencoderKL, pixels: torch.Tensor) -> torch.Tensor:
    """Mean latents [count, 4, 16, 16] of uint8 ``pixels``, unscaled, float32."""
    return torch.cat([vae.encode(part.float() / 127.5 - 1).latent_dist.mean for part in pixels.split(64)])
