"""A chat model whose replicas are other processes, as the studio and the API see it."""

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any

from hfjax_app.chat.assistant import HEARTBEAT_S
from hfjax_app.chat.engine.stats import EngineActivity, EngineStats, SlotState
from hfjax_app.chat.interface import Answers, LabelScorer
from hfjax_app.chat.reply import Reply
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.chat.text.answer_form import ANY_TEXT, AnswerForm
from hfjax_app.chat.text.messages import checked_messages
from hfjax_app.chat.text.stop_strings import checked_stop
from hfjax_app.limits import CHAT_MAX_CHARACTERS
from hfjax_app.serving.remote_labels import RemoteLabels
from hfjax_app.serving.replica_calls import ReplicaCalls, with_heartbeats
from hfjax_app.validation import checked_text

Replies = AsyncGenerator[Reply, None]

_BEGINNING = 256  # characters or tokens of a text that name it
_NO_REPLY = Reply(
    text="",
    finish_reason=None,
    place=0,
    dropped_messages=0,
    prompt_tokens=0,
    reused_tokens=0,
    drafted_tokens=0,
    accepted_tokens=0,
    tokens=0,
    ttft_s=None,
    tokens_per_s=None,
)


class RemoteChat:
    """A `ChatModel` that asks replicas.

    Args:
        calls: of its replicas.
        facts: from one of them.
    """

    def __init__(self, calls: ReplicaCalls, facts: Mapping[str, Any]):
        self.calls = calls
        self.recommended: SamplingParams = facts["recommended"]
        self.notices: list[str] = facts["notices"]
        self.sees: bool = facts["sees"]
        self.context: int = facts["context"]
        self.zero_shot: LabelScorer | None = RemoteLabels(calls) if facts["scores_labels"] else None
        self._texts: dict[int, str] = {}  # of tokens in log-probabilities
        self._waiting: list[object] = []  # requests that no replica has taken, in their order

    def stats(self) -> EngineStats:
        """The sum of the replicas'."""
        return EngineStats(**{field.name: self.calls.figure(field.name) for field in fields(EngineStats)})

    def activity(self) -> EngineActivity:
        """Of all replicas together, replica by replica."""
        found = self.calls.activities
        return EngineActivity(
            stats=self.stats(),
            slots=tuple(SlotState(**slot) for each in found for slot in each["slots"]),
            rates=tuple(map(sum, zip(*(each["rates"] for each in found), strict=True))),
            first_token_s=tuple(seconds for each in found for seconds in each["first_token_s"]),
        )

    def answer_once(self) -> None:
        self.calls.ask_from_thread("answer_once")

    def count(self, messages: list[dict[str, Any]], *, system_prompt: str = "") -> list[int]:
        tokens: list[int] = self.calls.ask_from_thread("count", messages, system_prompt)
        return tokens

    def tokenize(self, text: str) -> list[int]:
        tokens: list[int] = self.calls.ask_from_thread("tokenize", text)
        return tokens

    def detokenize(self, tokens: Sequence[int]) -> str:
        """On the event loop only for a token whose log-probability came before."""
        if len(tokens) == 1 and tokens[0] in self._texts:
            return self._texts[tokens[0]]
        text: str = self.calls.ask_from_thread("detokenize", list(tokens))
        return text

    async def reply(
        self,
        messages: list[dict[str, Any]],
        params: SamplingParams,
        *,
        system_prompt: str = "",
        stop: Sequence[str] = (),
        client: str = "",
        **options: Any,
    ) -> AsyncGenerator[Reply, None]:
        """As `ChatAssistant.reply`. A request that all replicas let wait is answered by Replies with a place."""
        turns = checked_messages(messages, may_use_tools=True, may_show_pictures=True)
        checked_text(system_prompt, "system prompt", CHAT_MAX_CHARACTERS, may_be_blank=True)
        options |= {"system_prompt": system_prompt, "stop": checked_stop(stop), "client": client}
        session = _key(client, system_prompt, turns[0]["content"])
        async with aclosing(self._replies("reply", messages, params, options, session)) as replies:
            async for reply in replies:
                yield reply

    async def complete(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        stop: Sequence[str] = (),
        client: str = "",
        **options: Any,
    ) -> AsyncGenerator[Reply, None]:
        """As `ChatAssistant.complete`; a wrong request is refused at the first reply."""
        options |= {"stop": checked_stop(stop), "client": client}
        session = _key(client, str(prompt[:_BEGINNING]))
        async with aclosing(self._replies("complete", prompt, params, options, session)) as replies:
            async for reply in replies:
                yield reply

    async def asked(
        self,
        messages: list[dict[str, Any]],
        params: SamplingParams,
        *,
        system_prompt: str = "",
        form: AnswerForm = ANY_TEXT,
    ) -> Answers:
        """As `ChatAssistant.asked`; each answer is asked of a replica, which refuses it at the first reply."""

        def answer(params: SamplingParams, *, stop: Sequence[str] = (), client: str = "") -> Replies:
            return self.reply(messages, params, system_prompt=system_prompt, stop=stop, client=client, form=form)

        return Answers(answer)

    async def asked_text(
        self, prompt: str | Sequence[int], params: SamplingParams, *, form: AnswerForm = ANY_TEXT
    ) -> Answers:
        """As `ChatAssistant.asked_text`; refused as in `asked`."""

        def answer(params: SamplingParams, *, stop: Sequence[str] = (), client: str = "") -> Replies:
            return self.complete(prompt, params, stop=stop, client=client, form=form)

        return Answers(answer)

    async def _replies(
        self, method: str, prompt: object, params: SamplingParams, options: dict[str, Any], session: str
    ) -> AsyncGenerator[Reply, None]:
        last, request = _NO_REPLY, object()
        self._waiting.append(request)
        pieces = with_heartbeats(self.calls.stream(method, prompt, params, options, session=session), HEARTBEAT_S)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if piece is None:
                        place = self._waiting.index(request) + 1 if last is _NO_REPLY else last.place
                        yield replace(last, place=place, new_tokens=(), new_logprobs=())
                        continue
                    if last is _NO_REPLY:
                        self._waiting.remove(request)
                    self._texts.update(piece.texts)
                    last = piece.reply
                    yield last
        finally:
            if last is _NO_REPLY:
                self._waiting.remove(request)


def _key(*parts: str) -> str:
    """A name of a conversation by its beginning, that tells nothing about it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} {part}".encode(errors="surrogatepass"))
    return digest.hexdigest()
