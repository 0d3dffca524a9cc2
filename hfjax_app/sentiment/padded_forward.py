"""A classifier's forward on rows that end with padding: the logits that the text alone would have.

Classifiers that pool at the last token or at an end token look for it in the ids. Which ids are padding is said here,
and a row's end token is found without results whose shape depends on values. Which side the padding stands on is found
by trying both.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from hfjax_app.errors import ModelUnavailable, first_line
from hfjax_app.runtime.module import Weights, run_in_torch
from hfjax_app.sentiment.encoding import Encoder, input_embeddings, padding_id

_PADDING = 8  # tokens behind or before the text by which the side is chosen
_TOLERANCE = 1e-3  # of a logit, as a share of it above 1


def logits_of(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Logits, float32 [rows, labels], of rows of padded ids and their mask. Is traced."""
    with _padding_known(model), _padding_embedded(model, ids, mask), _LastEndToken():
        logits: torch.Tensor = model(input_ids=ids, attention_mask=mask).logits
    return logits.float()


@contextmanager
def _padding_known(model: Any) -> Iterator[None]:
    """Inside, the configs of the model and its parts name the id at padding as their padding token."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    before = {key: getattr(config, "pad_token_id", None) for key, config in configs.items()}
    padding = padding_id(model)
    for config in configs.values():
        config.pad_token_id = padding
    try:
        yield
    finally:
        for key, config in configs.items():
            config.pad_token_id = before[key]


@contextmanager
def _padding_embedded(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> Iterator[None]:
    """Inside, padding that is no token can be embedded; where the model embeds its ids as they are, padding is zeros.

    That is what convolutions find behind the end of a row; MobileBERT joins the embeddings of neighbours. Models that
    embed other ids than the row's, such as moved or transposed ones, get a token's embedding, which the attention mask
    hides.
    """
    words = input_embeddings(model)
    unchanged: list[bool] = []  # of the latest ids that were embedded as words

    def tokens(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        if module is words:
            unchanged[:] = [inputs[0] is ids]
        return (inputs[0].clamp(min=0),)

    def masked(_: torch.nn.Module, __: Any, embeddings: torch.Tensor) -> torch.Tensor:
        return embeddings * mask[..., None] if unchanged == [True] else embeddings

    parts = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    hooks = [module.register_forward_pre_hook(tokens) for module in parts]
    if words is not None:
        hooks.append(words.register_forward_hook(masked))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _LastEndToken(TorchFunctionMode):
    """Inside, `states[mask, :]` is the state at each row's last marked position, [rows, size].

    This is what BART, T5 and their relatives pool: they take the states of all end tokens, whose number depends on
    values, and of these each row's last. A row without one becomes NaN. Their check that all rows of a batch have
    equally many end tokens is left out.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.unique_consecutive:
            return args[0][:1]
        if func is torch.Tensor.__getitem__ and isinstance(args[1], tuple):
            states, (mask, *rest) = args
            if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and rest == [slice(None)]:
                from_here = mask.int().flip(1).cumsum(1).flip(1)  # marked positions from each one on
                is_last = (mask & (from_here == 1))[..., None]
                last = states.masked_fill(~is_last, 0).sum(1)
                return last.masked_fill(from_here[:, :1] == 0, torch.nan)
        return func(*args, **(kwargs or {}))


def choose_padding(model: Any, weights: Weights, encoder: Encoder) -> None:
    """Set the side on which padding doesn't change what the model says of a short text, judged in torch.

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
        values: np.ndarray = run_in_torch(model, weights, function, *arguments).float().numpy()
        return values

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
