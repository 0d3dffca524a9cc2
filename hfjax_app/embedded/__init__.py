"""The small models that come with the app, in Hugging Face format, so that everything works with no download.

Made by `training/`; each folder's README.md is its model card.
"""

from pathlib import Path

MODELS = ("chat-gemma", "chat-llama", "sentiment", "images")


def resolve(model: str) -> str:
    """The folder of an embedded model for its short name; anything else (a folder, a hub id) comes back unchanged."""
    return str(Path(__file__).parent / model) if model in MODELS else model
