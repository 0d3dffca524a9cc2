"""Conversations as token ids: applies chat templates, trims to the context, and keeps typed special tokens as text.

`messages.py` has checked the messages before.
"""

import re
import secrets
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

from hfjax_app.chat.text.messages import IF_TOO_LONG, Message, PictureMarkup, pictures_of, template_parts
from hfjax_app.chat.text.response import Answer, ResponseFormat
from hfjax_app.chat.text.template import NO_VARIABLES, Template, Variables
from hfjax_app.chat.text.tools import Tool
from hfjax_app.errors import RequestRejected

_CHARACTERS_PER_TOKEN = 100  # more than any text has on average, so that a template may leave out most of it
_CUT = 1_000  # characters: shorter texts are tokenized as a whole
_TOKENS_PER_CUT = 16  # more than cutting a text in two adds to its tokens
_PRIVATE_USE = [chr(code) for code in range(0xE000, 0xF900)]


class ChatFormat:
    """Applies a tokenizer's chat template; typed text never becomes a special token.

    Args:
        tokenizer: any tokenizer of transformers. Without a chat template, messages are plain text to continue.
        pictures: what stands for pictures in prompts; None: there are none.

    Raises:
        ModelUnavailable: its chat template can't be used.

    Attributes:
        template: None where messages are plain text to continue.
        response: how answers are written.
    """

    def __init__(self, tokenizer: Any, pictures: PictureMarkup | None = None):
        self._tokenizer, self._pictures = tokenizer, pictures
        self.template = Template(tokenizer) if tokenizer.chat_template is not None else None
        self.response = ResponseFormat(tokenizer)
        self._around = ([], []) if self.template else _around(tokenizer)
        added = tokenizer.added_tokens_decoder.values()
        special = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)}
        if pictures is not None:
            special |= {pictures.mark, tokenizer.convert_ids_to_tokens(pictures.placeholder)}
        # In an answer, added tokens that are not special are ordinary text; a template may use them to find reasoning.
        self._split_tokens = {"assistant": _any_of(special), "user": _any_of({*special, *map(str, added)})}

    def check_tools(self) -> None:
        """Raise RequestRejected if the model can't be told of tools, or its calls can't be read."""
        if self.template is None or not self.template.takes_tools:
            raise RequestRejected("tools: this model's chat template has no place for them")
        if not self.response.calls_tools:
            raise RequestRejected("tools: it is not known how this model writes calls; give it a response template")

    def encode(
        self,
        messages: Sequence[Message],
        system_prompt: str = "",
        most: int = sys.maxsize,
        tools: Sequence[Tool] = (),
        beginning: str = "",
        variables: Variables = NO_VARIABLES,
        *,
        opening: bool = True,
    ) -> list[int]:
        """Token ids of the conversation with the opening of the assistant's next turn.

        The typed text of a special token is split before it is tokenized, so that it becomes ordinary tokens with the
        same text. Everything else is encoded exactly as by transformers. In an answer, added tokens that are not
        special (`</think>`) are kept, because the model has written them.

        Raises:
            RequestRejected: there are more than `most`, without what pictures add.
        """
        mark = _mark()
        marked, system = self._marked(messages, mark), self._split_special(system_prompt, mark)
        given, values = self._split_all(tools, mark), self._split_all(variables, mark)
        text = self._render(marked, system, given, values, opening=opening)
        shown = pictures_of(messages)
        if self._pictures is not None and shown:
            text = text.replace(self._pictures.mark, self._pictures.written)
        ids = self._wrapped([*self._ids(text, mark, most), *self._beginning(beginning, mark)])
        if len(ids) > most:
            raise RequestRejected(f"conversation of more than {most:,} tokens: {IF_TOO_LONG}")
        if self._pictures is None or not shown:
            return ids
        placeholder, tokens = self._pictures.placeholder, map(self._pictures.tokens, shown)
        return self._shown(ids, [[placeholder if token < 0 else token for token in of_one] for of_one in tokens])

    def answers(
        self,
        messages: Sequence[Message],
        system_prompt: str = "",
        tools: Sequence[Tool] = (),
        variables: Variables = NO_VARIABLES,
        *,
        opening: bool = True,
    ) -> Callable[[], Answer]:
        """Makes empty answers to a conversation; the prompt may have begun their reasoning."""
        if self.template is None or self.response.reasoning_field is None:
            return partial(self.response.answer, tools=tools)
        mark = _mark()
        last = {**messages[-1], "content": mark}
        turns = [*messages[:-1], last]
        opened = self._render(turns, system_prompt, tools, variables, opening=opening).rpartition(mark)[2]
        return partial(self.response.answer, opened, tools)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text without a template."""
        mark = _mark()
        return self._ids(self._split_special(text, mark), mark)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a text to continue, with what the tokenizer puts around a text."""
        before, after = _around(self._tokenizer)
        return [*before, *self.encode_text(text), *after]

    def plain_answer(self) -> Answer:
        """An answer without parts, to a text that has no template."""
        return Answer(None, None, ())

    def fit(
        self,
        messages: Sequence[Message],
        system_prompt: str,
        limit: int,
        tools: Sequence[Tool] = (),
        beginning: str = "",
        variables: Variables = NO_VARIABLES,
        *,
        opening: bool = True,
    ) -> tuple[list[int], int]:
        """The conversation in at most `limit` tokens, and how many of the oldest messages were dropped for that.

        The tokens of its first picture are -1, of the next one -2, and so on, so that none has to be read for this.

        It begins with a message of the user: one is dropped with the answers and results of tools that follow it. It
        ends with `beginning`, the first part of the next answer.

        The number is found by bisection, because only rendering shows how much a template adds to a turn or leaves out
        of it. This takes a few times as long as encoding what fits.

        Raises:
            RequestRejected: the user's last message, what follows it, and the system prompt alone are longer.
        """
        first = len(messages) - 1
        room = limit * _CHARACTERS_PER_TOKEN
        while first and (room := room - len(messages[first - 1]["content"])) >= 0:
            first -= 1
        starts = [at for at, message in enumerate(messages) if message["role"] == "user"]
        choices = [at for at in starts if at >= first] or starts[-1:]
        first, mark = choices[0], _mark()
        marked, system = self._marked(messages[first:], mark), self._split_special(system_prompt, mark)
        given, values = self._split_all(tools, mark), self._split_all(variables, mark)
        said = self._beginning(beginning, mark)
        fitting: dict[int, list[int]] = {}

        def fits(dropped: int) -> bool:
            text = self._render(marked[dropped - first :], system, given, values, opening=opening)
            shown = pictures_of(messages[dropped:])
            if self._pictures is not None and shown:
                text = text.replace(self._pictures.mark, self._pictures.written)
            ids = self._wrapped([*self._ids(text, mark, limit), *said])
            if self._pictures is not None and shown and len(ids) <= limit:
                counts, room = [len(self._pictures.tokens(picture)) for picture in shown], limit - len(ids) + len(shown)
                if dropped == choices[-1] and sum(counts) > room:
                    raise RequestRejected(
                        f"pictures: {len(counts)} of {sum(counts):,} tokens in one message, and {room:,} fit beside "
                        f"its text: send {_fitting(counts, room)}"
                    )
                ids = self._shown(ids, [[-at] * count for at, count in enumerate(counts, 1)])
            if len(ids) <= limit:
                fitting[dropped] = ids
            return dropped in fitting

        chosen = 0 if fits(first) else bisect_left(choices, True, lo=1, key=fits)
        if chosen == len(choices):
            raise RequestRejected(
                f"message of more than {limit:,} tokens with its system prompt: no more fit this model's context"
            )
        return fitting[choices[chosen]], choices[chosen]

    def _beginning(self, beginning: str, mark: str) -> list[int]:
        """The ids of the first part of an answer."""
        return self._ids(self._split_special(beginning, mark, "assistant"), mark)

    def _marked(self, messages: Sequence[Message], mark: str) -> list[Message]:
        texts = {"content", "reasoning"}  # the others are names
        turns = [
            turn | {name: self._split_special(turn[name], mark, turn["role"]) for name in texts & turn.keys()}
            if "pictures" not in turn
            else {
                "role": turn["role"],
                "content": template_parts(
                    turn["content"], turn["pictures"], partial(self._split_special, mark=mark), mark
                ),
            }
            for turn in messages
        ]
        return [
            turn | {name: self._split_all(turn[name], mark) for name in ("tool_calls", "tool_call_id") if name in turn}
            for turn in turns
        ]

    def _shown(self, ids: Sequence[int], shown: Sequence[Sequence[int]]) -> list[int]:
        """The ids with each placeholder as all tokens of its picture.

        Args:
            ids: with one placeholder for each picture.
            shown: the tokens of each picture, in order.
        """
        assert self._pictures is not None, "pictures are refused without it"
        placeholder, each = self._pictures.placeholder, iter(shown)
        if list(ids).count(placeholder) != len(shown):
            raise RequestRejected("pictures: this model's chat template has no place for each of them")
        return [repeated for token in ids for repeated in (next(each) if token == placeholder else [token])]

    def _split_all(self, value: Any, mark: str) -> Any:
        """JSON data with the special tokens in its texts split."""
        if isinstance(value, str):
            return self._split_special(value, mark)
        if isinstance(value, Mapping):
            return {self._split_special(key, mark): self._split_all(each, mark) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._split_all(each, mark) for each in value]
        return value

    def _ids(self, marked: str, mark: str, limit: int = sys.maxsize) -> list[int]:
        """The ids of a marked text; if there are more than `limit`, only the first of them, but more than `limit`."""
        ids: list[int] = []
        for piece in filter(None, marked.split(mark)):
            ids += self._first_ids(piece, limit - len(ids)) or self._tokenizer.encode(piece, add_special_tokens=False)
            if len(ids) > limit:
                break
        return ids

    def _first_ids(self, text: str, limit: int) -> list[int]:
        """The first ids of a text that has far more than `limit`, at least `limit` of them; empty for other texts."""
        ids: list[int] = []
        size = max(limit, _CUT)
        for cuts, at in enumerate(range(0, len(text) - size, size), 1):
            ids += self._tokenizer.encode(text[at : at + size], add_special_tokens=False)
            if len(ids) > limit + cuts * _TOKENS_PER_CUT:
                return ids
        return []

    def _split_special(self, text: str, mark: str, role: str = "user") -> str:
        """Put a mark inside every special token's text, until no piece between marks contains one."""
        special = self._split_tokens["assistant" if role == "assistant" else "user"]
        while special is not None and special.search(text):
            text = special.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        return text

    def _render(
        self,
        messages: list[Message],
        system_prompt: str,
        tools: Sequence[Tool] = (),
        variables: Variables = NO_VARIABLES,
        *,
        opening: bool = True,
    ) -> str:
        if self.template is not None:
            field = self.response.reasoning_field or "reasoning"
            named = [{field if name == "reasoning" else name: text for name, text in turn.items()} for turn in messages]
            return self.template.render(named, system_prompt, tools, variables, opening=opening)
        texts = [system_prompt, *(message["content"] for message in messages)]
        return "\n".join(text for text in texts if text)

    def _wrapped(self, ids: list[int]) -> list[int]:
        before, after = self._around
        return [*before, *ids, *after]


