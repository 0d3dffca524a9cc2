"""The models with eyes that are shown pictures, by the type of their configuration, and what differs between them.

The vision tower's own code runs unmodified. Other models with eyes answer to text only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one family of models sees.

    Args:
        embed: the whole model and pixels [1, 3, side, side] -> the picture's embeddings [tokens, hidden].
        tokens: how many embeddings a picture has, by the model's configuration.
        mark: what a chat template writes in the place of a picture.
        written: what the family's processor writes there instead, with a single placeholder. Both take the
            configuration and the text of a token by its id.
        both_ways: whether each of a picture's tokens sees all of them, also those after it.
        options: of the image processor: one view of a picture, whose size never changes.
    """

    embed: Callable[[PreTrainedModel, torch.Tensor], torch.Tensor]
    tokens: Callable[[Any], int]
    mark: Callable[[Any, Callable[[int], str]], str]
    written: Callable[[Any, Callable[[int], str]], str]
    both_ways: bool
    options: Mapping[str, Any] = field(default_factory=dict)


def _gemma3(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    embeddings: torch.Tensor = model.get_image_features(pixel_values=pixels.to(model.dtype)).pooler_output[0]
    return embeddings


def _idefics3(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Its `get_image_features` after it has left out the empty pictures of a batch, which can't be traced."""
    side = pixels.shape[-1] // model.config.vision_config.patch_size
    patches = torch.ones((1, side, side), dtype=torch.bool, device=pixels.device)
    pixels = pixels.to(model.dtype)
    seen = model.model.vision_model(pixel_values=pixels, patch_attention_mask=patches).last_hidden_state
    embeddings: torch.Tensor = model.model.connector(seen)[0]
    return embeddings


def _idefics3_tokens(config: Any) -> int:
    side: int = config.vision_config.image_size // config.vision_config.patch_size
    return side**2 // int(config.scale_factor) ** 2


def _around(config: Any, text_of: Callable[[int], str]) -> str:
    return f"<fake_token_around_image><global-img>{text_of(config.image_token_id)}<fake_token_around_image>"


GEMMA3 = Family(
    embed=_gemma3,
    tokens=lambda config: int(config.mm_tokens_per_image),
    mark=lambda config, text_of: text_of(config.boi_token_id),
    written=lambda config, text_of: "\n\n{}{}{}\n\n".format(
        *map(text_of, (config.boi_token_id, config.image_token_id, config.eoi_token_id))
    ),
    both_ways=True,
    options={"do_pan_and_scan": False},
)
IDEFICS3 = Family(
    embed=_idefics3,
    tokens=_idefics3_tokens,
    mark=lambda config, text_of: text_of(config.image_token_id),
    written=_around,
    both_ways=False,
    options={"do_image_splitting": False},
)
FAMILIES: Mapping[str, Family] = {"gemma3": GEMMA3, "idefics3": IDEFICS3, "smolvlm": IDEFICS3}
