"""The processes that this app starts to fetch and to compile models: its own commands, told everything by flags."""

import os
import sys
from collections.abc import Mapping

from hfjax_app.settings import PREFIX, SECRET

# Models of this app that are not that process's, and secrets, which a process that reads foreign files does not need.
_LEFT_OUT = {PREFIX + name.upper() for name in ("chat_model", "sentiment_model", "image_model", *SECRET)}


def command(name: str, flags: Mapping[str, object]) -> list[str]:
    """A command of this app that writes JSON lines; flags without a value are left out."""
    given = [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items() if value]
    return [sys.executable, "-m", "hfjax_app", name, "--json", *given]


def environment() -> dict[str, str]:
    """The variables of such a process."""
    return {name: value for name, value in os.environ.items() if name.upper() not in _LEFT_OUT}
