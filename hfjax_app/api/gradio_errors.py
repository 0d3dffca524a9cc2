"""Our errors as Gradio's: one line that a visitor or an API client sees, with no stack trace anywhere."""

import functools
import html
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import gradio as gr

from hfjax_app.errors import HfjaxError, RequestRejected, without_folders


@contextmanager
def errors_shown() -> Iterator[None]:
    """Turn an HfjaxError of the block into a gr.Error with its message.

    Messages quote what the visitor sent and Gradio shows them as HTML, so they are escaped. What a library said, in a
    message about a model, may name folders of this machine, and is shown without them.
    """
    try:
        yield
    except HfjaxError as error:
        message = str(error) if isinstance(error, RequestRejected) else without_folders(str(error))
        raise gr.Error(html.escape(message, quote=False), title="That did not work", print_exception=False) from None


def streamed(function: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncIterator[Any]]:
    """Make an event of a function that checks its arguments and returns an async generator.

    The generator is closed with the event, wherever the event is when it ends: finished, stopped, its visitor gone.
    """

    @functools.wraps(function)
    async def event(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with errors_shown():
            async with aclosing(function(*args, **kwargs)) as moments:
                async for moment in moments:
                    yield moment

    return event
