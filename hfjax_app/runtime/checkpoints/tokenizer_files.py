"""The tokenizer in a checkpoint's files, loaded without remote code, and refused if its vocabulary is missing."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.hub import Checkpoint, fetch
from hfjax_app.runtime.checkpoints.load_errors import explain

T = TypeVar("T")

_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "tekken.json")  # patterns


class NoTokenizer(ModelUnavailable):
    """A model's files contain no tokenizer."""


def load(from_pretrained: Callable[..., T], source: str | os.PathLike[str], **options: Any) -> T:
    """Load a tokenizer from a folder or a hub id, without remote code, and translate the errors.

    Args:
        from_pretrained: `AutoTokenizer.from_pretrained`.
        source: a local folder or a hub id, as in `fetch`.
        options: passed to `from_pretrained`.

    Raises:
        NoTokenizer: there is none; for many architectures transformers would make one of a few words.
        ModelUnavailable: one line with the model, the reason, and the remedy.
    """
    name = os.fspath(source)
    folder = fetch(source, weights=False)
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        kind = "model folder" if Path(name).is_dir() else "model"
        raise NoTokenizer(f"{kind} {name!r} has no tokenizer (tokenizer.json)")
    options = {"trust_remote_code": False, **options}  # without the option transformers asks on stdin
    try:
        if Path(name).exists():
            model, pin = name, {}
        else:
            model, _, revision = name.partition("@")
            pin = ({"revision": revision} if revision else {}) | _reach(model)
        tokenizer = from_pretrained(model, **pin, **options)
        if (own := _own_class(tokenizer, folder)) is not None:
            tokenizer = own.from_pretrained(model, **pin, **options)
    except Exception as error:
        raise ModelUnavailable(explain(name, error, weights=False)) from error
    check_vocabulary(tokenizer, Checkpoint(folder=folder, name=name))
    return tokenizer


def _own_class(tokenizer: Any, folder: Path) -> Any:
    """The tokenizer class that a checkpoint names, if transformers took the general one; None if it did not.

    It does so for models that are usually used with another class. Without a tokenizer.json the general class lacks
    what the named one knows: Mistral's text lost its first space and its beginning.
    """
    if type(tokenizer).__name__ != "TokenizersBackend" or (folder / "tokenizer.json").exists():
        return None
    try:
        named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("tokenizer_class")
    except (OSError, ValueError, AttributeError):
        return None
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    found = tokenizer_class_from_name(named.removesuffix("Fast")) if isinstance(named, str) else None
    return None if found is type(tokenizer) else found


def check_vocabulary(tokenizer: Any, checkpoint: Checkpoint) -> None:
    """Refuse a tokenizer of a few words that transformers made because the vocabulary is missing.

    Args:
        tokenizer: of transformers.
        checkpoint: its source. Byte tokenizers have no vocabulary file.

    Raises:
        NoTokenizer: no file contains its vocabulary.
    """
    files = {path.name for pattern in _TOKENIZER_FILES for path in checkpoint.folder.glob(pattern)}
    if files <= {"tokenizer_config.json"} and tokenizer.vocab_files_names:
        raise NoTokenizer(f"model {checkpoint.name!r} has no vocabulary for its tokenizer (tokenizer.json)")


def _reach(repository: str) -> dict[str, Any]:
    """Asks the hub once. Out of reach, each file of a model would wait for its retries, also of one that is cached."""
    try:
        HfApi().model_info(repository, timeout=10)
    except (HfHubHTTPError, HFValidationError):
        return {}  # from_pretrained gets the same error, and `explain` describes it
    except Exception:  # any error of the HTTP library without a network
        return {"local_files_only": True}
    return {}
