"""Writes docs/settings.md from hfjax_app/settings.py.

`make docs` runs it; it is no test. `tests/test_docs.py` compares the file with `page()`.
"""

from pathlib import Path
from typing import Literal, get_args, get_origin

from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from hfjax_app.settings import PREFIX, Settings

PATH = Path(__file__).parents[1] / "docs" / "settings.md"
# Defaults that depend on the machine, or that a table would show as nothing.
DEFAULTS = {
    "host": "`127.0.0.1`",
    "port": "`7860`",
    "image_sizes": "none",
    "image_lora": "none",
    "cache_dir": "the user's cache folder",
    "system_prompt": "none",
    "api_keys": "none",
    "auth": "none",
    "operator_key": "printed at the start",
    "operator_folders": "all, or none",
    "cors_origins": "none",
    "frame_ancestors": "none",
    "forwarded_allow_ips": "`127.0.0.1,::1`",
    "root_path": "none",
}
ALLOWED = {
    "host": "an address",
    "image_sizes": "`WIDTHxHEIGHT,...`",
    "image_lora": "`SOURCE:WEIGHT,...`",
    "cache_dir": "a folder",
    "system_prompt": "text",
    "api_keys": "a list, or a file",
    "auth": "a list, a file, or `oauth`",
    "operator_key": "a key",
    "operator_folders": "folders, with commas",
    "cors_origins": "a list",
    "frame_ancestors": "a list",
    "forwarded_allow_ips": "a list",
    "root_path": "`/PATH`",
}

HEAD = """# Settings

<!-- `make docs` writes this page from hfjax_app/settings.py. -->

A flag of `serve` overrides the environment variable, which overrides the default. The other commands read the same
variables. A setting that does not exist and a value that is not allowed end the start with one line.

| Variable | Flag | Default | Allowed | Meaning |
| --- | --- | --- | --- | --- |
"""
TAIL = """
`make run HFJAX_PORT=8000` sets a variable for one start.

## Models

The three model settings take

- the name of an embedded model: `chat-gemma`, `chat-llama`, `sentiment`, `images`;
- a folder in Hugging Face format;
- a hub id, which can pin a branch, a tag or a commit: `owner/name@revision`.

[models.md](models.md) says which architectures run.

## Variables of other libraries

| Variable | Meaning |
| --- | --- |
| `HF_TOKEN` | access token for gated and private models |
| `HF_HOME` | folder of downloads |
| `HF_HUB_OFFLINE` | `1`: serve from earlier downloads, without a network |
| `JAX_PLATFORMS` | the devices that jax uses: `cpu`, `tpu`, `cuda` |
| `GLIBC_TUNABLES` | `glibc.malloc.hugetlb=1` puts large arrays on pages of 2 MiB on Linux |

`make` and the Dockerfile for CPUs set `GLIBC_TUNABLES`. Set it too where you start the app in another way on Linux:
[benchmarks.md](benchmarks.md#single-measurements-cpu) has what it gains. glibc reads it only when a process starts.
"""


def page() -> str:
    """The text of docs/settings.md."""
    return HEAD + "".join(_row(name, field) for name, field in Settings.model_fields.items()) + TAIL


def _row(name: str, field: FieldInfo) -> str:
    default = DEFAULTS.get(name, f"`{field.default}`")
    flag = f"--{name.replace('_', '-')}"
    return f"| `{PREFIX}{name.upper()}` | `{flag}` | {default} | {_allowed(name, field)} | {field.description} |\n"


def _allowed(name: str, field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(field.annotation))
    bounds = {type(bound): bound for bound in field.metadata}
    if Ge in bounds and Le in bounds:
        return f"{bounds[Ge].ge} to {bounds[Le].le}"
    return ALLOWED.get(name, "[a model](#models)")


if __name__ == "__main__":
    PATH.write_text(page())
