"""Messages of a conversation: what is refused, what is joined, and that answers come back."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from hfjax_app.chat.text.detokenizer import Detokenizer, visible_text
from hfjax_app.chat.text.messages import checked_messages
from hfjax_app.errors import RequestRejected


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "not be empty|and not empty"),
        ("hello", "list of messages"),
        ([{"role": "system", "content": "x"}], "role of user or assistant"),
        (["hello"], "role of user or assistant"),
        ([user("")], "message is empty"),
        ([user(" \n\t ")], "message is empty"),
        ([user(None)], "must be text, not NoneType"),
        ([user([{"text": "hi"}])], "must be text, not list"),
        ([user("x" * 20_001)], "20,001 characters: at most 20,000"),
        ([user("a\0b")], "NUL character at 1"),
        ([user("ok \ud800")], "half a surrogate pair at 3"),
        ([user("hi"), assistant("hello")], "must end with a message of the user"),
        ([user("hi")] * 1001, "1,001 messages: at most 1,000"),
        ([user("x" * 15_000), user("y" * 5_001)], "of the user in a row of 20,001 characters: at most 20,000"),
        ([user("a"), *[assistant("x" * 150_000)] * 3], "of the assistant in a row of 450,000 .*: at most 400,000"),
        ([user("a"), assistant("x" * 400_000)] * 11, "conversation of more than 4,000,000 characters: start a new one"),
    ],
)
def test_bad_conversations_are_rejected(messages: Any, says: str) -> None:
    with pytest.raises(RequestRejected, match=says):
        checked_messages(messages)


def test_adjacent_messages_of_one_role_are_joined_and_a_leading_answer_is_left_out() -> None:
    messages = [assistant("Welcome!"), user("a"), user("b"), assistant(""), user("c")]
    assert checked_messages(messages) == [user("a\nb"), assistant(""), user("c")]


def test_every_answer_is_valid_in_the_next_request(tokenizer: PreTrainedTokenizerFast) -> None:
    """A sampled byte-level token can be a NUL, and answers may be long; the conversation continues in both cases."""
    detokenizer = Detokenizer(tokenizer)
    said = visible_text(detokenizer.push(tokenizer.encode("zero\0byte "))) + "and so on " * 3_000
    assert said.startswith("zerobyte")
    assert checked_messages([user("hi"), assistant(said), user("go on")])[1]["content"] == said
