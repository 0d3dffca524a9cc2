"""A transformers model without its weights, from a checkpoint's configuration alone.

`safetensors_reader.py` reads its weights.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import init_empty_weights
from huggingface_hub import ModelCard
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime import dtype_policy
from hfjax_app.runtime.checkpoints.config import read_config
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.load_errors import explain
from hfjax_app.runtime.checkpoints.quantized import READABLE
from hfjax_app.runtime.checkpoints.text_part import causal_lm_class, text_part
from hfjax_app.runtime.seams import Moved
from hfjax_app.runtime.seams.transformers import built, class_of, initialise_again


def empty_model(
    auto_class: Any,
    source: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
    *,
    labels: Sequence[str] | None = None,
) -> PreTrainedModel:
    """A checkpoint's model without its weights: parameters have shapes only; buffers are real.

    Args:
        auto_class: e.g. AutoModelForCausalLM.
        source: a folder or a hub id.
        dtype: of the floating-point parameters, except those that the architecture keeps in float32; None: the
            checkpoint's.
        labels: of a classifier, in the place of those in its configuration.

    Raises:
        ModelUnavailable: one line with the model, the reason, and the remedy.
    """
    name = os.fspath(source)
    config, folder = _config(source)
    if labels is not None:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: at for at, label in enumerate(labels)}
    whole = config
    if auto_class is AutoModelForCausalLM:
        config = text_part(whole) or whole
    model_class = causal_lm_class(config) if config is not whole else class_of(auto_class, config)
    if model_class is None:
        kind = auto_class.__name__
        raise ModelUnavailable(f"model {name!r} is a {config.model_type}, which transformers has no {kind} for")
    if quantized := getattr(whole, "quantization_config", None):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else type(quantized).__name__
        if auto_class is not AutoModelForCausalLM or method not in READABLE:
            raise ModelUnavailable(f"model {name!r} is quantised ({method}): take {_original(folder)}")
        config.quantization_config = quantized
    try:
        with init_empty_weights(include_buffers=False), _LazyZeros():
            dtype = dtype or config.dtype or torch.float32
            model = built(model_class, config, dtype=dtype)
        for module in model.modules():
            if module._non_persistent_buffers_set:  # recompute them as from_pretrained does, not in this dtype
                initialise_again(module)
        model.initialize_weights()
        dtype_policy.keep(model, dtype)
        model.tie_weights()  # init_empty_weights untied them
        if model.can_generate() and (folder / "generation_config.json").exists():
            model.generation_config = GenerationConfig.from_pretrained(folder)
    except Moved:
        raise
    except Exception as error:
        raise ModelUnavailable(explain(name, error, weights=False)) from error
    model.eval()
    return model


def _original(folder: Path) -> str:
    """The unquantised original of a quantised checkpoint, if the model card names it."""
    try:
        names = ModelCard.load(folder / "README.md").data.base_model
    except Exception:  # no card, or none with metadata
        names = None
    first = names[0] if isinstance(names, list) and names else names
    return f"its unquantised original, {first}" if isinstance(first, str) and first else "its unquantised original"


class _LazyZeros(TorchFunctionMode):
    """torch.zeros without touching memory: experts of Llama 4 are made of 3 GB of zeros a layer, and thrown away."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.zeros and not kwargs and (shape := torch.empty(*args, device="meta")).numel():
            # numpy's zeros are pages that the system gives at the first write
            return torch.from_numpy(np.zeros(shape.nbytes, np.uint8)).view(shape.dtype).reshape(shape.shape)
        return func(*args, **(kwargs or {}))


def saved_dtype(source: str | os.PathLike[str]) -> torch.dtype | None:
    """The dtype in the configuration of a transformers checkpoint; None if it has none.

    Raises:
        ModelUnavailable: as `empty_model`.
    """
    config, _ = _config(source)
    dtype: torch.dtype | None = config.dtype or config.get_text_config(decoder=True).dtype
    return dtype


def _config(source: str | os.PathLike[str]) -> tuple[Any, Path]:
    """A checkpoint's configuration, and the folder of its small files."""
    folder = fetch(source, weights=False)
    try:
        return read_config(folder), folder
    except Exception as error:
        raise ModelUnavailable(explain(os.fspath(source), error, weights=False)) from error
