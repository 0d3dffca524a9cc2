"""What stands for a picture in a prompt: in the text that a chat template writes, and among its tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PictureMarkup:
    """How a model's prompts contain pictures.

    Args:
        mark: the text of a token that the chat template writes for each picture.
        written: the text that takes its place, with one placeholder.
        placeholder: the id of the token that stands for each of a picture's embeddings.
        tokens: how many embeddings a picture has.
    """

    mark: str
    written: str
    placeholder: int
    tokens: int
