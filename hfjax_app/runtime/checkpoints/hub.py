"""The files of a model: a folder, or a download from the hub; and one-line messages for failures.

Only data is downloaded: configs, tokenizers and safetensors, never code and never pickles. Does not read weights:
`safetensors_reader.py` does.
"""

import errno
import json
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from safetensors import SafetensorError
from tqdm.auto import tqdm

from hfjax_app.errors import ModelUnavailable, first_line
from hfjax_app.runtime.checkpoints.gguf import gguf_file, origin

T = TypeVar("T")
OnBytes = Callable[[int, int], None]  # takes how many bytes of a download are here, and how many it has

# The files of a checkpoint. A repository may also contain other formats of the same weights, many times as large. In
# these patterns `*` matches `/` too.
_CONFIG_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "README.md")
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "tekken.json")
_STEMS = ("model", "diffusion_pytorch_model")  # of the names of weight files: transformers' and diffusers'
_ADAPTER = "adapter_model.safetensors"
_HALF = ".fp16"  # the variant, in the names of files, that is used if there are no others; then any variant is
_WEIGHTS = re.compile(rf"(?:{'|'.join(_STEMS)})(\.[\w-]+?)?(?:-\d+-of-\d+)?\.safetensors")
_INDEX = re.compile(rf"(?:{'|'.join(_STEMS)})\.safetensors\.index(\.[\w-]+)?\.json")
_OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack"}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model's files on this machine.

    Attributes:
        folder: as `fetch` returns it.
        name: the model's name as the user gave it, for messages.
    """

    folder: Path
    name: str

    def part(self, name: str) -> "Checkpoint":
        """One of several models, each in its own subfolder."""
        return Checkpoint(folder=self.folder / name, name=f"{self.name}/{name}")


def fetch(
    source: str | os.PathLike[str],
    *,
    weights: bool = True,
    parts: Sequence[str] = ("",),
    on_bytes: OnBytes | None = None,
) -> Path:
    """The folder with a checkpoint's files: the given folder, or the hub's snapshot, downloaded as needed.

    Downloads show their progress. Files in the hub's cache are not downloaded again; without a network (or with
    HF_HUB_OFFLINE) only the cache is used.

    Args:
        source: a local folder, or a hub id: "owner/name" or "owner/name@revision" (a branch, tag or commit).
        weights: False: download the config and the tokenizer only.
        parts: the folders whose weights are downloaded; "" is the repository's root.
        on_bytes: called in place of the progress that is shown.

    Raises:
        ModelUnavailable: one line with the model, the reason, and the remedy.
    """
    name = os.fspath(source)
    if Path(name).exists() and (file := gguf_file(Path(name))) is not None:
        raise ModelUnavailable(_is_gguf(name, origin(file)))
    if Path(name).is_file():
        raise ModelUnavailable(f"model {name!r} is a file: name the folder that it is in")
    if Path(name).exists():
        return Path(name)
    repository, _, revision = name.partition("@")

    bar = None if on_bytes is None else byte_counter(on_bytes)

    def download(patterns: list[str]) -> Path:
        pin = revision or None
        return Path(
            snapshot_download(repository, revision=pin, allow_patterns=patterns, etag_timeout=10, tqdm_class=bar)
        )

    try:
        folder = download(_patterns(parts) if weights else [*_CONFIG_FILES])
        for variant in (f"{_HALF}*", ".*") if weights else ():
            if bare := [part for part in parts if not any((folder / part).glob("*.safetensors"))]:
                download(_files(bare, f"{variant}.safetensors"))
    except Exception as error:
        raise ModelUnavailable(explain(name, error)) from error
    return folder


def _files(parts: Sequence[str], *endings: str) -> list[str]:
    return [posixpath.join(part, stem + ending) for part in parts for stem in _STEMS for ending in endings]


def _patterns(parts: Sequence[str]) -> list[str]:
    return [*_CONFIG_FILES, *_files(parts, ".safetensors", "-*.safetensors"), _ADAPTER]


def missing_bytes(source: str | os.PathLike[str], parts: Sequence[str] = ("",)) -> int:
    """How much `fetch` would download; variants of weights, which it takes where there are no others, not counted.

    Raises:
        ModelUnavailable: as `fetch`.
    """
    name = os.fspath(source)
    if Path(name).exists():
        return 0
    repository, _, revision = name.partition("@")
    try:
        found = snapshot_download(
            repository, revision=revision or None, allow_patterns=_patterns(parts), etag_timeout=10, dry_run=True
        )
    except OfflineModeIsEnabled:
        return 0
    except Exception as error:
        raise ModelUnavailable(explain(name, error)) from error
    return sum(file.file_size or 0 for file in found if file.will_download)


def byte_counter(on_bytes: OnBytes) -> type[tqdm]:
    """A class of progress bars for `snapshot_download` that are not drawn, and call `on_bytes`."""

    class ByteCounter(tqdm):
        def __init__(self, *arguments: Any, **options: Any):
            self._counts_bytes = options.get("unit") == "B"  # another one counts files
            super().__init__(*arguments, **options | {"disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts_bytes:
                self.n += n or 0
                on_bytes(int(self.n), int(self.total or 0))
            return None

    return ByteCounter


def cached_folder(source: str | os.PathLike[str]) -> Path | None:
    """The folder in the hub's cache that a model's downloads are or would be in; None for a folder."""
    name = os.fspath(source)
    if Path(name).exists():
        return None
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name.partition("@")[0], repo_type="model")


def is_gated(source: str | os.PathLike[str]) -> bool | None:
    """Whether a licence must be accepted before a model can be downloaded; None if the hub can't be reached."""
    name = os.fspath(source)
    if Path(name).exists():
        return False
    repository, _, revision = name.partition("@")
    try:
        return bool(HfApi().model_info(repository, revision=revision or None, timeout=10).gated)
    except GatedRepoError:
        return True
    except Exception:  # any error of the HTTP library without a network
        return None


