"""Token ids to text, without partial characters."""

from transformers import PreTrainedTokenizerFast

from hfjax_app.chat.text.detokenizer import Detokenizer, visible_text


def test_detokenizing_never_shows_part_of_a_character(tokenizer: PreTrainedTokenizerFast) -> None:
    """Byte-level tokens split these characters; each piece shown is whole, and together they are the text."""
    text = "Ada 🦊 says 你好, naïvely — ok"
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode(text)
    pieces = [visible_text(detokenizer.push([i])) for i in ids]
    assert len(ids) > len(text)
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
