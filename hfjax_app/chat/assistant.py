"""The assistant: takes messages and streams the answer. The studio, the API and the command line use it.

`prompt.py` makes the prompts, and the engine computes.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import cached_property

from hfjax_app.chat.engine.llm_engine import ChatEngine
from hfjax_app.chat.engine.request import Progress
from hfjax_app.chat.engine.stats import EngineActivity, EngineStats
from hfjax_app.chat.interface import Answers
from hfjax_app.chat.memory import estimate_memory
from hfjax_app.chat.prompt import Prompt, PromptMaker
from hfjax_app.chat.reply import Reply, ReplyBuilder
from hfjax_app.chat.request import ChatRequest
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.chat.text.detokenizer import Detokenizer
from hfjax_app.chat.vision.vision_tower import VisionTower
from hfjax_app.chat.zero_shot import ZeroShot
from hfjax_app.errors import ModelUnavailable, Overloaded, RequestRejected
from hfjax_app.runtime.memory import HeldMemory

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
    def picture_sizes(self) -> list[list[tuple[int, int, int]]]:
        """Width, height and tokens of the sizes in which the model sees pictures, by budget; empty: it sees none."""
        grids = [] if self.engine.vision is None else self.engine.vision.grids
        return [[(grid.width, grid.height, grid.count) for grid in of_budget] for of_budget in grids]

    @property
    def thinks(self) -> bool | None:
        """Whether the model reasons before it answers by itself; None: its chat template has no switch for that."""
        return self._prompts.thinks

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
        if (vision := self.engine.vision) is not None:
            facts.append(self._about_pictures(vision))
        if self.engine.reads_text_only:
            facts.append("It reads text only: the part of this model for pictures or sound is not loaded.")
        if self.recommended.temperature == 0:
            facts.append("Its generation_config switches sampling off: answers are greedy at temperature 0.")
        return facts

    def _about_pictures(self, vision: VisionTower) -> str:
        try:
            self.engine.check_ready(vision.all_grids)
        except Overloaded:
            return "It sees pictures: add them to your messages, in a few minutes, when their programs are compiled."
        except ModelUnavailable:
            return "It can't see pictures here: their programs can't be compiled."
        return "It sees pictures: add them to your messages."

    def count(self, request: ChatRequest) -> list[int]:
        """The token ids of a conversation with the opening of the assistant's next turn.

        Raises:
            RequestRejected: it is far longer than the context, or has pictures that the model can't see.
        """
        return self._prompts.count(request)

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

    def check(self, request: ChatRequest) -> None:
        """Raise RequestRejected as `reply` would; works before the engine is started, since that may take minutes."""
        self._prompts.check(request, self._params(request))

    def _params(self, request: ChatRequest) -> SamplingParams:
        return request.sampling.completed(self.recommended, min(SamplingParams().max_tokens, self.context))

    async def reply(self, request: ChatRequest) -> AsyncGenerator[Reply, None]:
        """The first answer to a request, as it grows; raises what `answers` raises."""
        with contextlib.closing(await self.answers(request)) as answers:
            async with contextlib.aclosing(answers.replies[0]) as replies:
                async for reply in replies:
                    yield reply

    async def answers(self, request: ChatRequest) -> Answers:
        """The answers to a request, whose prompt is made once. The caller closes them.

        Each yields a Reply as soon as the request is accepted, with every chunk of tokens, and at least twice a second
        between chunks, so that a caller notices a closed connection. Closing or cancelling it frees the slot within one
        decode chunk. The oldest turns are dropped if the conversation leaves less than a quarter of the context for the
        answer.

        Raises:
            RequestRejected: the model can't answer this; nothing was computed.
            EngineStopped: the engine is not running; an answer raises it if the engine stops before its end.
            ConstraintFailed: of an answer: its form turned out to be too complex.
        """
        params = self._params(request)
        prompt = await self._prompts.prompt(request, params)
        each = (replace(params, seed=one.sampling.seed) for one in request.answers())
        return Answers(replies=[self._answer(prompt, sampling, request) for sampling in each], close=prompt.release)

    async def _answer(
        self, prompt: Prompt, params: SamplingParams, request: ChatRequest
    ) -> AsyncGenerator[Reply, None]:
        """One answer to a prompt, a reply after each of its pieces."""
        constraint = None if prompt.new_constraint is None else prompt.new_constraint()
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Progress] = asyncio.Queue()

        def deliver(progress: Progress) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the client has left
                loop.call_soon_threadsafe(inbox.put_nowait, progress)

        builder = ReplyBuilder(prompt, request, Detokenizer(self.engine.tokenizer))
        ticket = self.engine.submit(
            prompt.tokens,
            params,
            deliver,
            client=request.client,
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
