"""What a forward of some tokens reads and computes of a chat model's weights, from shapes.

A mixture's token reads the experts that it chooses. The cache's bytes are in `model/buckets.py`; attention's own
products are left out, which are small beside the weights' for a context of a few thousand tokens.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import jax
from transformers import PreTrainedModel

from hfjax_app.chat.model.decoder import Decoder
from hfjax_app.runtime.memory import held_bytes, held_numbers


@dataclass(frozen=True, kw_only=True)
class WeightUse:
    """The weights' part of a forward on each device.

    Args:
        always: bytes that every forward reads.
        experts: pairs: bytes of experts, and the share of them that a token chooses.
        products: multiply-adds of a token, without those of the output layer.
        output: multiply-adds of the output layer for one token.
    """

    always: int
    experts: tuple[tuple[int, float], ...] = ()
    products: float = 0.0
    output: float = 0.0

    def read(self, tokens: int | None = None) -> int:
        """Bytes that a forward of so many tokens reads, each expert once; None: of any number of tokens.

        Tokens choose experts evenly and independently of each other: n of them read 1 - (1 - share)^n of all.
        """
        left = 0.0 if tokens is None else float(tokens)
        chosen = (size * (1.0 if tokens is None else 1 - (1 - share) ** left) for size, share in self.experts)
        return self.always + int(sum(chosen))


def weight_use(
    decoder: Decoder, model: PreTrainedModel, weights: Mapping[str, jax.Array | jax.ShapeDtypeStruct]
) -> WeightUse:
    """What a forward reads of the weights.

    Args:
        decoder: of the model, with any transforms.
        model: has the names of the weights.
        weights: with shardings; of the same model, also with other transforms than the decoder's.
    """
    unread = decoder.weights_shape.keys() - decoder.weights_read
    looked_up, output = _embedding_and_output(model, weights)
    always, experts = 0, Counter[float]()
    products, last = 0.0, 0.0
    for name, array in weights.items():
        if name in unread or name == looked_up:
            continue
        share = _share(decoder, name, array)
        if share < 1:
            experts[share] += held_bytes(array)
        else:
            always += held_bytes(array)
        if name == output:
            last += held_numbers(array)
        elif len(array.shape) > 1:
            products += held_numbers(array) * share
    return WeightUse(
        always=always,
        experts=tuple((size, share) for share, size in experts.items()),
        products=products,
        output=last,
    )


def _share(decoder: Decoder, name: str, array: jax.Array | jax.ShapeDtypeStruct) -> float:
    """The share of a weight that a token reads: below 1 for experts only."""
    chosen = decoder.experts_per_token.get(name.rpartition(".")[0])
    return 1.0 if chosen is None or len(array.shape) < 2 else min(1.0, chosen / array.shape[0])


def _embedding_and_output(model: PreTrainedModel, weights: Mapping[str, object]) -> tuple[str | None, str | None]:
    """The weight of an input embedding that is only looked up, if there is one, and the output layer's.

    An output layer may read the embedding's array; with int8 a tied output layer has its own.
    """
    names = {module: f"{name}.weight" for name, module in model.named_modules()}
    embedding, output = names.get(model.get_input_embeddings()), names.get(model.get_output_embeddings())
    if output not in weights:
        return None, embedding
    return embedding if embedding in weights else None, output
