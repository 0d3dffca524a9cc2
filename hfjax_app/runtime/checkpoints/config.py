"""A checkpoint's configuration as transformers takes it, whatever training scripts have left in its config.json.

Removed are settings of a run, such as the attention of its training. A value that the field's type does not
allow is converted if its meaning is plain (256.0 for 256); null means the default.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

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
