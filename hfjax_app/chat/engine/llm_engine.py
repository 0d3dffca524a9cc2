"""The chat engine: serves many requests at once with one model. Checks requests and passes them to engine_loop.py.

Handles token ids only; templates, detokenizing and conversations are in `chat/text/`.
"""

import contextlib
import logging
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jax.sharding import Mesh
from transformers import AutoModelForCausalLM, PreTrainedModel

from hfjax_app.chat.engine.engine_loop import EngineLoop
from hfjax_app.chat.engine.request import Constraint, Progress, Request, Ticket, TokenStream
from hfjax_app.chat.engine.stats import EngineActivity, EngineStats
from hfjax_app.chat.memory import check_memory, estimate_memory
from hfjax_app.chat.model.decoder import TracedFacts
from hfjax_app.chat.model.model_runner import ModelRunner
from hfjax_app.chat.options import EngineOptions
from hfjax_app.chat.sampling.params import SamplingParams, recommended
from hfjax_app.chat.sampling.sampler import packed, sampler_state
from hfjax_app.chat.text.tokenizer import end_tokens, load_tokenizer
from hfjax_app.chat.vision.picture import Grid, VisionPicture, placed
from hfjax_app.chat.vision.vision_tower import VisionTower
from hfjax_app.errors import EngineStopped, ModelUnavailable, Overloaded, RequestRejected
from hfjax_app.limits import CHAT_MAX_SCORED_TOKENS
from hfjax_app.runtime.bundle import Bundle
from hfjax_app.runtime.checkpoints.empty_model import empty_model, saved_dtype
from hfjax_app.runtime.checkpoints.lora import base_and_adapter
from hfjax_app.runtime.checkpoints.safetensors_reader import read
from hfjax_app.runtime.checkpoints.tokenizer_files import NoTokenizer
from hfjax_app.runtime.dtype_policy import DTYPES, default_dtype
from hfjax_app.runtime.mesh import device_memory, serving_mesh
from hfjax_app.runtime.process import prepare
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.runtime.programs import Programs
from hfjax_app.runtime.warm_up import OnExpected, ProgramSpec, WarmUp, ignore
from hfjax_app.validation import quoted

DEFAULTS = EngineOptions()

_log = logging.getLogger(__name__)


