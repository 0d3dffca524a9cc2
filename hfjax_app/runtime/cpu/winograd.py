"""3x3 convolutions with fewer multiplications: Winograd's F(2x2, 3x3), as in Lavin, Gray (arXiv:1509.09308), 4.1.

An image is cut into tiles of 4x4 that overlap by two, each tile and the kernel are transformed, and 16 products of
matrices take the place of the convolution: 4 multiplications for each result instead of 9. The transforms of tiles are
sums, whose cost is made up for by many channels only.
"""

import jax
import jax.numpy as jnp
import torch

# Fewer channels than this, of the input or the output, gain nothing on a CPU.
LEAST_CHANNELS = 256
_KERNEL = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])  # G in the paper


def transformed(kernel: torch.Tensor) -> torch.Tensor:
    """A kernel as `convolution` takes it: [outputs, inputs, 3, 3], as in torch, to float32 [16, inputs, outputs]."""
    factor = _KERNEL.to(kernel.device)
    return torch.einsum("ai,bj,oxij->abxo", factor, factor, kernel.float()).reshape(16, *kernel.shape[1::-1])


def convolution(image: jax.Array, kernel: jax.Array) -> jax.Array:
    """The convolution of stride 1 with a border of one zero on each side.

    Args:
        image: [batch, inputs, height, width].
        kernel: `transformed`'s.

    Returns:
        [batch, outputs, height, width].
    """
    batch, inputs, height, width = image.shape
    rows, columns = -(-height // 2), -(-width // 2)  # of tiles
    # Channels last, so that each sum runs over neighbours in memory.
    border = ((0, 0), (1, 1 + height % 2), (1, 1 + width % 2), (0, 0))
    padded = jnp.pad(image.transpose(0, 2, 3, 1), border)
    tiles = jnp.stack([part for row in _of_tiles(padded, 1, rows) for part in _of_tiles(row, 2, columns)])
    products = jax.lax.dot_general(
        tiles.reshape(16, batch * rows * columns, inputs), kernel, (((2,), (1,)), ((0,), (0,)))
    ).reshape(4, 4, batch, rows, columns, -1)
    lines = _to_pixels([products[i] for i in range(4)])
    pixels = [_to_pixels([line[i] for i in range(4)]) for line in lines]
    out = jnp.stack([jnp.stack(line, 3) for line in pixels], 2)  # [batch, rows, 2, columns, 2, outputs]
    out = out.reshape(batch, 2 * rows, 2 * columns, -1)[:, :height, :width]
    return out.transpose(0, 3, 1, 2)


def _of_tiles(image: jax.Array, axis: int, tiles: int) -> list[jax.Array]:
    """B in the paper, along one axis: four numbers for each tile, which begin at every second pixel."""
    first, second, third, fourth = (jax.lax.slice_in_dim(image, i, i + 2 * tiles - 1, 2, axis) for i in range(4))
    return [first - third, second + third, third - second, second - fourth]


def _to_pixels(parts: list[jax.Array]) -> list[jax.Array]:
    """A in the paper, along one axis: two pixels from the four numbers of a tile."""
    first, second, third, fourth = parts
    return [first + second + third, second - third - fourth]
