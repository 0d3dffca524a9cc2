"""The files of a model: a folder, or a download from the hub.

Only data is downloaded: configs, tokenizers and safetensors, never code and never pickles. `safetensors_reader.py`
reads the weights. `load_errors.py` has the messages for failures.

Of a GGUF file, which other programs serve, the first metadata name the repository that this app can load
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

import os
import posixpath
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled
from huggingface_hub.file_download import repo_folder_name
from tqdm.auto import tqdm

from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.checkpoints.load_errors import explain, needs_other_format
from hfjax_app.runtime.checkpoints.weight_files import HALF, STEMS

OnBytes = Callable[[int, int], None]  # takes how many bytes of a download are here, and how many it has

# The files of a checkpoint. A repository may also contain other formats of the same weights, many times as large. In
# these patterns `*` matches `/` too.
_CONFIG_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "README.md")
_ADAPTER = "adapter_model.safetensors"


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
        raise ModelUnavailable(needs_other_format(name, origin(file)))
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
        for variant in (f"{HALF}*", ".*") if weights else ():
            if bare := [part for part in parts if not any((folder / part).glob("*.safetensors"))]:
                download(_files(bare, f"{variant}.safetensors"))
    except Exception as error:
        raise ModelUnavailable(explain(name, error)) from error
    return folder


def _files(parts: Sequence[str], *endings: str) -> list[str]:
    return [posixpath.join(part, stem + ending) for part in parts for stem in STEMS for ending in endings]


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


_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of the other types
_MOST_BYTES = 1 << 16  # of a string
_MOST_ENTRIES = 256
_ORIGINS = (
    "general.base_model.0.repo_url",
    "general.source.huggingface.repository",
    "general.source.repo_url",
    "general.source.url",
    "general.repo_url",
)


def origin(path: Path) -> str | None:
    """The repository of the model that a GGUF file was made from; None if its metadata doesn't say."""
    try:
        with path.open("rb") as file:
            found = _general(file)
    except (OSError, ValueError, struct.error, UnicodeDecodeError):
        return None
    name = next((found[key] for key in _ORIGINS if found.get(key)), None)
    return None if name is None else name.removeprefix("https://huggingface.co/")


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that a path stands for: itself, or one in a folder without safetensors; None for others."""
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    if any(path.glob("*.safetensors")):
        return None
    return next(iter(sorted(path.glob("*.gguf"))), None)


def _general(file: BinaryIO) -> dict[str, str]:
    """The strings of the metadata that begins with "general."."""
    magic, version, _, entries = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF" or version < 2:
        raise ValueError("no GGUF file of a known version")
    found: dict[str, str] = {}
    for _ in range(min(entries, _MOST_ENTRIES)):
        key = _string(file)
        if not key.startswith("general."):
            break
        (kind,) = struct.unpack("<I", file.read(4))
        value = _value(file, kind)
        if isinstance(value, str):
            found[key] = value
    return found


def _value(file: BinaryIO, kind: int) -> str | None:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if count > _MOST_ENTRIES:
            raise ValueError("a long list")
        for _ in range(count):
            _value(file, inner)
        return None
    if kind not in _SIZES:
        raise ValueError(f"a value of the unknown type {kind}")
    file.seek(_SIZES[kind], 1)
    return None


def _string(file: BinaryIO) -> str:
    (size,) = struct.unpack("<Q", file.read(8))
    if size > _MOST_BYTES:
        raise ValueError("a long string")
    return file.read(size).decode()
