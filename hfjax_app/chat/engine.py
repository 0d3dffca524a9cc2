"""The chat engine: one thread owns the device and serves many requests at once, in and out through queues.

Handles token ids only; templates, detokenizing and conversations are in conversation.py.
"""

import contextlib
import os
import queue
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from hfjax_app.chat.model_runner import ModelRunner
from hfjax_app.chat.sampling import SamplerState, SamplingParams, sampler_state
from hfjax_app.chat.scheduler import PrefillStep, Request, Scheduler
from hfjax_app.errors import EngineStopped, RequestRejected
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.programs import ProgramReport, Programs
from hfjax_app.runtime.weights import load, load_model

QUEUE_LIMIT = 256


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the engine tells a request's owner: new tokens, and why it finished, when it did.

    finish_reason is None while running, then "stop" (an end token), "length" (max tokens), "context" (the slot is full)
    or "cancelled". `error` is set when the engine died.
    """

    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: EngineStopped | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """A moment's view of the engine. Counters count from its start."""

    slots: int
    busy: int
    waiting: int
    requests: int
    tokens: int
    wasted_tokens: int
    prefill_calls: int
    decode_calls: int


@dataclass(kw_only=True, eq=False)
class _Handle:
    """The engine's side of a request."""

    deliver: Callable[[Progress], None]
    sampler: SamplerState
    length_reason: str


class Ticket:
    """A submitted request. `cancel` frees its slot within one decode chunk; any thread may call it, repeatedly."""

    def __init__(self, engine: "ChatEngine", request: Request):
        self._engine, self._request = engine, request

    def cancel(self) -> None:
        self._request.cancelled = True

    @property
    def place(self) -> int:
        """Place in the waiting line: 1 is next; 0: being served, or finished."""
        return self._engine._place(self._request)


class TokenStream(Iterator[int]):
    """An answer's token ids as they are made. Closing it, leaving its `with` block or dropping it cancels the request.

    Raises:
        EngineStopped: from `next`, when the engine stops before the answer is finished.
    """

    def __init__(self, engine: "ChatEngine", prompt: Sequence[int], params: SamplingParams):
        self._inbox: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self._tokens: deque[int] = deque()
        self.finish_reason: str | None = None
        self._ticket = engine.submit(prompt, params, self._inbox.put)

    def __next__(self) -> int:
        while not self._tokens:
            if self.finish_reason is not None:
                raise StopIteration
            progress = self._inbox.get()
            self._tokens.extend(progress.tokens)
            self.finish_reason = progress.finish_reason
            if progress.error is not None:
                self.finish_reason = "error"
                raise progress.error
        return self._tokens.popleft()

    def close(self) -> None:
        self._ticket.cancel()

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_ticket"):  # absent when submit refused
            self.close()


