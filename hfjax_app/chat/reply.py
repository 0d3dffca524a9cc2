"""What a client gets of an answer, again and again while it grows."""

import time
from dataclasses import dataclass

from hfjax_app.chat.engine.request import Progress
from hfjax_app.chat.prompt import Prompt
from hfjax_app.chat.request import ChatRequest
from hfjax_app.chat.sampling.logprobs import TokenLogprobs
from hfjax_app.chat.text.detokenizer import Detokenizer, StopStrings
from hfjax_app.chat.text.tools import ToolCall


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The state of an answer at one moment.

    Args:
        text: the whole answer so far.
        tool_calls: the calls of tools so far, each as soon as it is complete.
        reasoning: the whole reasoning before it, of models that reason; else empty.
        reasoning_s: seconds that it took so far; None if there is none.
        is_reasoning: whether it is growing.
        finish_reason: None while running, then "stop", "length" or "context" (the context is full).
        place: place in the queue; 0 while being served.
        dropped_messages: how many of the oldest messages were left out so that the conversation fits.
        prompt_tokens: tokens of the prompt, template included.
        reused_tokens: prompt tokens that were still in the cache, from this client's conversations or the operator's
            system prompt.
        drafted_tokens: tokens that were drafted from the conversation and verified several at once.
        accepted_tokens: drafted tokens that were accepted.
        tokens: tokens made so far.
        ttft_s: seconds from the request to its first token; None before.
        tokens_per_s: tokens per second after the first one; None before the second.
        new_tokens: the ids that came since the reply before; some of them may not be shown.
        new_logprobs: theirs, where the request's parameters ask for them.
        prompt: the prompt's ids, where the parameters ask for their log-probabilities; once, with the first tokens.
        prompt_logprobs: of these but the first one.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    reasoning_s: float | None = None
    is_reasoning: bool = False
    finish_reason: str | None
    place: int
    dropped_messages: int
    prompt_tokens: int
    reused_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    tokens: int
    ttft_s: float | None
    tokens_per_s: float | None
    new_tokens: tuple[int, ...] = ()
    new_logprobs: tuple[TokenLogprobs, ...] = ()
    prompt: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class ReplyBuilder:
    """The tokens of one answer -> its text, its parts and its figures. Made when the request is sent.

    Args:
        prompt: of the answer.
        request: says what ends it.
        detokenizer: of the model.
    """

    def __init__(self, prompt: Prompt, request: ChatRequest, detokenizer: Detokenizer):
        self._prompt, self._detokenizer = prompt, detokenizer
        self._stops, self._stop_tokens = StopStrings(request.stop), frozenset(request.stop_tokens)
        self._least = request.sampling.min_tokens
        self._ended = False  # by one of these
        self._answer = prompt.new_answer()
        self._tokens = self._reused = self._drafted = self._accepted = 0
        self._started = time.perf_counter()
        self._first_at: float | None = None
        self._reasoning_s: float | None = None

    def after(self, progress: Progress, place: int) -> Reply:
        """The reply after this progress, which may be empty.

        Args:
            progress: without an error.
            place: of the request in the queue; 0 while being served.
        """
        answer, now = self._answer, time.perf_counter()
        new = self._before_stop(progress.tokens)
        if progress.tokens:
            self._add(new, progress, now)
        enough = self._ended or self._stops.found or (self._prompt.one_call and bool(answer.calls))
        finish_reason = "stop" if enough else progress.finish_reason
        if (progress.finished or self._ended) and not self._stops.found:
            answer.push(self._stops.held_back)
        if finish_reason is not None:
            answer.end()
        decoding_s = 0.0 if self._first_at is None else now - self._first_at
        return Reply(
            text=answer.text,
            tool_calls=tuple(answer.calls[:1] if self._prompt.one_call else answer.calls),
            reasoning=answer.reasoning,
            reasoning_s=self._reasoning_s,
            is_reasoning=answer.is_reasoning,
            finish_reason=finish_reason,
            place=place,
            dropped_messages=self._prompt.dropped_messages,
            prompt_tokens=len(self._prompt.tokens),
            reused_tokens=self._reused,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
            tokens=self._tokens,
            ttft_s=None if self._first_at is None else self._first_at - self._started,
            tokens_per_s=(self._tokens - 1) / decoding_s if self._tokens > 1 and decoding_s > 0 else None,
            new_tokens=new,
            new_logprobs=progress.logprobs[: len(new)],
            prompt=tuple(self._prompt.tokens) if progress.prompt_logprobs is not None else (),
            prompt_logprobs=progress.prompt_logprobs or (),
        )

    def _before_stop(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens before the first that ends the answer."""
        first = max(self._least - self._tokens, 0)
        at = next((at for at, token in enumerate(tokens) if at >= first and token in self._stop_tokens), None)
        self._ended |= at is not None
        return tokens[:at]

    def _add(self, new: tuple[int, ...], progress: Progress, now: float) -> None:
        self._first_at = self._first_at or now
        held = max(self._least - self._tokens, 0)  # of the new ones, in which no string is looked for
        self._tokens += len(new)
        self._reused = progress.reused_tokens
        self._drafted += progress.drafted_tokens
        self._accepted += progress.accepted_tokens
        was_reasoning = self._answer.is_reasoning or not self._answer.text
        held_pieces = self._detokenizer.push(new[:held])
        self._answer.push([*held_pieces, *self._stops.push(self._detokenizer.push(new[held:]))])
        if self._answer.reasoning and was_reasoning:
            self._reasoning_s = now - self._first_at
