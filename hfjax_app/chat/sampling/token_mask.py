"""Which tokens an answer may go on with, one bit for each, on the device.

A grammar makes the masks on the host (`chat/text/grammar.py`), because each depends on all tokens before it.
"""

from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hfjax_app.chat.sampling.penalties import Array

_BITS = 32


class TokenMasks(NamedTuple, Generic[Array]):
    """The masks of some slots. Leading axes [slots], or none for one slot."""

    allowed: Array  # uint32 [..., words], bit t % 32 of word t // 32: token t is allowed
    used: Array  # bool [...]; False: every token is allowed


def mask_words(vocabulary: int) -> int:
    """How many words hold a bit for each token id."""
    return -(-vocabulary // _BITS)


def no_masks(vocabulary: int, *slots: int) -> TokenMasks[np.ndarray]:
    """Masks that allow everything, with the axes `slots`, as numpy arrays."""
    return TokenMasks(np.zeros((*slots, mask_words(vocabulary)), np.uint32), np.zeros(slots, bool))


def masked(logits: jax.Array, masks: TokenMasks[jax.Array]) -> jax.Array:
    """Logits with -inf for what a mask does not allow.

    Args:
        logits: float32 [slots, vocabulary].
        masks: with leading axis [slots]; in a mask that is used, a token must be allowed.

    Returns:
        float32 [slots, vocabulary].
    """
    bits = masks.allowed[:, :, None] >> jnp.arange(_BITS, dtype=jnp.uint32) & 1
    allowed = bits.reshape(logits.shape[0], -1)[:, : logits.shape[1]] != 0
    return jnp.where(allowed | ~masks.used[:, None], logits, -jnp.inf)
