"""Attention masks of a picture's tokens where they see each other both ways, by transformers' own mask functions.

Where they see what is before them only, as text does, a model makes its masks itself.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask, sliding_window_overlay


def both_ways(config: Any, embeddings: torch.Tensor, cache: Cache, positions: torch.Tensor) -> Mapping[str, Any]:
    """The masks by type of layer, when the tokens that are written are those of one whole picture.

    As transformers' `create_masks_for_vision_model` makes them, which needs lengths as Python ints: a layer's window
    also ends what a picture's token sees of its picture.

    Args:
        config: of the text model.
        embeddings: [1, tokens, hidden].
        cache: as the model's forward takes it.
        positions: int32 [1, tokens], the last one that of the picture's last token.
    """

    def in_picture(batch: Any, head: Any, query: Any, key: torch.Tensor) -> torch.Tensor:
        return key <= positions[0, -1]

    mask = partial(create_causal_mask, config, embeddings, None, cache, positions, or_mask_function=in_picture)
    masks = {"full_attention": mask()}
    if True in cache.is_sliding:
        window = sliding_window_overlay(config.sliding_window)
        masks["sliding_attention"] = mask(and_mask_function=window, layer_idx=cache.is_sliding.index(True))
    return masks
