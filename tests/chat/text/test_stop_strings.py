"""Stop strings: found in any pieces of a text, and in the texts of special tokens."""

import pytest
from transformers import PreTrainedTokenizerFast

from hfjax_app.chat.text.detokenizer import Detokenizer, Piece, StopStrings, checked_stop, visible_text
from hfjax_app.errors import RequestRejected


@pytest.mark.parametrize(
    ("stop", "says"),
    [
        ("END", "list of strings, not str"),
        ([""], "an empty string"),
        (["x"] * 9, "9 strings: at most 8"),
        (["x" * 101], "stop string of 101 characters"),
        ([7], "stop string: must be text"),
        (["\ud800"], "Unicode"),
    ],
)
def test_bad_stop_strings_are_rejected(stop: object, says: str) -> None:
    with pytest.raises(RequestRejected, match=says):
        checked_stop(stop)


def pushed(stops: StopStrings, pieces: list[str]) -> str:
    return "".join(visible_text(stops.push([Piece(text)])) for text in pieces)


def test_stop_strings_end_a_text_cut_into_any_pieces() -> None:
    """Cut into pieces of any size, the text ends before the first stop string, and no part of one is ever shown. Text
    that only looked like the start of one is shown later."""
    text, stop = "one <en> two <<end> three<end>", ("<end>", "\nUser:")
    for size in range(1, len(text) + 1):
        stops = StopStrings(stop)
        text_before = pushed(stops, [text[at : at + size] for at in range(0, len(text), size)])
        assert stops.found
        assert text_before == "one <en> two <"
    for pieces in (["abcd x"], ["ab", "c", "d x"], [*"abcd x"]):  # "bc" is complete first, and begins second
        assert pushed(StopStrings(("abcd", "bc")), pieces) == "a"
    open_end = StopStrings(stop)
    assert pushed(open_end, ["a <en"]) == "a "
    assert visible_text(open_end.held_back) == "<en"
    assert pushed(StopStrings(()), ["anything"]) == "anything"


@pytest.mark.parametrize("stop", ["<end_of_turn>", "<end_of_turn>\n", "y<end_of_turn>", "of_turn>\n"])
def test_a_stop_string_may_be_the_text_of_a_special_token(stop: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Special tokens are not shown, so the string never matched: the usual remedy for a model that does not stop."""
    detokenizer, stops = Detokenizer(tokenizer), StopStrings((stop,))
    ids = tokenizer.encode("A story<start_of_turn> by<end_of_turn>\nAda", add_special_tokens=False)
    answer = "".join(visible_text(stops.push(detokenizer.push([i]))) for i in ids)
    whole = "A story by\n"
    assert stops.found
    assert answer == {"y<end_of_turn>": "A story b"}.get(stop, whole[:-1])
