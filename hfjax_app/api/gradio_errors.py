"""Maps the app's errors to Gradio's: visitors and API clients see one line and no stack trace. And how
many of Gradio's events run at the same time."""

import functools
import html
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import ParamSpec, TypedDict, TypeVar, get_args

import gradio as gr

from hfjax_app.errors import HfjaxError, RequestRejected, where, without_folders

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def errors_shown() -> Iterator[None]:
    """Turn an HfjaxError of the block into a gr.Error with its message, and any other into one that says nothing.

    Gradio would log an unexpected error with its message, which may quote what the visitor wrote. A message is escaped,
    because it quotes what the visitor sent and Gradio shows it as HTML. One about a model may quote a library that
    names folders of this machine, so folders are removed from it.
    """
    try:
        yield
    except HfjaxError as error:
        message = str(error) if isinstance(error, RequestRejected) else without_folders(str(error))
        raise gr.Error(html.escape(message, quote=False), title="That did not work", print_exception=False) from None
    except gr.Error:
        raise
    except Exception as error:
        _log.error("a request failed with %s", where(error))
        message = "something failed here, and the server's log says where; try again, or report it"
        raise gr.Error(message, title="That did not work", print_exception=False) from None


def streamed(function: Callable[P, AsyncGenerator[T, None]]) -> Callable[P, AsyncIterator[T]]:
    """Make an event handler of a function that checks its arguments and returns an async generator.

    The generator is closed when the event ends: it finished, it was stopped, or the visitor left.
    """

    @functools.wraps(function)
    async def event(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        with errors_shown():
            async with aclosing(function(*args, **kwargs)) as items:
                async for item in items:
                    yield item

    # Gradio documents an endpoint by its return annotation, and expects the type of one item there.
    signature = inspect.signature(function)
    item_type = get_args(signature.return_annotation)[0]
    event.__dict__["__signature__"] = signature.replace(return_annotation=item_type)
    return event


class Concurrency(TypedDict):
    """Options of Gradio events. Events with the same id share one queue and one limit."""

    concurrency_id: str
    concurrency_limit: int
