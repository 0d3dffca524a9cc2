"""Small pictures of partly denoised latents, cheap enough for every step."""

from collections.abc import Callable

import numpy as np
from PIL import Image

# Up to this many pixels a side, decoding costs little next to a denoising step.
MAX_DECODED = 128
_BLOCK = 8


def to_picture(pixels: np.ndarray) -> Image.Image:
    """Pixels, float [height, width, 3] from 0 to 1, rounded to 8 bits as diffusers does."""
    return Image.fromarray((np.nan_to_num(pixels).clip(0, 1) * 255).round().astype(np.uint8))


def fit_colours(decode: Callable[[np.ndarray], np.ndarray], latent_shape: tuple[int, ...]) -> np.ndarray:
    """The affine map from a latent's channels to its colour, by least squares against the decoder.

    The decoder gets patches of constant random latents; its pixels are averaged over each latent.

    Args:
        decode: latents (float32, `latent_shape`) to pixels [height, width, 3].
        latent_shape: (1, channels, height, width).

    Returns:
        float32 [channels + 1, 3]; the last row is the offset.
    """
    _, channels, height, width = latent_shape
    random = np.random.default_rng(0)
    coarse = random.standard_normal((1, channels, -(-height // _BLOCK), -(-width // _BLOCK))).astype(np.float32)
    latents = coarse.repeat(_BLOCK, 2).repeat(_BLOCK, 3)[:, :, :height, :width]
    pixels = decode(latents)
    tall, wide = pixels.shape[0] // height, pixels.shape[1] // width
    colours = pixels.reshape(height, tall, width, wide, 3).mean((1, 3)).reshape(-1, 3)
    affine: np.ndarray = np.linalg.lstsq(_with_offset(latents), colours, rcond=None)[0]
    return affine.astype(np.float32)


def estimate(latents: np.ndarray, colours: np.ndarray, size: tuple[int, int]) -> Image.Image:
    """A blurred picture of latents [1, channels, height, width], enlarged to `size` (width, height)."""
    _, _, height, width = latents.shape
    small = (_with_offset(latents) @ colours).reshape(height, width, 3)
    return to_picture(small).resize(size, Image.Resampling.BICUBIC)


def _with_offset(latents: np.ndarray) -> np.ndarray:
    """[height * width, channels + 1], the last column ones."""
    flat = latents[0].reshape(latents.shape[1], -1).T
    return np.concatenate([flat, np.ones((len(flat), 1), np.float32)], 1)
