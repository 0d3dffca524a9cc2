"""What a client wants an answer to be, besides how its tokens are chosen."""

from dataclasses import dataclass

from hfjax_app.chat.text.answer_grammar import AnswerGrammar
from hfjax_app.chat.text.tools import Tool


@dataclass(frozen=True, kw_only=True)
class AnswerForm:
    """The form of an answer; by default it is any text.

    Args:
        grammar: that it follows; None: none.
        tools: that the model may call, of `checked_tools`.
        must_call: whether the answer is a call of one of them.
        one_call: whether it ends with its first call.
        beginning: what was already said of it; the model goes on from there.
    """

    grammar: AnswerGrammar | None = None
    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    one_call: bool = False
    beginning: str = ""


ANY_TEXT = AnswerForm()
