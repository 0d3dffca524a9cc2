"""The assistant: takes messages and streams the answer. The studio, the API and the command line use it.

Does not make prompts (`prompt_maker.py`) and does not compute (the engine does).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from functools import cached_property, partial

from hfjax_app.chat.engine.llm_engine import ChatEngine
from hfjax_app.chat.engine.request import Progress
from hfjax_app.chat.engine.stats import EngineActivity, EngineStats
from hfjax_app.chat.interface import Answers
from hfjax_app.chat.memory import estimate_memory
from hfjax_app.chat.prompt import Prompt
from hfjax_app.chat.prompt_maker import PromptMaker
from hfjax_app.chat.reply import Reply, ReplyBuilder
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.chat.text.answer_form import ANY_TEXT, AnswerForm
from hfjax_app.chat.text.detokenizer import Detokenizer
from hfjax_app.chat.text.messages import Message
from hfjax_app.chat.text.stop_strings import StopStrings, checked_stop
from hfjax_app.chat.zero_shot import ZeroShot
from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.runtime.held_memory import HeldMemory

HEARTBEAT_S = 0.5


class ChatAssistant:
    """Conversations with the model of an engine.

    Args:
        engine: has a tokenizer; must be started before `reply`.
        zero_shot: classifies texts with the same model; None if the model can't.
        system_prompt: the operator's, for conversations that come without one; what is computed for it is shared
            between clients.

    Raises:
        ModelUnavailable: the engine has no tokenizer.
    """

    def __init__(self, engine: ChatEngine, zero_shot: ZeroShot | None = None, *, system_prompt: str = ""):
        if engine.tokenizer is None:
            raise ModelUnavailable("this chat model has no tokenizer")
        self.engine = engine
        self.zero_shot = zero_shot
        self._prompts = PromptMaker(engine, system_prompt=system_prompt)

    def stop(self) -> None:
        self.engine.stop()
        self._prompts.stop()

    @cached_property
    def held_memory(self) -> HeldMemory:
        """What the weights and the cache of all slots take."""
        estimate = estimate_memory(self.engine.runner)
        return HeldMemory(weights=estimate.weights, cache=estimate.cache)

    @property
    def recommended(self) -> SamplingParams:
        """The sampling parameters that the model's generation_config recommends."""
        return self.engine.recommended

    @property
    def sees(self) -> bool:
        """Whether messages may have pictures."""
        return self.engine.vision is not None

    @property
    def context(self) -> int:
        """Tokens of a conversation that the model can read, the answer included."""
        return self.engine.context

    def stats(self) -> EngineStats:
        """The engine's figures."""
        return self.engine.stats()

    def activity(self) -> EngineActivity:
        """What the engine's slots do now, and its rates of the last minutes."""
        return self.engine.activity()

    def answer_once(self) -> None:
        """Make one token; returns when it is there, and raises what a request would."""
        self.engine.generate([[0]], SamplingParams(max_tokens=1, temperature=0.0))

    @property
    def notices(self) -> list[str]:
        """What a visitor should know about this model before asking it."""
        facts = []
        if not self._prompts.has_template:
            facts.append("This is a base model without a chat template: it continues your text.")
        if self.sees:
            facts.append("It sees pictures: add them to your messages.")
        if self.engine.reads_text_only:
            facts.append("It reads text only: the part of this model for pictures or sound is not loaded.")
        if self.recommended.temperature == 0:
            facts.append("Its generation_config switches sampling off: answers are greedy at temperature 0.")
        return facts

    def count(self, messages: list[Message], *, system_prompt: str = "") -> list[int]:
        """The token ids of a conversation with the opening of the assistant's next turn.

        Raises:
            RequestRejected: it is far longer than the context, or as `reply`.
        """
        return self._prompts.count(messages, system_prompt)

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a text, as `complete` reads it."""
        return self._prompts.tokenize(text)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids.

        Raises:
            RequestRejected: an id that the model does not have.
        """
        vocabulary = self.engine.runner.vocabulary
        if wrong := [token for token in tokens if not 0 <= token < vocabulary]:
            raise RequestRejected(f"token id {wrong[0]}: must be a whole number from 0 to {vocabulary - 1}")
        text: str = self.engine.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
        return text

    @property
    def broken(self) -> str | None:
        """Why the assistant can't answer any more; None while the engine runs."""
        return None if self.engine.alive else f"the chat engine is not running: {self.engine.stop_reason}"

    def check(self, messages: list[dict[str, str]], params: SamplingParams, *, system_prompt: str = "") -> None:
        """Raise RequestRejected as `reply` would; works before the engine is started, since that may take minutes."""
        self._prompts.check(messages, params, system_prompt)

    async def reply(
        self,
        messages: list[Message],
        params: SamplingParams,
        *,
        system_prompt: str = "",
        stop: Sequence[str] = (),
        client: str = "",
        form: AnswerForm = ANY_TEXT,
    ) -> AsyncGenerator[Reply, None]:
        """Answer the last message.

        Yields a Reply as soon as the request is accepted, with every chunk of tokens, and at least twice a second
        between chunks, so that a caller notices a closed connection. Closing or cancelling the generator frees the slot
        within one decode chunk. The oldest turns are dropped if the conversation leaves less than a quarter of the
        context for the answer.

        Args:
            messages: [{"role": "user" or "assistant", "content": text}, ...], the last one the user's. Answers may have
                calls of tools, and their results may follow, see `checked_messages`. Where the model `sees`, the user's
                contents may be lists of {"type": "text", "text": str} and {"type": "image", "image": bytes of a file}.
            params: sampling parameters.
            system_prompt: instructions before the conversation; may be empty.
            stop: the answer ends before the first of these strings.
            client: who asks. Clients take turns, and one does not reuse what was computed for another.
            form: of the answer.

        Raises:
            RequestRejected: text or parameters out of range; nothing was computed.
            EngineStopped: the engine is not running, or stopped before the answer was finished.
            ConstraintFailed: the form of the answer turned out to be too complex.
        """
        checked_stop(stop)  # before pictures are decoded
        answers = await self.asked(messages, params, system_prompt=system_prompt, form=form)
        async with contextlib.aclosing(answers(params, stop=stop, client=client)) as replies:
            async for reply in replies:
                yield reply

    async def complete(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        stop: Sequence[str] = (),
        client: str = "",
        form: AnswerForm = ANY_TEXT,
    ) -> AsyncGenerator[Reply, None]:
        """Continue a text, or token ids, without a chat template; otherwise as `reply`."""
        answers = await self.asked_text(prompt, params, form=form)
        async with contextlib.aclosing(answers(params, stop=stop, client=client)) as replies:
            async for reply in replies:
                yield reply

    async def asked(
        self,
        messages: list[Message],
        params: SamplingParams,
        *,
        system_prompt: str = "",
        form: AnswerForm = ANY_TEXT,
    ) -> Answers:
        """What answers a conversation, any number of times: its prompt is made once. Arguments, errors: as `reply`."""
        prompt = await self._prompts.of_messages(messages, params, system_prompt=system_prompt, form=form)
        return partial(self._answers, prompt)

    async def asked_text(
        self, prompt: str | Sequence[int], params: SamplingParams, *, form: AnswerForm = ANY_TEXT
    ) -> Answers:
        """The same for `complete`."""
        return partial(self._answers, await self._prompts.of_text(prompt, params, form=form))

    async def _answers(
        self, prompt: Prompt, params: SamplingParams, *, stop: Sequence[str] = (), client: str = ""
    ) -> AsyncGenerator[Reply, None]:
        """One answer to a prompt, see `reply`."""
        stops = StopStrings(checked_stop(stop))
        constraint = None if prompt.new_constraint is None else prompt.new_constraint()
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Progress] = asyncio.Queue()

        def deliver(progress: Progress) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the client has left
                loop.call_soon_threadsafe(inbox.put_nowait, progress)

        builder = ReplyBuilder(prompt, stops, Detokenizer(self.engine.tokenizer))
        ticket = self.engine.submit(
            prompt.tokens,
            params,
            deliver,
            client=client,
            public=self._prompts.public_tokens(prompt.tokens),
            pictures=prompt.pictures,
            constraint=constraint,
        )
        try:
            progress = Progress()
            while True:
                reply = builder.after(progress, ticket.place)
                yield reply
                if reply.finish_reason is not None:
                    return
                try:
                    # Not wait_for: in Python 3.11 it loses a cancellation that arrives together with its result.
                    async with asyncio.timeout(HEARTBEAT_S):
                        progress = await inbox.get()
                except TimeoutError:
                    progress = Progress()
                if progress.error is not None:
                    raise progress.error
        finally:
            ticket.cancel()
