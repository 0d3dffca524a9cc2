"""A transformers model without its weights, from a checkpoint's configuration alone.

Does not read weights: `safetensors_reader.py` does.
"""

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime import dtype_policy
from hfjax_app.runtime.checkpoints.hub import explain, fetch


def empty_model(auto_class: Any, source: str | os.PathLike[str], dtype: torch.dtype | None = None) -> PreTrainedModel:
    """A checkpoint's model without its weights: parameters have shapes only; buffers are real.

    Args:
        auto_class: e.g. AutoModelForCausalLM.
        source: a folder or a hub id.
        dtype: of the floating-point parameters, except those that the architecture keeps in float32; None: the
            checkpoint's.

    Raises:
        ModelUnavailable: one line with the model, the reason, and the remedy.
    """
    name = os.fspath(source)
    config, folder = _config(source)
    if type(config) not in auto_class._model_mapping:
        kind = auto_class.__name__
        raise ModelUnavailable(f"model {name!r} is a {config.model_type}, which transformers has no {kind} for")
    if quantized := getattr(config, "quantization_config", None):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else type(quantized).__name__
        raise ModelUnavailable(f"model {name!r} is quantised ({method}): take its unquantised original")
    try:
        with init_empty_weights(include_buffers=False):
            dtype = dtype or config.dtype or torch.float32
            model: PreTrainedModel = auto_class.from_config(config, dtype=dtype, trust_remote_code=False)
        for module in model.modules():
            if module._non_persistent_buffers_set:  # recompute them as from_pretrained does, not in this dtype
                module._is_hf_initialized = False  # type: ignore[assignment]
        model.initialize_weights()
        dtype_policy.keep(model, dtype)
        model.tie_weights()  # init_empty_weights untied them
        if model.can_generate() and (folder / "generation_config.json").exists():
            model.generation_config = GenerationConfig.from_pretrained(folder)
    except Exception as error:
        raise ModelUnavailable(explain(name, error, weights=False)) from error
    model.eval()
    return model


def saved_dtype(source: str | os.PathLike[str]) -> torch.dtype | None:
    """The dtype in the configuration of a transformers checkpoint; None if it has none.

    Raises:
        ModelUnavailable: as `empty_model`.
    """
    dtype: torch.dtype | None = _config(source)[0].dtype
    return dtype


def _config(source: str | os.PathLike[str]) -> tuple[Any, Path]:
    """A checkpoint's configuration, and the folder of its small files."""
    folder = fetch(source, weights=False)
    try:
        # without the option transformers asks on stdin
        return AutoConfig.from_pretrained(folder, trust_remote_code=False), folder
    except Exception as error:
        raise ModelUnavailable(explain(os.fspath(source), error, weights=False)) from error
