"""Unexpected errors as a line for the log: never with a value, because it may be what a visitor wrote."""

from traceback import extract_tb


def where(error: BaseException) -> str:
    """The class of an error and the place in the code that raised it."""
    frames = extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno}" for frame in frames]
    own = [place for place in places if "hfjax_app" in place]
    named = dict.fromkeys([*places[-1:], *own[-1:]])
    return f"{type(error).__name__} at {', from '.join(named)}"
