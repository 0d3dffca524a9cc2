"""A request for a chat model: checked once, where it is made, and passed whole to the model's `ChatAssistant`, which
makes of it what the engine takes (engine/request.py); and what the client wants an answer to be, besides how its tokens
are chosen (`AnswerForm`).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hfjax_app.chat.sampling.params import MAX_SEED, SamplingParams
from hfjax_app.chat.text.answer_grammar import AnswerGrammar
from hfjax_app.chat.text.detokenizer import checked_stop, checked_stop_tokens
from hfjax_app.chat.text.messages import Message, checked_messages
from hfjax_app.chat.text.template import EFFORTS, Variables, checked_variables
from hfjax_app.chat.text.tools import Tool
from hfjax_app.errors import RequestRejected
from hfjax_app.limits import CHAT_MAX_ANSWER_CHARACTERS, CHAT_MAX_CHARACTERS
from hfjax_app.validation import checked_text, quoted


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


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """What a client wants of a chat model. Every value may come from outside, of any type.

    Args:
        messages: the conversation, see `checked_messages`; afterwards its turns. Not used where there is a text.
        text: a text, or token ids, that is continued without a chat template; None: `messages` are answered.
        system_prompt: instructions before the conversation; blank: the operator's.
        sampling: how tokens are chosen; what it leaves out is as the model recommends.
        stop: an answer ends before the first of these strings.
        stop_tokens: ids before the first of which it ends too.
        form: of an answer.
        thinks: whether the model reasons before it answers, where its chat template can switch that; None: as it does.
        effort: one of EFFORTS, for the template; None: as it has it.
        variables: of the template, besides what this app passes.
        opens: whether the prompt opens the assistant's turn.
        model: the model's name; None: the first chat model.
        count: how many answers; each has the seed after that of the one before.
        client: who asks: clients take turns, and one does not reuse what was computed for another.

    Raises:
        RequestRejected: in one line, what is wrong and what is allowed.
    """

    messages: list[Message] = field(default_factory=list)
    text: str | Sequence[int] | None = None
    system_prompt: str = ""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    form: AnswerForm = ANY_TEXT
    thinks: bool | None = None
    effort: str | None = None
    variables: Variables = field(default_factory=dict)
    opens: bool = True
    model: str | None = None
    count: int = 1
    client: str = ""

    def __post_init__(self) -> None:
        if self.text is None:
            turns = checked_messages(self.messages, may_use_tools=True, may_show_pictures=True)
            object.__setattr__(self, "messages", turns)
        elif isinstance(self.text, str):
            checked_text(self.text, "prompt", CHAT_MAX_CHARACTERS)
        checked_text(self.system_prompt, "system prompt", CHAT_MAX_CHARACTERS, may_be_blank=True)
        checked_text(self.form.beginning, "answer to go on from", CHAT_MAX_ANSWER_CHARACTERS, may_be_blank=True)
        object.__setattr__(self, "stop", checked_stop(self.stop))
        object.__setattr__(self, "stop_tokens", checked_stop_tokens(self.stop_tokens))
        object.__setattr__(self, "variables", checked_variables(self.variables))
        for switch in (self.thinks, self.opens):
            if switch is not None and not isinstance(switch, bool):
                raise RequestRejected(f"thinking: must be on or off, not {quoted(switch)}")
        if self.effort is not None and self.effort not in EFFORTS:
            raise RequestRejected(f"reasoning effort {quoted(self.effort)}: must be one of {', '.join(EFFORTS)}")

    def answers(self) -> "list[ChatRequest]":
        """A request for each answer alone."""
        return [self._alone(index) for index in range(self.count)]

    def _alone(self, index: int) -> "ChatRequest":
        one, seed = copy.copy(self), self.sampling.seed  # a copy is not checked again
        object.__setattr__(one, "count", 1)
        if seed is not None:
            object.__setattr__(one, "sampling", replace(self.sampling, seed=(seed + index) % (MAX_SEED + 1)))
        return one
