"""A pipeline's autoencoder as functions to compile: the loop's last latents -> a picture, a picture -> latents.

What the pipeline does around its autoencoder is traced from its own call, see `pipeline_call.py`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from hfjax_app.images.networks import fresh
from hfjax_app.images.picture_call import PictureCall
from hfjax_app.images.pipeline_call import Form, Packing, PipelineCall
from hfjax_app.images.stand_ins import stand_in
from hfjax_app.runtime.module import Shapes, Weights, pure_function
from hfjax_app.runtime.seams.torchax import torch_dtype


class Autoencoder:
    """The functions of an autoencoder.

    Args:
        module: the network, adapted to the layout of the weights.
        weights: its weights on the device, or for planned programs their shapes.
        dtype: of its computation.
        call: the pipeline's call.
        pictures: the call of the class of its family that starts from a picture; None: there is none.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        weights: Weights | Shapes,
        dtype: Any,
        call: PipelineCall,
        pictures: PictureCall | None,
    ):
        self.weights = weights
        self._module, self._dtype, self._call, self._pictures = module, torch_dtype(dtype), call, pictures

    def decoding(self, form: Form) -> Callable[..., Any]:
        """decode_latents(weights, latents, arrays) -> float32 [height, width, 3], from 0 to 1.

        `latents` are float32 of the scheduler's shape, `arrays` the conditioning's.
        """

        def run(vae: Any, latents: Any, arrays: Any) -> Any:
            def decode(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                return vae.decode(latents.to(self._dtype), *args, **kwargs)

            own = stand_in(vae, decode=decode, dtype=torch.float32, device=latents.device)
            return self._call.ending(own, form, latents, arrays)

        def decode_latents(weights: Any, latents: jax.Array, arrays: Any) -> jax.Array:
            pictures: jax.Array = pure_function(fresh(self._module), run)(weights, latents, arrays)
            return pictures[0].transpose(1, 2, 0).astype(jnp.float32)

        return decode_latents

    def encoding(self, packing: Packing) -> Callable[..., Any]:
        """encode_picture(weights, pixels, noise) -> the latents of a picture to start from, float32.

        `pixels` are float32 [height, width, 3] from 0 to 1, `noise` is float32 of `packing.noise_shape`.
        """
        pictures = self._pictures
        scale, shift = (1.0, 0.0) if pictures is not None else _normalisation(self._module.config)

        def run(vae: Any, pixels: Any, noise: Any) -> Any:
            encode = self._encode(vae)
            if pictures is None:
                distribution = encode(pixels).latent_dist
                return distribution.mean + distribution.std * noise
            of_network = {"dtype": torch.float32, "device": pixels.device, "to": lambda *_, **__: None}
            return pictures.encoded(stand_in(vae, encode=encode, **of_network), pixels, noise)

        def encode_picture(weights: Any, pixels: jax.Array, noise: jax.Array) -> jax.Array:
            encoded: jax.Array = pure_function(fresh(self._module), run)(weights, _as_read(pixels), noise)
            encoded = encoded.astype(jnp.float32)
            return encoded if pictures is not None else ((encoded - shift) * scale).reshape(-1)[packing.places]

        return encode_picture

    def referencing(self, form: Form) -> Callable[..., Any]:
        """encode_reference(weights, pixels) -> what the denoiser reads of a picture that the prompt changes, float32.

        `pixels` are as for `encoding`.
        """

        def run(vae: Any, pixels: Any) -> Any:
            own = stand_in(vae, encode=self._encode(vae), dtype=torch.float32, device=pixels.device)
            return self._call.reference(own, form, pixels)

        def encode_reference(weights: Any, pixels: jax.Array) -> list[jax.Array]:
            made: list[jax.Array] = pure_function(fresh(self._module), run)(weights, _as_read(pixels))
            return [each.astype(jnp.float32) for each in made]

        return encode_reference

    def _encode(self, vae: Any) -> Callable[..., Any]:
        """The network's `encode` in its dtype, whose distribution of latents is float32."""

        def encode(pixels: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            encoded = vae.encode(pixels.to(self._dtype), *args, **kwargs)
            of_latents = encoded.latent_dist
            encoded.latent_dist = type(of_latents)(of_latents.parameters.float())
            return encoded

        return encode


def _as_read(pixels: jax.Array) -> jax.Array:
    """[1, 3, height, width] from -1 to 1."""
    return (pixels * 2 - 1).transpose(2, 0, 1)[None]


def _normalisation(config: Any) -> tuple[np.ndarray | float, np.ndarray | float]:
    """(scale, shift): the denoiser's latents are (the autoencoder's - shift) * scale, by the pipelines' formulas."""
    if config.get("latents_mean") is None or config.get("latents_std") is None:
        return config["scaling_factor"], config.get("shift_factor") or 0.0
    mean, std = (np.array(config[name], np.float32).reshape(1, -1, 1, 1) for name in ("latents_mean", "latents_std"))
    return config["scaling_factor"] / std, mean