class ChatEngine:
    """Serves one causal language model.

    Args:
        model: a loaded AutoModelForCausalLM with its weights on the CPU; it is read, never changed.
        tokenizer: kept for callers that turn text into ids; the engine does not use it.
        slots: requests served at the same time; more wait in line.
        context: tokens of prompt and answer together.
        prefill_chunk: prompt tokens a device call takes.
        decode_chunk: tokens a device call makes for each request.

    Raises:
        RequestRejected: slots or context out of range for this model.
        ModelUnavailable: the architecture is not supported.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any = None,
        *,
        slots: int = 4,
        context: int = 512,
        prefill_chunk: int = 64,
        decode_chunk: int = 8,
    ):
        if slots < 1 or context < 2:
            raise RequestRejected(f"slots = {slots}, context = {context}: at least 1 and 2")
        prepare()
        self.tokenizer = tokenizer
        self.context = context
        self.end_tokens = _end_tokens(model)
        self.runner = ModelRunner(
            model,
            slots=slots,
            context=context,
            end_tokens=self.end_tokens,
            prefill_chunk=prefill_chunk,
            decode_chunk=decode_chunk,
        )
        self._scheduler = Scheduler(slots=slots, prefill_chunk=self.runner.prefill_chunk)
        self._changed = threading.Condition()  # guards _scheduler and _accepts; never held during a device call
        self._accepts = False
        self._cause: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._requests = self._tokens = self._wasted = self._prefills = self._decodes = 0

    @classmethod
    def from_pretrained(
        cls, source: str | os.PathLike[str], *, slots: int = 4, context: int = 512, **options: Any
    ) -> "ChatEngine":
        """Load a model and its tokenizer from a folder or a hub id: safetensors only, no remote code.

        Weights are float32 on CPU, bfloat16 on TPU and GPU. `options` go to the constructor.

        Raises:
            ModelUnavailable: in one line, what is wrong with the checkpoint and what would help.
        """
        prepare()
        dtype = torch.float32 if jax.default_backend() == "cpu" else torch.bfloat16
        model = load_model(AutoModelForCausalLM.from_pretrained, source, dtype=dtype)
        tokenizer = load(AutoTokenizer.from_pretrained, source)
        return cls(model, tokenizer, slots=slots, context=context, **options)

    def start(self, on_report: Callable[[ProgramReport], None] = lambda report: None) -> "ChatEngine":
        """Compile the programs (reported one by one) and start the engine's thread.

        Raises:
            EngineStopped: the engine ran before; make a new one.
        """
        if self._thread is not None:
            raise EngineStopped("this engine was started before; make a new one")
        self.runner.compile(Programs(on_report))
        self._accepts = True
        self._thread = threading.Thread(target=self._run, name="chat-engine", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread; whoever still waits gets EngineStopped. May be called twice."""
        with self._changed:
            self._accepts = False
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._accepts

    def stats(self) -> EngineStats:
        with self._changed:
            return EngineStats(
                slots=len(self._scheduler.running),
                busy=self._scheduler.busy,
                waiting=len(self._scheduler.waiting),
                requests=self._requests,
                tokens=self._tokens,
                wasted_tokens=self._wasted,
                prefill_calls=self._prefills,
                decode_calls=self._decodes,
            )

    def submit(self, prompt: Sequence[int], params: SamplingParams, deliver: Callable[[Progress], None]) -> Ticket:
        """Put a request in line.

        Args:
            prompt: token ids, 1 ... context - 1 of them.
            params: sampling parameters; max_tokens at most the context. An answer also ends where the slot is full.
            deliver: called from the engine's thread with each Progress, the last one `finished`; must be quick.

        Raises:
            RequestRejected: the prompt or parameters are out of range, or the line is full; nothing was computed.
            EngineStopped: the engine is not running.
        """
        request = self._checked(prompt, params, deliver)
        with self._changed:
            if not self._accepts:
                raise EngineStopped(f"the chat engine is not running: {self._cause or 'stopped'}") from self._cause
            if len(self._scheduler.waiting) >= QUEUE_LIMIT:
                raise RequestRejected(f"the chat engine is busy: {QUEUE_LIMIT} requests are waiting; try again later")
            self._scheduler.submit(request)
            self._requests += 1
            self._changed.notify()
        return Ticket(self, request)

    def stream(self, prompt: Sequence[int], params: SamplingParams) -> "TokenStream":
        """The answer's token ids as they are made, end token not included. Raises: as `submit`."""
        return TokenStream(self, prompt, params)

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
        """All prompts at once, as many as there are slots at a time; end tokens not included. Raises: as `stream`."""
        for prompt in prompts:
            self._checked(prompt, params, lambda progress: None)  # refuse all before any is begun
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(self.stream(prompt, params)) for prompt in prompts]
            return [list(stream) for stream in streams]

    def _checked(self, prompt: Sequence[int], params: SamplingParams, deliver: Callable[[Progress], None]) -> Request:
        """The request for these arguments, or RequestRejected."""
        ids = tuple(prompt)
        vocabulary = self.runner.vocabulary
        wrong = next((i for i in ids if not isinstance(i, int | np.integer) or not 0 <= i < vocabulary), None)
        if wrong is not None:
            raise RequestRejected(f"token id {wrong!r}: must be a whole number from 0 to {vocabulary - 1}")
        if not 1 <= len(ids) < self.context:
            raise RequestRejected(
                f"prompt of {len(ids)} tokens: must be 1 to {self.context - 1} (the context less one)"
            )
        if params.max_tokens > self.context:
            raise RequestRejected(f"max tokens = {params.max_tokens}: at most {self.context}, the context")
        room = self.context - len(ids)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        handle = _Handle(
            deliver=deliver,
            sampler=sampler_state(params, seed),
            length_reason="length" if params.max_tokens <= room else "context",
        )
        return Request(prompt=ids, max_tokens=min(params.max_tokens, room), handle=handle)

    def _place(self, request: Request) -> int:
        with self._changed:
            return self._scheduler.place(request)

    def _run(self) -> None:
        try:
            while self._accepts:
                if not self._step():
                    with self._changed:
                        self._changed.wait_for(lambda: not self._scheduler.idle or not self._accepts)
        except Exception as error:
            self._cause = error
        finally:
            self._fail_everyone()

    def _step(self) -> bool:
        """One round: free cancelled slots, admit, one prefill chunk, one decode chunk. False when there is no work."""
        with self._changed:
            for request in [*self._scheduler.waiting, *filter(None, self._scheduler.running)]:
                if request.cancelled:
                    self._finish(request, "cancelled")
            self._scheduler.admit()
            prefill = self._scheduler.next_prefill()
        if prefill is not None:
            self._prefill(prefill)
        with self._changed:
            decoding = self._scheduler.decoding()
        if decoding:
            self._decode(decoding)
        return prefill is not None or bool(decoding)

    def _prefill(self, step: PrefillStep) -> None:
        request = step.request
        chunk = np.zeros(self.runner.prefill_chunk, np.int32)
        chunk[: step.stop - step.start] = request.prompt[step.start : step.stop]
        max_tokens = request.max_tokens if step.is_last else 0
        first = self.runner.prefill(
            request.slot, chunk, step.start, step.stop - step.start, max_tokens, request.handle.sampler
        )
        self._prefills += 1
        tokens = (int(np.asarray(first)),) if step.is_last else ()
        with self._changed:
            self._scheduler.prefilled(step)
            if tokens:
                self._hand_out(request, tokens)

    def _decode(self, decoding: list[Request]) -> None:
        active = np.zeros(self.runner.slots, bool)
        active[[request.slot for request in decoding]] = True
        made = np.asarray(self.runner.decode(active))
        self._decodes += 1
        with self._changed:
            for request in decoding:
                column = made[:, request.slot]
                self._hand_out(request, tuple(column[column >= 0].tolist()))

    def _hand_out(self, request: Request, tokens: tuple[int, ...]) -> None:
        """Deliver new tokens of a running request and release it when they were its last. Holds the lock."""
        if request.cancelled:
            self._wasted += len(tokens)
            return
        reason = None
        if tokens and tokens[-1] in self.end_tokens:
            tokens, reason = tokens[:-1], "stop"
        request.made += len(tokens)
        self._tokens += len(tokens)
        if reason is None and request.made >= request.max_tokens:
            reason = request.handle.length_reason
        if reason is not None:
            self._finish(request, reason, tokens)
        elif tokens:
            request.handle.deliver(Progress(tokens=tokens))

    def _finish(self, request: Request, reason: str, tokens: tuple[int, ...] = ()) -> None:
        self._scheduler.release(request)
        request.handle.deliver(Progress(tokens=tokens, finish_reason=reason))

    def _fail_everyone(self) -> None:
        """The thread is ending: tell every request why, and accept no more."""
        with self._changed:
            self._accepts = False
            for request in [*self._scheduler.waiting, *filter(None, self._scheduler.running)]:
                error = EngineStopped(f"the chat engine stopped: {self._cause or 'it was asked to'}")
                error.__cause__ = self._cause
                self._scheduler.release(request)
                request.handle.deliver(Progress(error=error))


def _end_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """The ids that end an answer: generation_config's list, else the config's."""
    ids = model.generation_config.eos_token_id if model.generation_config is not None else None
    if ids is None:
        ids = model.config.get_text_config(decoder=True).eos_token_id
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)
