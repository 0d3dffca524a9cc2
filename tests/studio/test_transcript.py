"""From the page's conversation to the assistant's and back."""

from typing import Any

import pytest

from hfjax_app.chat.conversation import checked_messages
from hfjax_app.errors import RequestRejected
from hfjax_app.studio.transcript import Message, read


def test_notes_stay_on_the_page() -> None:
    """The line under an answer survives the way through the browser, and the model never sees it."""
    messages = [
        Message(role="user", text="Hi!"),
        Message(role="assistant", text="Hello.", note="<small>9 tokens</small>"),
    ]
    assert read([message.shown() for message in messages]) == messages
    assert messages[1].said() == {"role": "assistant", "content": "Hello."}


@pytest.mark.parametrize("text", ["worm\0 wanted", "x" * 30_000, ""])
def test_what_the_model_said_is_never_refused(text: str) -> None:
    """A hot model once made a NUL character, and every later question of that conversation was refused."""
    messages = [
        Message(role="user", text="Hi!"),
        Message(role="assistant", text=text),
        Message(role="user", text="On!"),
    ]
    assert len(checked_messages([message.said() for message in messages])) == 3


@pytest.mark.parametrize(
    "history",
    [
        None,
        "x",
        [1],
        [{}],
        [{"role": "system", "content": "x"}],
        [{"role": "user", "content": [{"path": "/etc/passwd"}]}],
    ],
)
def test_anything_else_is_refused(history: Any) -> None:
    with pytest.raises(RequestRejected):
        read(history)
