"""A checkpoint's processor: its tokenizer with what prepares pictures for its model."""

import copy
import inspect
import json
from pathlib import Path
from typing import Any


def of_pictures(kind: Any, folder: Path, tokenizer: Any, images: Any) -> Any:
    """A processor with nothing for videos and sound, whose parts need packages that are not here.

    Args:
        kind: transformers' class of it.
        folder: has its settings.
        tokenizer: of the checkpoint; it is not changed.
        images: the image processor.
    """
    settings = settings_in(folder, "processor_config.json")
    parts = kind.get_attributes()
    options = {name for name in inspect.signature(kind.__init__).parameters if name not in (*parts, "chat_template")}

    class SeeingOnly(kind):
        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            return None if argument is None else super().check_argument_for_proper_class(name, argument)

    given = dict.fromkeys(parts) | {"image_processor": images, "tokenizer": copy.deepcopy(tokenizer)}
    return SeeingOnly(**given, **{name: value for name, value in settings.items() if name in options})


def settings_in(folder: Path, name: str) -> dict[str, Any]:
    """The settings in one of a checkpoint's files; empty where it is missing."""
    file = folder / name
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
