"""The origin of a GGUF file, which other programs serve: only to name the repository that this app can load.

Reads the first metadata of the file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), no tensors.
"""

import struct
from pathlib import Path
from typing import BinaryIO

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