class ChatEngine:
    """Serves one causal language model.

    Args:
        model: an AutoModelForCausalLM with its weights on the CPU; it is read, never changed. A model without weights
            (on the meta device) gets them by `runner.load` before `start`.
        tokenizer: for callers that turn text into ids; the engine does not use it.
        options: sizes and choices.
        mesh: the devices that share the weights; None: the default device.
        saved_dtype: dtype of the weights in the files, if the model has no weights yet; None: the model's.
        vision: the model's vision tower; its weights must be loaded before `start`. None: it reads text only.
        bundle: from which programs are taken and in which they are kept; None: none are kept.

    Attributes:
        recommended: the sampling parameters of the model's generation_config.
        reads_text_only: whether the model is the text part of a multimodal one.

    Raises:
        RequestRejected: the context is too long for this model.
        ModelUnavailable: the architecture is not supported.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any = None,
        options: EngineOptions = DEFAULTS,
        *,
        mesh: Mesh | None = None,
        saved_dtype: torch.dtype | None = None,
        vision: VisionTower | None = None,
        bundle: Bundle | None = None,
    ):
        prepare()
        self.tokenizer, self.vision, self._bundle = tokenizer, vision, bundle
        self.recommended = recommended(model.generation_config)
        self.reads_text_only = hasattr(model.config, "text_part_of") and vision is None
        traced = TracedFacts.of(bundle)
        self.runner = ModelRunner(model, options, mesh=mesh, saved_dtype=saved_dtype, vision=vision, traced=traced)
        self.context, self.end_tokens = options.context, self.runner.end_tokens
        self._loop = self._new_loop()

    @classmethod
    def from_pretrained(
        cls,
        source: str | os.PathLike[str],
        *,
        dtype: str = "auto",
        pictures: bool = False,
        bundle: Bundle | None = None,
        **options: Any,
    ) -> "ChatEngine":
        """Load a model and its tokenizer from a folder or a hub id: safetensors only, no remote code.

        Args:
            source: a folder or a hub id, of a model or of a LoRA adapter.
            dtype: "float32", "bfloat16", "float16" or "auto": bfloat16 on TPU and GPU, float32 on CPU. With "auto", one
                CPU device keeps weights in bfloat16 that are bfloat16 in the files.
            pictures: whether the vision tower is loaded of a model that can be shown pictures and whose files have it.
            bundle: as for the constructor.
            options: of EngineOptions.

        Raises:
            RequestRejected: an option is out of range.
            ModelUnavailable: in one line, what is wrong with the checkpoint and what would help, or how much memory is
                missing. An architecture that can't run is refused before its weights are downloaded.
        """
        chosen = EngineOptions(**{"keep_bf16": dtype == "auto"} | options)
        prepare()
        base, adapter = base_and_adapter(source)
        model = empty_model(AutoModelForCausalLM, base, default_dtype() if dtype == "auto" else DTYPES[dtype])
        tokenizer, missing = None, None
        try:
            tokenizer = load_tokenizer(source, chosen.context, base=base)
        except NoTokenizer as error:  # told later: that the architecture can't run matters more
            missing = error
        if chosen.end_tokens is None:
            chosen = replace(chosen, end_tokens=end_tokens(model, tokenizer))
        mesh, saved = serving_mesh(), saved_dtype(base)
        vision = VisionTower.of(base, model, tokenizer, chosen, mesh) if pictures else None
        # On shapes first: a model that can't run here is refused before its weights are downloaded.
        engine = cls(model, tokenizer, chosen, mesh=mesh, saved_dtype=saved, vision=vision, bundle=bundle)
        if missing is not None:
            raise missing
        runner = engine.runner
        check_memory(os.fspath(source), estimate_memory(runner), chosen, memory=device_memory())
        if vision is not None:
            try:
                vision.load(base)
            except ModelUnavailable as error:  # tuned and saved without its tower
                _log.warning("%s: it is served without pictures", error)
                return cls.from_pretrained(source, dtype=dtype, bundle=bundle, **options)
        weights = read(model, base, transforms=runner.transforms, placement=runner.placement, adapter=adapter)
        runner.load(weights)
        return engine

    def start(
        self,
        on_report: Callable[[ProgramReport], None] = lambda report: None,
        *,
        on_expected: OnExpected = ignore,
        others: Sequence[ProgramSpec] = (),
        staged: bool = False,
    ) -> "ChatEngine":
        """Compile the programs, run each once, and start the engine's thread.

        Args:
            on_report: called with each program's report.
            on_expected: called before the first program is compiled, see `OnExpected`.
            others: more programs on this engine's weights, such as `ZeroShot.spec`.
            staged: whether only the general programs are compiled now, if the engine has a bundle. The others join by
                `warm_up.load` while the engine serves.

        Raises:
            EngineStopped: the engine was started before; make a new one.
        """
        if self._loop.started:
            raise EngineStopped("this engine was started before; make a new one")
        programs = Programs(on_report, self.runner.mesh, bundle=self._bundle)
        self.warm_up = WarmUp(programs, self.runner.specs(*others), staged=staged, on_expected=on_expected)
        self.runner.reset()
        self.warm_up.start()
        self.runner.decoder.traced.keep(self._bundle)
        self._loop.start()
        return self

    def _new_loop(self) -> EngineLoop:
        return EngineLoop(self.runner)

    def restart(self) -> None:
        """Serve again after a failure, with an empty cache; nothing is compiled.

        Raises:
            EngineStopped: it runs, or was never started.
        """
        if self._loop.alive or not self._loop.started:
            raise EngineStopped("only an engine that has stopped can be started again")
        self._loop.stop()
        self.runner.reset()
        self._loop = self._new_loop()
        self._loop.start()

    def stop(self) -> None:
        """Stop the thread; requests that still wait get EngineStopped. May be called twice."""
        self._loop.stop()

    @property
    def alive(self) -> bool:
        return self._loop.alive

    @property
    def stop_reason(self) -> str:
        """Why the engine does not run."""
        return self._loop.stop_reason

    def stats(self) -> EngineStats:
        return self._loop.stats()

    def activity(self) -> EngineActivity:
        """What the slots do now, and the rates of the last minutes."""
        return self._loop.activity()

    def check(self, prompt: Sequence[int], params: SamplingParams, pictures: Sequence[VisionPicture] = ()) -> None:
        """Raise RequestRejected as `submit` would; works before the engine is started."""
        self._request(prompt, params, pictures)

    def check_ready(self, grids: Iterable[Grid]) -> None:
        """Whether the programs for pictures of these grids have joined: text is served before.

        Raises:
            Overloaded: they are still compiled.
            ModelUnavailable: they can't be.
        """
        if all(map(self.runner.can_see, grids)):
            return
        if self.warm_up.given_up:
            raise ModelUnavailable("pictures can't be seen here: their programs can't be compiled; ask without them")
        raise Overloaded("pictures are not ready yet, their programs are being compiled; try again in a minute", 60)

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        deliver: Callable[[Progress], None],
        *,
        client: str = "",
        public: int = 0,
        pictures: Sequence[VisionPicture] = (),
        constraint: Constraint | None = None,
    ) -> Ticket:
        """Put a request into the queue.

        Args:
            prompt: token ids, 1 ... context - 1 of them; each picture's id once for each of its tokens.
            params: sampling parameters; max_tokens at most the context. An answer also ends when the slot is full.
            deliver: called in the engine's thread with each Progress, the last one `finished`; must return quickly.
            client: who asks. Clients take turns, and one does not reuse what was computed for another.
            public: the number of the prompt's first tokens that all clients may reuse.
            pictures: in the prompt, in order.
            constraint: on the answer's tokens, of this request alone. Such an answer gets one token a call, beside the
                others' many, and nothing is drafted for it.

        Raises:
            RequestRejected: the prompt or parameters are out of range; nothing was computed.
            Overloaded: the queue is full, or pictures are not ready.
            ModelUnavailable: log-probabilities of the prompt are wanted before their program has joined, or the
                programs for pictures can't be compiled.
            EngineStopped: the engine is not running.
        """
        self.check_ready(picture.grid for picture in pictures)
        request = self._request(prompt, params, pictures)
        if params.prompt_logprobs is not None and self.runner.programs.score is None:
            raise ModelUnavailable("the program that scores prompts is still being compiled; try again in a moment")
        request.deliver, request.client, request.public, request.constraint = deliver, client, public, constraint
        loop = self._loop
        loop.submit(request)
        return Ticket(request, loop.place)

    def stream(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        client: str = "",
        pictures: Sequence[VisionPicture] = (),
        constraint: Constraint | None = None,
    ) -> TokenStream:
        """The answer's token ids as they are made, end token not included. Arguments and errors: as `submit`."""
        options: dict[str, Any] = {"client": client, "pictures": pictures, "constraint": constraint}
        return TokenStream(lambda deliver: self.submit(prompt, params, deliver, **options))

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
        """The answers to all prompts, without end tokens; as many run at a time as there are slots.

        Raises: as `stream`.
        """
        for prompt in prompts:
            self.check(prompt, params)  # before any of them starts
        answers: list[list[int]] = []
        streams: deque[TokenStream] = deque()
        most = 2 * self.runner.slots  # in the queue or in a slot: the queue is short and shared
        with contextlib.ExitStack() as stack:
            for prompt in prompts:
                if len(streams) == most:
                    answers.append(list(streams.popleft()))
                streams.append(stack.enter_context(self.stream(prompt, params)))
            return answers + [list(stream) for stream in streams]

    def _request(
        self, prompt: Sequence[int], params: SamplingParams, pictures: Sequence[VisionPicture] = ()
    ) -> Request:
        """The request for these arguments, or RequestRejected."""
        ids = tuple(prompt)
        vocabulary = self.runner.vocabulary
        seen = {picture.id for picture in pictures}
        read = ids if not seen else [i for i in ids if i not in seen]
        wrong = [i for i in read if type(i) is bool or not isinstance(i, int | np.integer) or not 0 <= i < vocabulary]
        if wrong:
            raise RequestRejected(f"token id {quoted(wrong[0])}: must be a whole number from 0 to {vocabulary - 1}")
        if not 1 <= len(ids) < self.context:
            raise RequestRejected(
                f"prompt of {len(ids)} tokens: must be 1 to {self.context - 1} (the context less one)"
            )
        if params.max_tokens > self.context:
            raise RequestRejected(f"max tokens = {quoted(params.max_tokens)}: at most {self.context}, the context")
        biased = next((token for token in params.logit_bias if token >= vocabulary), None)
        if biased is not None:
            most = vocabulary - 1
            raise RequestRejected(f"logit bias for token id {quoted(biased)}: this model's go from 0 to {most}")
        if pictures and self.vision is None:
            raise RequestRejected("pictures: this model answers to text only")
        if params.prompt_logprobs is not None:
            if len(ids) > CHAT_MAX_SCORED_TOKENS:
                most = f"at most {CHAT_MAX_SCORED_TOKENS:,} with log-probabilities of its tokens"
                raise RequestRejected(f"prompt of {len(ids):,} tokens: {most}")
            if pictures:
                raise RequestRejected("log-probabilities of a prompt with pictures: there are none of a picture")
        places = placed(ids, pictures)
        room = self.context - len(ids)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        return Request(
            prompt=ids,
            max_tokens=min(params.max_tokens, room),
            pictures=places,
            positions=None if self.vision is None else self.vision.positions(ids, places),
            sampler=packed(sampler_state(params, seed)),
            top_logprobs=params.logprobs,
            prompt_logprobs=params.prompt_logprobs,
            length_reason="length" if params.max_tokens <= room else "context",
        )
