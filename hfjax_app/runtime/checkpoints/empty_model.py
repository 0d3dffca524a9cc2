"""A transformers model without its weights, from a checkpoint's configuration alone.

`safetensors_reader.py` reads its weights. The configuration is what transformers takes, whatever training scripts have
left in config.json: settings of a run are removed, and a value of the wrong type is converted if its meaning is plain
(256.0 for 256).
"""

import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import init_empty_weights
from huggingface_hub import ModelCard
from torch.overrides import TorchFunctionMode
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime import dtype_policy
from hfjax_app.runtime.checkpoints.hub import fetch
from hfjax_app.runtime.checkpoints.load_errors import explain
from hfjax_app.runtime.checkpoints.quantized import READABLE
from hfjax_app.runtime.checkpoints.text_part import causal_lm_class, text_part
from hfjax_app.runtime.seams import Moved
from hfjax_app.runtime.seams.transformers import built, class_of, initialise_again

# Settings of a run: how attention and experts are computed, and what a forward returns.
_OF_A_RUN = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "_experts_implementation",
    "_experts_implementation_internal",
    "_flash_attn_2_enabled",
    "attn_implementation",
    "experts_implementation",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "torchscript",
    "use_return_dict",
}
_DTYPES = ("dtype", "torch_dtype")
_FIELD = re.compile(r"(field|property) '(\w+)'")  # in an error; a property is none that can be set


def read_config(folder: Path) -> PretrainedConfig:
    """The configuration in a folder, without code of the checkpoint.

    Raises:
        Exception: those of transformers, for a configuration that it can't read.
    """
    path = folder / "config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    if not isinstance(settings, dict):
        return _loaded(folder)  # which says what is wrong
    config = _mended_config(_cleaned(settings), settings, folder)
    text = config.get_text_config(decoder=True)
    padding = getattr(text, "pad_token_id", None)
    if isinstance(padding, int) and not 0 <= padding < text.vocab_size:  # an embedding can't be made with it
        text.pad_token_id = None
    return config


def _mended_config(cleaned: dict[str, Any], settings: dict[str, Any], folder: Path) -> PretrainedConfig:
    """The configuration after as many corrections as it needs; each field is corrected once."""
    tried: set[str] = set()
    while True:
        try:
            return _loaded(folder) if json.dumps(cleaned) == json.dumps(settings) else _of(cleaned, folder)
        except Exception as error:
            found = _FIELD.search(str(error))
            field = "" if found is None else found[2]
            mended = None if found is None or field in tried else _mended(cleaned, field, keep=found[1] == "field")
            if mended is None:
                raise
            tried.add(field)
            cleaned = mended


def _loaded(folder: Path) -> PretrainedConfig:
    # without the option transformers asks on stdin
    config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return config


def _of(settings: dict[str, Any], folder: Path) -> PretrainedConfig:
    with tempfile.TemporaryDirectory() as temporary:
        (Path(temporary) / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        config = _loaded(Path(temporary))
    config.name_or_path = str(folder)
    return config


def _cleaned(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings, and those of its parts, without those of a run, and names of dtypes as torch has them."""
    kind = settings.get("model_type")
    known = CONFIG_MAPPING[kind] if isinstance(kind, str) and kind in CONFIG_MAPPING else PretrainedConfig
    cleaned: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _OF_A_RUN or _is_no_field(known, name):
            continue
        if name in _DTYPES and isinstance(value, str):
            value = value.removeprefix("torch.")
            if value == "auto":
                continue
        cleaned[name] = _cleaned(value) if isinstance(value, dict) else value
    return cleaned


def _is_no_field(config_class: type, name: str) -> bool:
    """Whether the name is that of a method. A property may stand for an old name that transformers reads."""
    found = getattr(config_class, name, None)
    return callable(found) and not isinstance(found, type)


def _mended(settings: dict[str, Any], field: str, *, keep: bool) -> dict[str, Any] | None:
    """Settings with another attempt at a field that was refused, wherever it stands; None if there is none.

    Args:
        keep: whether a value that is not null is needed.
    """
    if field in settings:
        value = settings[field]
        if value is None or not keep:
            return {name: other for name, other in settings.items() if name != field}
        converted = _converted(value)
        return None if converted is None else {**settings, field: converted}
    for name, part in settings.items():
        if isinstance(part, dict) and (mended := _mended(part, field, keep=keep)) is not None:
            return {**settings, name: mended}
    return None


def _converted(value: Any) -> int | float | None:
    """A number as JSON's other type of number; None if there is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else None


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
