"""Loading checkpoints: any `from_pretrained`, safetensors only, no remote code, and errors that say what to do.

Does not convert weights to JAX: `module.py` does.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from safetensors import SafetensorError

from hfjax_app.errors import ModelUnavailable

T = TypeVar("T")


def load(from_pretrained: Callable[..., T], source: str | os.PathLike[str], **options: Any) -> T:
    """Call a library's `from_pretrained` on a folder or a hub id, with the safe options, and translate its errors.

    Args:
        from_pretrained: e.g. `AutoModelForCausalLM.from_pretrained`.
        source: a local folder or a hub id such as "google/gemma-3-1b-it".
        options: passed on, e.g. `dtype`.

    Raises:
        ModelUnavailable: in one line: which model, why not, and what would help.
    """
    name = os.fspath(source)
    try:
        return from_pretrained(name, **_reach(name), **options)
    except Exception as error:
        raise ModelUnavailable(_explain(name, error)) from error


def load_model(from_pretrained: Callable[..., T], source: str | os.PathLike[str], **options: Any) -> T:
    """`load` for weights: safetensors files only, and no code from the checkpoint is ever run."""
    return load(from_pretrained, source, use_safetensors=True, **options)


def _reach(name: str) -> dict[str, Any]:
    """Asks the hub once. Out of reach, each file of a model would wait for its retries, also of one that is cached."""
    if Path(name).exists():
        return {}
    try:
        HfApi().model_info(name, timeout=10)
    except (HfHubHTTPError, HFValidationError):
        return {}  # an answer; from_pretrained gets the same one, and `_explain` puts it into words
    except Exception:  # whatever the HTTP library raises without a network
        return {"local_files_only": True}
    return {}


def _chain(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def _explain(name: str, error: Exception) -> str:
    """One line for what `from_pretrained` raised: the deepest cause that has a remedy decides."""
    causes = _chain(error)

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if Path(name).is_dir():
        files = {path.suffix for path in Path(name).rglob("*") if path.is_file()}
        if caused_by(SafetensorError):
            return f"model folder {name!r}: a safetensors file is truncated or corrupt; copy or download it again"
        if ".safetensors" not in files and files & {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"}:
            return f"model folder {name!r} has weights, but none as safetensors: only safetensors files are loaded"
        if ".safetensors" not in files:
            return f"model folder {name!r} has no weights (*.safetensors)"
        return f"model folder {name!r} can't be loaded: {_first_line(error)}"
    if caused_by(HFValidationError):
        return f"model {name!r}: there is no such folder, and a hub id looks like owner/name"
    if caused_by(GatedRepoError):
        return (
            f"model {name!r} is gated: accept its licence on https://huggingface.co/{name} and set HF_TOKEN to a token "
            "of that account"
        )
    if caused_by(RepositoryNotFoundError):
        return f"model {name!r} does not exist on the hub (or is private: set HF_TOKEN), and no such folder is here"
    if "safetensors" in str(error) and not caused_by(HfHubHTTPError, LocalEntryNotFoundError):
        return f"model {name!r} has no safetensors weights: only safetensors files are loaded"
    if caused_by(LocalEntryNotFoundError, ConnectionError, TimeoutError) or "connect" in str(error).lower():
        return f"model {name!r} is no folder here, and the hub can't be reached to download it"
    return f"model {name!r} can't be loaded: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
