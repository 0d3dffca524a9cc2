"""PyTorch's opinion of greedy answers: with the same weights, would it have chosen each token too?

PyTorch reads a whole answer at once, so a token that rounding has changed does not change those after it. The
engine has made the answers.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from hfjax_app.runtime.checkpoints import int8
from hfjax_app.runtime.checkpoints.empty_model import empty_model
from hfjax_app.runtime.checkpoints.lora import base_and_adapter
from hfjax_app.runtime.checkpoints.safetensors_reader import read

# How far below PyTorch's best logit a chosen token's may be, as a share of the largest magnitude of all logits.
ROUNDING = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How the device's tokens compare with PyTorch's.

    Args:
        tokens: how many were compared.
        equal: of these, how many PyTorch would have chosen after the same tokens.
        largest: of the others, the largest distance of a token's logit from the best one's.
        allowed: the distance that rounding explains; more is an error.
    """

    tokens: int
    equal: int
    largest: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.largest <= self.allowed


def reference(source: str | os.PathLike[str], quantize: str) -> PreTrainedModel:
    """The model in PyTorch on the CPU, in float32, with weights that are rounded as `quantize` says."""
    base, adapter = base_and_adapter(source)
    model = empty_model(AutoModelForCausalLM, base, torch.float32)
    cpu = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    names = dict(model.named_parameters()).keys()
    weights = read(model, base, placement=lambda name, shape: cpu, adapter=adapter)
    held = {name: torch.from_dlpack(array) for name, array in weights.items() if name in names}
    model.load_state_dict(held, strict=False, assign=True)
    model.tie_weights()
    if quantize == "int8":
        int8.round_in_place(model)
    return model


def compare(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    never: Sequence[int] = (),
    dtype: torch.dtype,
) -> Agreement:
    """What a model in PyTorch says of greedy answers.

    Args:
        model: in float32, on the CPU.
        prompts, answers: token ids.
        never: tokens that could not be chosen.
        dtype: in which the answers were computed.
    """
    compared = equal = 0
    largest = magnitude = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].numpy()
        magnitude = max(magnitude, float(np.abs(logits).max()))
        logits[:, list(never)] = -np.inf
        below = logits.max(1) - logits[np.arange(len(answer)), list(answer)]
        compared, equal = compared + len(answer), equal + int((below == 0).sum())
        largest = max(largest, float(below.max()))
    return Agreement(tokens=compared, equal=equal, largest=largest, allowed=magnitude * ROUNDING[dtype])