def _fitting(counts: Sequence[int], room: int) -> str:
    """How many pictures of so many tokens are in the room."""
    fitting = sum(total <= room for total in accumulate(counts))
    return f"at most {fitting}, or smaller ones (detail: low)" if fitting else "smaller ones (detail: low)"


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts before and after a text, such as those of a beginning and an end."""
    whole, text = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=False)
    for at in range(len(whole) - len(text) + 1):
        if whole[at : at + len(text)] == text:
            return whole[:at], whole[at + len(text) :]
    return [], []


def _any_of(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds these texts, the longest first; None if there are none."""
    texts = sorted(token for token in tokens if len(token.strip()) > 1)
    return re.compile(_branches(texts)) if texts else None


def _branches(texts: Sequence[str]) -> str:
    """A regular expression for sorted texts that branches character by character.

    Some tokenizers have thousands of added tokens with the same first characters. Trying each of them at every possible
    start takes a second for a long message.
    """
    groups = groupby(filter(None, texts), itemgetter(0))
    branches: list[str] = [re.escape(first) + _branches([text[1:] for text in group]) for first, group in groups]
    if len(branches) == 1 and texts[0]:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'' if texts[0] else '?'}" if branches else ""


def _mark() -> str:
    """A mark that no text contains: random private-use characters, chosen after the text has arrived."""
    return "".join(secrets.choice(_PRIVATE_USE) for _ in range(8))
