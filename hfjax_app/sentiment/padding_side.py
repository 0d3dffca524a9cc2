"""The side on which texts are padded: where padding doesn't change what the model says of a text.

Does not pad: `encoding.py` does.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hfjax_app.errors import ModelUnavailable, first_line
from hfjax_app.runtime.module import Weights, run_in_torch
from hfjax_app.sentiment.encoding import Encoder
from hfjax_app.sentiment.padded_forward import logits_of

_PADDING = 8  # tokens behind or before the text
_TOLERANCE = 1e-3  # of a logit, as a share of it above 1


def choose_padding(model: Any, weights: Weights, encoder: Encoder) -> None:
    """Set the encoder's side by a short text alone and padded, both in torch, with the model's weights.

    That is the right side for most models. XLNet reads the last position; convolutions and Fourier transforms along a
    text read the padding on either side, which no attention mask hides.

    Args:
        model: the torch classifier; its own weights, if it has any, are not used.
        weights: on their device; they are read on the host.
        encoder: of the model.

    Raises:
        ModelUnavailable: padding changes the logits on both sides, or torch can't judge a text; says why.
    """
    kind = type(model).__name__
    [text] = encoder.encode(["1 2 3"])
    length = min(len(text.ids) + _PADDING, encoder.token_limit)
    ids = torch.tensor([text.ids])

    def logits(function: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> np.ndarray:
        found: np.ndarray = run_in_torch(model, weights, function, *arguments).float().numpy()
        return found

    try:
        alone = logits(lambda model, ids, mask: model(input_ids=ids, attention_mask=mask).logits, ids, ids * 0 + 1)
        for encoder.pads_left in (False, True):
            padded = (torch.from_numpy(array).long() for array in encoder.padded([text.ids], 1, length))
            apart = np.abs(logits(logits_of, *padded) - alone)
            if not (apart > _TOLERANCE * np.maximum(np.abs(alone), 1)).any():  # also where they are no numbers
                return
    except Exception as error:
        raise ModelUnavailable(f"{kind} can't judge a text: {first_line(error)}") from error
    raise ModelUnavailable(
        f"{kind} judges the padding of a text too, so a text's probabilities would depend on it: take a classifier of "
        "another architecture"
    )
