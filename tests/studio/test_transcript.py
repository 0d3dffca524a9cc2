"""Translation of the page's conversation for the assistant and back."""

import re
from typing import Any

import pytest

from hfjax_app.chat import Reply
from hfjax_app.errors import RequestRejected
from hfjax_app.studio.markdown import as_typed
from hfjax_app.studio.transcript import Message, note, position, read, stopped


def test_notes_stay_on_the_page() -> None:
    """The line under an answer survives the round trip through the browser, and the model never sees it."""
    messages = [
        Message(role="user", text="Hi!"),
        Message(role="assistant", text="Hello.", note="<small>9 tokens</small>"),
    ]
    assert read([entry for message in messages for entry in message.to_page()]) == messages
    assert messages[1].to_assistant() == {"role": "assistant", "content": "Hello."}


def test_typed_html_is_shown_as_text_and_comes_back() -> None:
    """Gradio's Markdown takes <div> for HTML and shows nothing; an invisible character prevents that."""
    typed = Message(role="user", text="Is <div> bigger than </p>, or 1 < 2, in `<b>`?")
    [entry] = typed.to_page()
    [shown] = entry["content"]
    assert not re.search(r"<[a-z/]", shown["text"].replace("`<b>`", ""))
    assert "1 < 2, in `<b>`?" in shown["text"]
    assert read(typed.to_page()) == [typed]
    assert as_typed(shown["text"]) == typed.text


def test_the_note_says_how_many_drafted_tokens_were_right() -> None:
    """Only if there were drafts."""
    moment = {"text": "Hi.", "finish_reason": "length", "place": 0, "dropped_messages": 0, "prompt_tokens": 430}
    moment |= {"reused_tokens": 412, "tokens": 1280, "ttft_s": 0.25, "tokens_per_s": 50.0}
    begins = '<small class="note">first token 250 ms · 50 tokens/s · 1,280 tokens · reused 412 of 430 tokens · '
    drafts = Reply(**moment, drafted_tokens=1400, accepted_tokens=1099)
    assert note(drafts) == f"{begins}drafts: 1,099 of 1,400 tokens right · ended at max tokens</small>"
    none = Reply(**moment, drafted_tokens=0, accepted_tokens=0)
    assert note(none) == f"{begins}ended at max tokens</small>"
    assert "tokens/s" not in note(Reply(**moment | {"tokens": 8}, drafted_tokens=0, accepted_tokens=0))


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
def test_any_other_value_is_rejected(history: Any) -> None:
    with pytest.raises(RequestRejected):
        read(history)


def test_a_note_that_no_page_has_is_cut() -> None:
    """With 300,000 opening brackets, marking an answer as stopped blocked the server for a minute."""
    forged = [{"role": "assistant", "content": [{"text": "a"}, {"text": "<" * 300_000}]}]
    [message] = read(forged)
    assert len(stopped(message).note) < 10_000
    assert len(stopped(Message(role="assistant", text="a", note="<" * 300_000)).note) > 300_000


def test_a_growing_answer_differs_from_a_complete_one() -> None:
    """Also after the round trip through the browser; a stopped answer is complete."""
    moment = {"text": "Hi", "place": 0, "dropped_messages": 0, "prompt_tokens": 4, "reused_tokens": 0, "tokens": 2}
    moment |= {"ttft_s": 0.25, "tokens_per_s": 50.0, "drafted_tokens": 0, "accepted_tokens": 0}
    growing, ended = (
        Message(role="assistant", text="Hi", note=note(Reply(**moment, finish_reason=reason)))
        for reason in (None, "stop")
    )
    assert [message.is_growing for message in read([*growing.to_page(), *ended.to_page()])] == [True, False]
    assert stopped(growing).note == ended.note.replace("</small>", " · stopped</small>")
    assert not stopped(growing).is_growing


def test_reasoning_is_an_entry_of_its_own() -> None:
    """Gradio folds it; it comes back with its answer, and events name entries, not messages."""
    thoughtful = Message(role="assistant", text="4.", note="<small>n</small>", reasoning="A <b>.", reasoning_s=2.5)
    messages = [Message(role="user", text="Hi"), thoughtful, Message(role="user", text="Why?")]
    page = [entry for message in messages for entry in message.to_page()]
    assert [entry.get("metadata") for entry in page] == [
        None,
        {"title": "Reasoning", "status": "done", "duration": 2.5},
        None,
        None,
    ]
    assert read(page) == messages
    assert thoughtful.to_assistant() == {"role": "assistant", "content": "4.", "reasoning": "A <b>."}
    assert [position(index, page) for index in (0, 1, [2, 0], 3)] == [0, 1, 1, 2]
    assert Message(role="assistant", text="", reasoning="A", is_reasoning=True).to_page()[0]["metadata"] == {
        "title": "Reasoning",
        "status": "pending",
    }
