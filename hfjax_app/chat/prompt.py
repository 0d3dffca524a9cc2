"""What the model gets of a request, made once for all its answers: messages and texts are trimmed to the context and
turned into tokens, by the template of `text/chat_template.py`.

Long prompts are made in a thread, and grammars compiled in one, because both may take long. Untrusted
files become pictures in a few threads and within a bound of memory.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from hfjax_app.chat.engine.llm_engine import ChatEngine
from hfjax_app.chat.engine.request import Constraint
from hfjax_app.chat.request import ChatRequest
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.chat.text.answer_grammar import AnswerGrammar
from hfjax_app.chat.text.chat_template import ChatFormat
from hfjax_app.chat.text.grammar import Grammars
from hfjax_app.chat.text.messages import Message, Shown, pictures_of
from hfjax_app.chat.text.response import Answer
from hfjax_app.chat.text.template import NO_VARIABLES, Variables
from hfjax_app.chat.vision.picture import Grid, VisionPicture
from hfjax_app.chat.vision.vision_tower import VisionTower
from hfjax_app.errors import ModelUnavailable, Overloaded, RequestRejected
from hfjax_app.limits import (
    CHAT_MAX_CHARACTERS,
    CHAT_MAX_COUNTED_TOKENS,
    CHAT_PICTURES_AT_ONCE,
    CHAT_PICTURES_BYTES,
    GRAMMARS_COMPILED_AT_ONCE,
)
from hfjax_app.pictures import as_seen, read_picture
from hfjax_app.validation import checked_text

RETRY_AFTER_S = 5


@dataclass(frozen=True, kw_only=True)
class ReadPictures:
    """The pictures of one request.

    Attributes:
        pictures: in the order of their files.
        release: gives their memory back; called when the request has ended. Called again it does nothing.
    """

    pictures: Sequence[VisionPicture]
    release: Callable[[], None]


class PictureReader:
    """Reads pictures for one model. Thread-safe.

    A prepared picture takes megabytes until its answer ends, and many requests may wait for a slot. The memory is
    counted from before a request's first picture is read until the request is refused, fails or ends, and says so.

    Args:
        vision: prepares them.
        most_bytes: of all pictures that are held.
    """

    def __init__(self, vision: VisionTower, most_bytes: int = CHAT_PICTURES_BYTES):
        self._vision, self._most = vision, most_bytes
        self._threads = ThreadPoolExecutor(CHAT_PICTURES_AT_ONCE, "pictures")
        self._counting, self._held = threading.Lock(), 0

    @property
    def held_bytes(self) -> int:
        """Of all pictures that wait to be read, wait for a slot, or are answered."""
        return self._held

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def grids(self, shown: Sequence[Shown]) -> list[Grid]:
        """The sizes that pictures get, by their files' headers, which are untrusted too and may take long.

        Raises:
            RequestRejected: a file is no picture, or too large.
        """
        found = self._threads.submit(lambda: [self._vision.grid_of(picture) for picture in shown])
        return await asyncio.wrap_future(found)

    async def read(self, shown: Sequence[Shown], grids: Sequence[Grid]) -> ReadPictures:
        """The pictures of a conversation in these sizes; the caller releases them in every case.

        Raises:
            RequestRejected: a file is no picture, or too large.
            Overloaded: the pictures of other requests take all of the memory.
        """
        room = self._room(sum(grid.picture_bytes for grid in grids))
        pictures: list[VisionPicture] = []
        reading: Future[VisionPicture] | None = None
        try:
            for picture, grid in zip(shown, grids, strict=True):
                reading = self._threads.submit(self._picture, picture.file, grid)
                pictures.append(await asyncio.wrap_future(reading))
        except BaseException:
            pictures.clear()  # the error's traceback keeps this frame
            if reading is None:
                room.close()
            else:  # at once, unless the client has left while a thread reads
                reading.add_done_callback(lambda _: room.close())
            raise
        return ReadPictures(pictures=pictures, release=room.close)

    def _room(self, size: int) -> ExitStack:
        """Memory of so many bytes, until the stack is closed."""
        with self._counting:
            if self._held + size > self._most:
                raise Overloaded("too many pictures wait for an answer already; try again later", RETRY_AFTER_S)
            self._held += size
        room = ExitStack()
        room.callback(self._give_back, size)
        return room

    def _give_back(self, size: int) -> None:
        with self._counting:
            self._held -= size

    def _picture(self, file: bytes, grid: Grid) -> VisionPicture:
        picture = self._vision.picture(as_seen(read_picture(file, "picture")), grid)
        _ = picture.id  # megabytes are hashed for it
        return picture


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A conversation or a text for the model.

    Args:
        tokens: the ids.
        pictures: in these, in order; they are read last of all, when nothing else can refuse the request.
        dropped_messages: how many of the oldest messages they leave out.
        new_answer: an empty answer.
        new_constraint: a constraint at its beginning; None: answers are free.
        one_call: whether an answer ends with its first call of a tool.
        release: gives back the memory of its pictures; called when its last answer has ended.
    """

    tokens: list[int]
    pictures: tuple[VisionPicture, ...] = ()
    dropped_messages: int = 0
    new_answer: Callable[[], Answer]
    new_constraint: Callable[[], Constraint] | None = None
    one_call: bool = False
    release: Callable[[], None] = lambda: None

    def showing(self, pictures: Sequence[VisionPicture], release: Callable[[], None]) -> "Prompt":
        """With pictures in the places -1, -2, ... that `ChatFormat.fit` left them."""
        ids = {-at: picture.id for at, picture in enumerate(pictures, 1)}
        tokens = [ids.get(token, token) for token in self.tokens]
        return replace(self, tokens=tokens, pictures=tuple(pictures), release=release)


