"""Checks texts before anything is computed."""

from hfjax_app.errors import RequestRejected
from hfjax_app.limits import SENTIMENT_MAX_CHARACTERS, SENTIMENT_MAX_TEXTS
from hfjax_app.validation import checked_text


def checked_texts(texts: object) -> list[str]:
    """The texts, if `classify` can take them.

    Raises:
        RequestRejected: not a list, too many texts, or one of them is not a text, empty or too long.
    """
    if not isinstance(texts, list):
        raise RequestRejected(f"texts: must be a list of texts, not {type(texts).__name__}")
    if len(texts) > SENTIMENT_MAX_TEXTS:
        raise RequestRejected(f"{len(texts):,} texts: at most {SENTIMENT_MAX_TEXTS} a call")
    for number, text in enumerate(texts, 1):
        checked_text(text, "text" if len(texts) == 1 else f"text {number}", SENTIMENT_MAX_CHARACTERS)
    return texts
