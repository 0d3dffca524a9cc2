"""From the page's conversation to the assistant's and back."""

from typing import Any

import pytest

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