_SHORT = 2_000  # characters that become tokens on the event loop, in about a millisecond


class PromptMaker:
    """Messages or a text -> a Prompt. Thread-safe.

    Args:
        engine: has a tokenizer; need not be started.
        system_prompt: the operator's, for conversations that come without one.
    """

    def __init__(self, engine: ChatEngine, *, system_prompt: str = ""):
        self._engine = engine
        self._format = ChatFormat(engine.tokenizer, None if engine.vision is None else engine.vision.markup)
        self._system_prompt = system_prompt
        self._public = self._operators_tokens()
        self._grammars = Grammars(engine.tokenizer, engine.runner.vocabulary, engine.end_tokens)
        self._compilers = ThreadPoolExecutor(GRAMMARS_COMPILED_AT_ONCE, "grammars")
        self._pictures = None if engine.vision is None else PictureReader(engine.vision)

    def stop(self) -> None:
        self._compilers.shutdown(wait=False, cancel_futures=True)
        if self._pictures is not None:
            self._pictures.stop()

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._format.template is not None

    @property
    def thinks(self) -> bool | None:
        """Whether the template makes the model reason before it answers; None: it can't be switched."""
        switch = None if self._format.template is None else self._format.template.switch
        return None if switch is None else switch[1]

    def count(self, request: ChatRequest) -> list[int]:
        """See `ChatAssistant.count`."""
        self._check_pictures(request.messages)
        most = max(2 * self._engine.context, CHAT_MAX_COUNTED_TOKENS)
        form, values = request.form, self._variables(request)
        if form.tools:
            self._format.check_tools()
        instructions = self._instructions(request.system_prompt)
        return self._format.encode(
            request.messages, instructions, most, form.tools, form.beginning, values, opening=request.opens
        )

    def tokenize(self, text: str) -> list[int]:
        """See `ChatAssistant.tokenize`."""
        return self._format.encode_prompt(checked_text(text, "prompt", CHAT_MAX_CHARACTERS, may_be_blank=True))

    def check(self, request: ChatRequest, params: SamplingParams) -> None:
        """Raise RequestRejected as `prompt` would."""
        tokens, _ = self._fitted(request, params)
        self._engine.check(tokens, params)

    def public_tokens(self, prompt: list[int]) -> int:
        """How many of a prompt's first tokens are the operator's own."""
        return len(self._public) if prompt[: len(self._public)] == self._public else 0

    async def prompt(self, request: ChatRequest, params: SamplingParams) -> Prompt:
        """The prompt of a request, which the caller releases.

        Args:
            request: a conversation or a text.
            params: its sampling parameters, none of which is left out.

        Raises:
            RequestRejected: it does not fit the model, or one of its pictures can't be read.
            Overloaded: the pictures of other requests take all of the memory.
        """
        self._engine.check([0], params)  # before anything is computed
        form, reader = request.form, self._check_pictures(request.messages)
        make = partial(self._continued if request.text is not None else self._answered, request, params)
        prompt = make() if _is_short(request) else await asyncio.to_thread(make)
        grammar = self._format.response.forced_call(form.tools) if form.must_call else form.grammar
        prompt = await self._constrained(prompt, grammar)
        if reader is not None:
            shown = pictures_of(request.messages[prompt.dropped_messages :])
            grids = await reader.grids(shown)
            self._engine.check_ready(grids)
            read = await reader.read(shown, grids)
            prompt = prompt.showing(read.pictures, read.release)
        return prompt

    def _check_pictures(self, turns: list[Message]) -> PictureReader | None:
        """What reads the pictures of a conversation; None if there are none."""
        if not pictures_of(turns):
            return None
        if self._pictures is None:
            raise RequestRejected("pictures: this model answers to text only; leave them out, or choose one that sees")
        return self._pictures

    def _fitted(self, request: ChatRequest, params: SamplingParams) -> tuple[list[int], int]:
        """The prompt of a conversation, and the number of the oldest messages that it leaves out."""
        limit = self._engine.context - min(params.max_tokens, self._engine.context // 4)
        instructions, form, values = self._instructions(request.system_prompt), request.form, self._variables(request)
        return self._format.fit(
            request.messages, instructions, limit, form.tools, form.beginning, values, opening=request.opens
        )

    def _variables(self, request: ChatRequest) -> Variables:
        """The variables of the chat template."""
        if self._format.template is None:
            return NO_VARIABLES
        return self._format.template.variables(thinks=request.thinks, effort=request.effort, others=request.variables)

    def _instructions(self, system_prompt: str) -> str:
        """The client's system prompt, or else the operator's."""
        return system_prompt if system_prompt.strip() else self._system_prompt

    def _operators_tokens(self) -> list[int]:
        """The tokens that every conversation with the operator's system prompt begins with; empty without one."""
        if not self._system_prompt:
            return []
        context = self._engine.context
        try:
            one, other = (
                self._format.fit([{"role": "user", "content": text}], self._system_prompt, context - context // 4)[0]
                for text in ("A", "B")
            )
        except RequestRejected:
            raise ModelUnavailable(
                f"the system prompt of this server (HFJAX_SYSTEM_PROMPT) leaves no room for a message in a context of "
                f"{context} tokens: shorten it, or serve the model with a longer context"
            ) from None
        return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]

    def _answered(self, request: ChatRequest, params: SamplingParams) -> Prompt:
        turns, form = request.messages, request.form
        if form.tools or any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns):
            self._format.check_tools()
        tokens, dropped = self._fitted(request, params)
        instructions, values = self._instructions(request.system_prompt), self._variables(request)
        new_answer = self._format.answers(turns[dropped:], instructions, form.tools, values, opening=request.opens)
        if form.beginning and new_answer().is_reasoning:
            raise RequestRejected("this model's answers can't be continued: they begin with reasoning; ask again")
        return Prompt(tokens=tokens, dropped_messages=dropped, new_answer=new_answer, one_call=form.one_call)

    def _continued(self, request: ChatRequest, params: SamplingParams) -> Prompt:
        text = request.text
        tokens = self._format.encode_prompt(text) if isinstance(text, str) else list(text or ())
        self._engine.check(tokens, params)
        return Prompt(tokens=tokens, new_answer=self._format.plain_answer)

    async def _constrained(self, prompt: Prompt, grammar: AnswerGrammar | None) -> Prompt:
        """The prompt, for answers that follow a grammar; reasoning that the prompt has begun is left free.

        Raises:
            RequestRejected: the grammar is wrong or too complex, or this model's answers can't be constrained.
        """
        if grammar is None:
            return prompt
        after = self._format.response.free_until(prompt.new_answer())
        loop = asyncio.get_running_loop()
        compiled = await loop.run_in_executor(self._compilers, self._grammars.compiled, grammar, after)
        return replace(prompt, new_constraint=compiled.constraint)


def _is_short(request: ChatRequest) -> bool:
    """Whether a request is plain text of a few characters, with all that it carries."""
    if request.variables:
        return False
    if request.text is not None:
        return len(request.text) <= _SHORT
    values = [request.system_prompt, *(value for turn in request.messages for value in turn.values())]
    return not request.form.tools and sum(len(v) if isinstance(v, str) else _SHORT + 1 for v in values) <= _SHORT