def weight_files(folder: Path, name: str) -> list[Path]:
    """The safetensors files of a checkpoint folder: one file, those of its index, or all parts.

    Files of a variant are taken if there are no others: float16 first, then bfloat16 or whatever is there.

    Args:
        folder: as `fetch` returns it.
        name: the model's name as the user gave it, for the message.

    Raises:
        ModelUnavailable: there are none, or some of them are missing.
    """
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    matches = [found for file in names if (found := _WEIGHTS.fullmatch(file) or _INDEX.fullmatch(file))]
    for variant in sorted(
        {found[1] or "" for found in matches}, key=lambda found: (found != "", found != _HALF, found)
    ):
        for stem in _STEMS:
            if (single := folder / f"{stem}{variant}.safetensors").exists():
                return [single]
            if (index := folder / f"{stem}.safetensors.index{variant}.json").exists():
                return _indexed(index, folder, name)
            if parts := sorted(folder.glob(f"{stem}{variant}-*-of-*.safetensors")):
                return _numbered(parts, name)
    raise ModelUnavailable(_no_weights(name, folder))


def _numbered(parts: list[Path], name: str) -> list[Path]:
    """The parts of weights whose index is missing, if all are there: `model-00001-of-00002.safetensors` and so on."""
    count = int(parts[0].stem.rpartition("-")[2])
    if len(parts) != count:
        raise _in_part(name, count - len(parts), count, f"one of {parts[0].name}'s kind")
    return parts


def _indexed(index: Path, folder: Path, name: str) -> list[Path]:
    """The files of an index."""
    try:
        names = sorted({str(file) for file in json.loads(index.read_text())["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelUnavailable(f"model {name!r}: {index.name} is no index of safetensors files") from error
    if outside := [file for file in names if Path(file).name != file or not file.endswith(".safetensors")]:
        raise ModelUnavailable(f"model {name!r}: {index.name} names {outside[0]!r}, no safetensors file of it")
    if missing := [file for file in names if not (folder / file).exists()]:
        raise _in_part(name, len(missing), len(names), missing[0])
    return [folder / file for file in names]


def _in_part(name: str, missing: int, count: int, one: str) -> ModelUnavailable:
    return ModelUnavailable(
        f"model {name!r} is here in part: {missing} of {count} weight files are missing, such as {one}; download the "
        "rest (with a network, and HF_HUB_OFFLINE unset)"
    )


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
    if wants_code(error):
        return needs_code(name)
    if unknown := re.search(r"model type `([^`]+)` but Transformers does not recognize", str(error)):
        return (
            f"model {name!r} is a {unknown[1]}, which this transformers does not know; docs/models.md lists what runs"
        )
    if repository.lower().endswith("gguf") and not Path(name).exists() and not caused_by(HfHubHTTPError):
        return _is_gguf(name, None)
    if caused_by(SafetensorError):
        kind = "model folder" if Path(name).is_dir() else "model"
        return f"{kind} {name!r}: a safetensors file is truncated or corrupt; copy or download it again"
    if Path(name).is_dir():
        if weights and ".safetensors" not in {path.suffix for path in Path(name).rglob("*") if path.is_file()}:
            return _no_weights(name, Path(name))
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


def _is_gguf(name: str, made_from: str | None) -> str:
    instead = "the repository that it was made from" if made_from is None else repr(made_from)
    return f"model {name!r} is in the GGUF format, which is for other programs: take {instead}, with safetensors files"


def wants_code(error: Exception) -> bool:
    """Whether transformers or diffusers refused to run a checkpoint's code; both name their option then."""
    return any("trust_remote_code" in str(cause) for cause in _chain(error))


def needs_code(name: str) -> str:
    return f"model {name!r} needs code of its own, and code that comes with a checkpoint is never run"


def _no_weights(name: str, folder: Path) -> str:
    others = {path.suffix for path in folder.rglob("*") if path.is_file()} & _OTHER_WEIGHTS
    kind = "model folder" if Path(name).is_dir() else "model"
    if others:
        return f"{kind} {name!r} has weights, but none as safetensors: only safetensors files are loaded"
    if next(folder.glob("*.safetensors"), None):
        return f"{kind} {name!r}: its safetensors files need their index ({_STEMS[0]}.safetensors.index.json)"
    return f"{kind} {name!r} has no weights (*.safetensors)"


def _reach(repository: str) -> dict[str, Any]:
    """Asks the hub once. Out of reach, each file of a model would wait for its retries, also of one that is cached."""
    try:
        HfApi().model_info(repository, timeout=10)
    except (HfHubHTTPError, HFValidationError):
        return {}  # from_pretrained gets the same error, and `explain` describes it
    except Exception:  # any error of the HTTP library without a network
        return {"local_files_only": True}
    return {}


def _chain(error: BaseException | None) -> list[BaseException]:
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
