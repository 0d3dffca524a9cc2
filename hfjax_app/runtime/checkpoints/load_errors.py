"""One line for what a library raises while a model is downloaded or loaded: the model, the reason, the remedy."""

import errno
import re
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError

from hfjax_app.errors import first_line
from hfjax_app.runtime.checkpoints.weight_files import no_weights

_POINTER = b"version https://git-lfs.github.com/spec/"  # how a file begins that git-lfs puts in a large one's place
_MOST_POINTER_BYTES = 1_024
_READ = {".safetensors", ".json", ".model", ".txt", ".jinja"}  # files that are read of a checkpoint
_MOST_NAMED = 3


def explain(name: str, error: Exception, *, weights: bool = True) -> str:
    """One line for an error of a library about a model, with a remedy if any cause in the chain has one.

    Args:
        name: the model's name as the user gave it.
        error: the library's error.
        weights: whether missing weights may be the cause.
    """
    causes = _chain(error)

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    repository = name.partition("@")[0]
    if any(isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT) for cause in causes):
        return (
            f"model {name!r}: the disk is full; downloads go to {constants.HF_HUB_CACHE}: make room there, or set "
            "HF_HOME to a folder on another disk"
        )
    if pointers := git_lfs_pointers(Path(name)):
        return needs_git_lfs(name, pointers)
    if wants_code(error):
        return needs_code(name)
    if unknown := re.search(r"model type `([^`]+)` but Transformers does not recognize", str(error)):
        return (
            f"model {name!r} is a {unknown[1]}, which this transformers does not know; docs/models.md lists what runs"
        )
    if repository.lower().endswith("gguf") and not Path(name).exists() and not caused_by(HfHubHTTPError):
        return needs_other_format(name, None)
    kind = "model folder" if Path(name).is_dir() else "model"
    if "no file named model_index.json" in str(error):
        return (
            f"{kind} {name!r} has no model_index.json, so it is no pipeline of diffusers: take the repository in its "
            "layout, or name one .safetensors file on this machine"
        )
    if caused_by(SafetensorError):
        return f"{kind} {name!r}: a safetensors file is truncated or corrupt; copy or download it again"
    if Path(name).is_dir():
        if weights and ".safetensors" not in {path.suffix for path in Path(name).rglob("*") if path.is_file()}:
            return no_weights(name, Path(name))
        return f"model folder {name!r} can't be loaded: {first_line(error)}"
    if caused_by(HFValidationError):
        return f"model {name!r}: there is no such folder, and a hub id looks like owner/name"
    if caused_by(GatedRepoError):
        return (
            f"model {name!r} is gated: accept its licence on https://huggingface.co/{repository} and set HF_TOKEN to a "
            "token of that account"
        )
    if caused_by(RevisionNotFoundError):
        return f"model {name!r}: the hub has no such revision; after the @ comes a branch, a tag or a commit"
    if caused_by(RepositoryNotFoundError):
        return f"model {name!r} does not exist on the hub (or is private: set HF_TOKEN), and no such folder is here"
    if caused_by(IncompleteSnapshotError):
        return f"model {name!r} is here in part, and the hub can't be reached to download the rest"
    if "safetensors" in str(error) and not caused_by(HfHubHTTPError, LocalEntryNotFoundError):
        return f"model {name!r} has no safetensors weights: only safetensors files are loaded"
    unreachable = caused_by(LocalEntryNotFoundError, ConnectionError, TimeoutError) or "connect" in str(error).lower()
    if unreachable and constants.HF_HUB_OFFLINE:
        return f"model {name!r} is no folder here and not in the hub's cache, and HF_HUB_OFFLINE forbids to download it"
    if unreachable:
        return f"model {name!r} is no folder here, and the hub can't be reached to download it"
    return f"model {name!r} can't be loaded: {first_line(error)}"


def git_lfs_pointers(path: Path) -> list[str]:
    """The names of a folder's files that were cloned without git-lfs, or the file's own; [] where there are none."""
    found = []
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.suffix in _READ and file.is_file() and file.stat().st_size <= _MOST_POINTER_BYTES:
            with file.open("rb") as content:
                if content.read(len(_POINTER)) == _POINTER:
                    found.append(file.relative_to(path).as_posix() if path.is_dir() else file.name)
    return found


def needs_git_lfs(name: str, pointers: list[str]) -> str:
    """The message for a checkpoint that was cloned without git-lfs."""
    more = [f"{len(pointers) - _MOST_NAMED} more"] if len(pointers) > _MOST_NAMED else []
    named = ", ".join([*pointers[:_MOST_NAMED], *more])
    return (
        f"model {name!r} was cloned without git-lfs, which has the content of {named}: install it and run `git lfs "
        "pull` there"
    )


def needs_other_format(name: str, made_from: str | None) -> str:
    """The message for a GGUF file; `made_from` is the repository that it says it was made from."""
    instead = "the repository that it was made from" if made_from is None else repr(made_from)
    return f"model {name!r} is in the GGUF format, which is for other programs: take {instead}, with safetensors files"


def wants_code(error: Exception) -> bool:
    """Whether transformers or diffusers refused to run a checkpoint's code; both name their option then."""
    return any("trust_remote_code" in str(cause) for cause in _chain(error))


def needs_code(name: str) -> str:
    """The message for a checkpoint that comes with code."""
    return f"model {name!r} needs code of its own, and code that comes with a checkpoint is never run"


def _chain(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
