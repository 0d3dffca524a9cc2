"""Translation of the page's conversation for the assistant and back."""

import re
from typing import Any

import pytest

from hfjax_app.chat import Reply
from hfjax_app.errors import RequestRejected
from hfjax_app.studio.markdown import as_typed
from hfjax_app.studio.transcript import PageMessage, attached, note, position, read


def test_notes_stay_on_the_page() -> None:
    """The line under an answer survives the round trip through the browser, and the model never sees it."""
    messages = [
        PageMessage(role="user", text="Hi!"),
        PageMessage(role="assistant", text="Hello.", note="9 tokens", context=34),
    ]
    assert read([entry for message in messages for entry in message.to_page()]) == messages
    assert messages[1].to_assistant() == {"role": "assistant", "content": "Hello."}


def test_typed_html_is_shown_as_text_and_comes_back() -> None:
    """Gradio's Markdown takes <div> for HTML and shows nothing; an invisible character prevents that."""
    typed = PageMessage(role="user", text="Is <div> bigger than </p>, or 1 < 2, in `<b>`?")
    [entry] = typed.to_page()
    [shown] = entry["content"]
    assert not re.search(r"<[a-z/]", shown["text"].replace("`<b>`", ""))
    assert "1 < 2, in `<b>`?" in shown["text"]
    assert read(typed.to_page()) == [typed]
    assert as_typed(shown["text"]) == typed.text


def test_the_note_says_how_many_drafted_tokens_were_right() -> None:
    """Only if there were drafts."""
    moment = {"text": "Hi.", "finish_reason": "length", "place": 0, "dropped_messages": 0, "prompt_tokens": 430}
    moment |= {"reused_tokens": 412, "tokens": 1280, "ttft_s": 0.5, "tokens_per_s": 50.0}
    begins = "first token 500 ms · 49 tokens/s · 1,280 tokens · reused 412 of 430 tokens · "
    drafts = Reply(**moment, drafted_tokens=1400, accepted_tokens=1099)
    assert note(drafts) == f"{begins}drafts: 1,099 of 1,400 tokens right · ended at max tokens"
    none = Reply(**moment, drafted_tokens=0, accepted_tokens=0)
    assert note(none) == f"{begins}ended at max tokens"
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
    """Notes of the app are short; this one came from elsewhere, and would be sent back with every redraw."""
    forged = [{"role": "assistant", "content": [{"text": "a"}], "metadata": {"log": "<" * 300_000, "id": "x"}}]
    [message] = read(forged)
    assert len(message.note) < 10_000
    assert message.context == 0


def test_a_growing_answer_differs_from_a_complete_one() -> None:
    """Also after the round trip through the browser."""
    messages = [PageMessage(role="assistant", text="Hi", note="n", is_growing=grows) for grows in (True, False)]
    assert read([entry for message in messages for entry in message.to_page()]) == messages


def test_a_place_in_line_is_not_shown_to_who_does_not_wait() -> None:
    """A lone visitor read "place 1 in line"."""
    moment = {"text": "", "finish_reason": None, "place": 1, "dropped_messages": 0, "prompt_tokens": 4, "tokens": 0}
    moment |= {"reused_tokens": 0, "ttft_s": None, "tokens_per_s": None, "drafted_tokens": 0, "accepted_tokens": 0}
    assert note(Reply(**moment)) == "place 1 in line"
    assert note(Reply(**moment), waits=False) == "thinking …"


def test_reasoning_is_an_entry_of_its_own() -> None:
    """Gradio folds it; it comes back with its answer, and events name entries, not messages."""
    thoughtful = PageMessage(role="assistant", text="4.", note="n", reasoning="A <b>.", reasoning_s=2.5)
    messages = [PageMessage(role="user", text="Hi"), thoughtful, PageMessage(role="user", text="Why?")]
    page = [entry for message in messages for entry in message.to_page()]
    assert [entry.get("metadata") for entry in page] == [
        None,
        {"title": "Reasoning", "status": "done", "duration": 2.5},
        {"log": "n", "status": "done", "id": 0},
        None,
    ]
    assert read(page) == messages
    assert thoughtful.to_assistant() == {"role": "assistant", "content": "4.", "reasoning": "A <b>."}
    assert [position(index, page) for index in (0, 1, [2, 0], 3)] == [0, 1, 1, 2]
    assert PageMessage(role="assistant", text="", reasoning="A", is_reasoning=True).to_page()[0]["metadata"] == {
        "title": "Reasoning",
        "status": "pending",
    }


URL = "data:image/jpeg;base64,/9j/4A=="


def test_pictures_stay_with_their_question() -> None:
    """Behind its text on the page, before it for the model; other parts that a client sends are dropped."""
    asked = PageMessage(role="user", text="What is <this>?", pictures=(URL, URL))
    [entry] = asked.to_page()
    assert read([entry]) == [asked]
    content = asked.to_assistant()["content"]
    assert [part["type"] for part in content] == ["image", "image", "text"]
    assert content[0]["image"] == b"\xff\xd8\xff\xe0"
    for part in ({"text": "![Picture](http://evil/x.png)"}, {"text": f"![Picture]({URL}) x"}, {"text": 1}, 7, None):
        assert read([{"role": "user", "content": [{"text": "Hi"}, part]}]) == [PageMessage(role="user", text="Hi")]


@pytest.mark.parametrize("value", ["{", "7", '["x"]', f'["{URL})![x](http://evil"]', f'[["{URL}"]]', "[null]"])
def test_attachments_that_no_page_sends_are_refused(value: str) -> None:
    assert attached("") == attached("[]") == attached(None) == ()
    assert attached(f'["{URL}"]') == (URL,)
    with pytest.raises(RequestRejected, match="must be a list of data URLs"):
        attached(value)
