"""Which dtype a model computes in, and which of its tensors stay float32 in any case.

The latter follow from transformers' own lists (`_keep_in_fp32_modules`), applied as its `from_pretrained` does; an
example is the bias that chooses experts. `checkpoints/int8.py` has the policy of int8 weights.
"""

from collections.abc import Mapping

import jax
import torch
from transformers import PreTrainedModel

from hfjax_app.runtime.model_transform import LazyTensor, Transform
from hfjax_app.runtime.seams import transformers as seam

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def default_dtype() -> torch.dtype:
    """bfloat16 on TPU and GPU; float32 on CPU, where XLA's bfloat16 is several times slower."""
    return torch.float32 if jax.default_backend() == "cpu" else torch.bfloat16


def kept_in_float32(model: torch.nn.Module, dtype: torch.dtype) -> set[str]:
    """The names of parameters and saved buffers that stay float32 when the others are in this dtype."""
    pattern = seam.kept_in_float32(model, dtype) if isinstance(model, PreTrainedModel) else None
    if pattern is None:
        return set()
    return {name for name, tensor in model.state_dict().items() if tensor.is_floating_point() and pattern.search(name)}


def keep(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Convert the tensors that stay float32, in a model that was built in this dtype."""
    tensors = model.state_dict(keep_vars=True)
    for name in kept_in_float32(model, dtype):
        tensors[name].data = tensors[name].data.float()


class Cast(Transform):
    """Casts each tensor to its dtype in the model.

    Args:
        model: before any transform.
        dtype: of the floating-point parameters; None: their dtype in the model.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None = None):
        self._dtypes = {name: tensor.dtype for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        if dtype is not None:
            floats = [name for name, parameter in model.named_parameters() if parameter.is_floating_point()]
            self._dtypes |= dict.fromkeys(floats, dtype)

    def store(self, name: str, tensor: LazyTensor) -> Mapping[str, LazyTensor]:
        """The tensor, cast; tensors that an earlier transform made are not cast."""
        dtype = self._dtypes.get(name, tensor.dtype)
        return {name: tensor.to(dtype) if tensor.dtype.is_floating_point else tensor}
