"""A replica: a process with one model. Ray counts it in when its programs are warm and it has given an answer."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import jax
import ray
from PIL import Image

from hfjax_app.backends import Backend, Backends
from hfjax_app.backends.loaders import FIRST_ANSWERS
from hfjax_app.backends.registry import MOST_DEATHS
from hfjax_app.chat.interface import ChatModel
from hfjax_app.chat.reply import Reply
from hfjax_app.chat.request import ChatRequest
from hfjax_app.errors import ModelUnavailable
from hfjax_app.images.interface import ImageModel, PromptLength
from hfjax_app.images.request import ImageRequest
from hfjax_app.images.steps import ImageStep, Picture, Waiting
from hfjax_app.limits import EXPLAINED_AT_ONCE, IMAGES_AT_ONCE
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.sentiment.interface import Explanation, Prediction, SentimentModel
from hfjax_app.server.metrics import ModelMetrics
from hfjax_app.server.request_log import set_up_log
from hfjax_app.service.images import iterate_in_thread
from hfjax_app.serving.replica_calls import Refusal, in_thread
from hfjax_app.settings import Settings

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What the ingress knows of a model, the same for all of its replicas.

    Attributes:
        device: as `Backends.device`.
        reports: the ledger of programs.
        facts: values of the model's properties.
    """

    device: str
    reports: Sequence[ProgramReport]
    facts: Mapping[str, Any]


def leave_chips() -> None:
    """Compute on the CPU where the cluster has TPU chips and Ray gave this process none: they are another replica's."""
    if ray.cluster_resources().get("TPU") and not ray.get_runtime_context().get_assigned_resources().get("TPU"):
        os.environ["JAX_PLATFORMS"] = "cpu"
        jax.config.update("jax_platforms", "cpu")
        _log.info("Ray gave this process no TPU chips: it computes on the CPU (docs/ray.md)")


class Replica(Generic[T]):
    """Loads and warms up a model; subclasses answer for it.

    Args:
        settings: of one machine.

    Raises:
        ModelUnavailable: the model can't be loaded, or gives no answer. Ray then tries again.
    """

    kind: ClassVar[str]
    described: ClassVar[Sequence[str]]  # the names of properties

    def __init__(self, settings: Settings):
        set_up_log(settings.log)
        leave_chips()
        self._backends = Backends(settings, kinds=[self.kind]).start()
        self._backends.wait()
        self._backend: Backend[T] = self._backends.all[0]
        if self._backend.state == "failed":
            raise ModelUnavailable(f"{self._backend.error}")
        FIRST_ANSWERS[self.kind](self.model)
        self._metrics = ModelMetrics(self._backends)

    @property
    def model(self) -> T:
        return self._backend.get()

    async def describe(self) -> Description:
        return Description(device=self._backends.device(), reports=tuple(self._backend.reports), facts=self.facts())

    def facts(self) -> dict[str, Any]:
        """The model's properties that the ingress needs."""
        return {name: getattr(self.model, name) for name in self.described}

    def check_health(self) -> None:
        """Ray calls it every few seconds, and replaces a replica that fails several times.

        Raises:
            ModelUnavailable: the model has stopped, and was started again too often.
        """
        if self._backend.has_died and self._backend.restarts < MOST_DEATHS:
            self._backend.restart()
        self._backend.get()

    def record_routing_stats(self) -> dict[str, Any]:
        """Ray calls it every few seconds, and tells the routers of all callers."""
        return {"figures": self.figures(), "activity": self.activity(), "samples": self._samples()}

    def figures(self) -> dict[str, int]:
        """The model's counts, which the ingress adds up."""
        return {}

    def activity(self) -> dict[str, Any]:
        """What it does now, as plain data; empty where nothing shows it."""
        return {}

    def _samples(self) -> list[dict[str, Any]]:
        """The metrics of this process. Plain data, because Ray's own processes unpack it."""
        return [
            {
                "metric": metric.name,
                "help": metric.documentation,
                "type": metric.type,
                "labels": dict(sample.labels),
                "value": sample.value,
            }
            for metric in self._metrics.collect()
            for sample in metric.samples
        ]

    def __del__(self) -> None:
        if hasattr(self, "_backends"):
            self._backends.stop()


@dataclass(frozen=True, kw_only=True)
class WireReply:
    """A reply on its way to the ingress.

    Attributes:
        reply: as the model gave it.
        texts: of the tokens in its log-probabilities, by id, which the ingress can't decode.
    """

    reply: Reply
    texts: Mapping[int, str]


class ChatReplica(Replica[ChatModel]):
    """Answers with a chat model. `ChatModel` says what the methods take; what they raise is returned as a Refusal."""

    kind = "chat"
    described = ("recommended", "notices", "picture_sizes", "thinks", "context")

    async def reply(self, request: ChatRequest) -> AsyncGenerator[WireReply | Refusal, None]:
        """Closed when the ingress cancels the call, which frees the slot."""
        try:
            with closing(await self.model.answers(request)) as answers:
                async with aclosing(answers.replies[0]) as replies:
                    async for reply in replies:
                        yield WireReply(reply=reply, texts=self._texts(reply))
        except Exception as error:
            yield Refusal.of(error)

    def _texts(self, reply: Reply) -> dict[int, str]:
        logprobs = (*reply.prompt_logprobs, *reply.new_logprobs)
        if not logprobs:
            return {}
        likeliest = (token for each in logprobs for token, _ in each.top)
        return {token: self.model.detokenize([token]) for token in {*reply.prompt, *reply.new_tokens, *likeliest}}

    @in_thread
    def answer_once(self) -> None:
        self.model.answer_once()

    @in_thread
    def count(self, request: ChatRequest) -> list[int]:
        return self.model.count(request)

    @in_thread
    def tokenize(self, text: str) -> list[int]:
        return self.model.tokenize(text)

    @in_thread
    def detokenize(self, tokens: Sequence[int]) -> str:
        return self.model.detokenize(tokens)

    @in_thread
    def label_scores(self, text: str, labels: list[str]) -> dict[str, float]:
        if self.model.zero_shot is None:
            raise ModelUnavailable("this chat model can't score labels")
        return self.model.zero_shot.classify(text, labels)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"scores_labels": self.model.zero_shot is not None}

    def figures(self) -> dict[str, int]:
        return asdict(self.model.stats())

    def activity(self) -> dict[str, Any]:
        return asdict(self.model.activity())


@dataclass(frozen=True)
class Previews:
    """The previews of a step that has left its process."""

    pictures: tuple[Image.Image, ...]

    def __call__(self) -> Sequence[Image.Image]:
        return self.pictures


@dataclass(frozen=True)
class Finished:
    """The previews of a last step: its pictures, which it has already."""

    pictures: tuple[Picture, ...]

    def __call__(self) -> Sequence[Image.Image]:
        return [picture.image for picture in self.pictures if picture.image is not None]


class ImageReplica(Replica[ImageModel]):
    """Draws with an image model. `ImageModel` says what the methods take; what they raise is returned as a Refusal."""

    kind = "images"
    described = ("facts", "offered_sizes")

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._threads = ThreadPoolExecutor(IMAGES_AT_ONCE, "images")

    async def generate(
        self, request: ImageRequest, previews: bool, client: str
    ) -> AsyncGenerator[ImageStep | Waiting | Refusal, None]:
        """Closed when the ingress cancels the call, which ends the work after the present step."""
        try:
            steps = self._portable(self.model.generate(request, previews=previews, client=client), previews)
            async with aclosing(iterate_in_thread(steps, self._threads)) as running:
                async for step in running:
                    yield step
        except Exception as error:
            yield Refusal.of(error)

    @in_thread
    def length(self, prompt: str) -> PromptLength:
        return self.model.length(prompt)

    @staticmethod
    def _portable(
        steps: Generator[ImageStep | Waiting, None, None], previews: bool
    ) -> Generator[ImageStep | Waiting, None, None]:
        """The steps without what can't leave this process: previews are made now, and latents stay here."""
        with closing(steps):
            for step in steps:
                if not isinstance(step, ImageStep):
                    yield step
                    continue
                pictures = tuple(replace(picture, latents=None) for picture in step.pictures)
                show = Finished(pictures) if step.is_last else Previews(tuple(step.previews) if previews else ())
                yield replace(step, pictures=pictures, show=show)

    def figures(self) -> dict[str, int]:
        return {"steps": self.model.steps}


class SentimentReplica(Replica[SentimentModel]):
    """Classifies. `SentimentModel` says what the methods take; what they raise is returned as a Refusal."""

    kind = "sentiment"
    described = ("labels", "token_limit")

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self._explainers = ThreadPoolExecutor(EXPLAINED_AT_ONCE, "why")

    async def predict_one(self, text: str) -> Prediction | Refusal:
        """Texts that come within a few milliseconds share a device call."""
        try:
            return await asyncio.wrap_future(self.model.submit(text))
        except Exception as error:
            return Refusal.of(error)

    @in_thread
    def predict(self, texts: list[str], urgent: bool) -> list[Prediction | Refusal]:
        found = self.model.predict(texts, urgent=urgent)
        return [Refusal.of(each) if isinstance(each, Exception) else each for each in found]

    @in_thread
    def classify(self, texts: list[str]) -> list[dict[str, float]]:
        return self.model.classify(texts)

    async def explain(self, text: str, label: str | None, urgent: bool) -> Explanation | Refusal:
        explain = partial(self.model.explain, text, label, urgent=urgent)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._explainers if urgent else None, explain)
        except Exception as error:
            return Refusal.of(error)

    @in_thread
    def label_scores(self, text: str, labels: list[str]) -> dict[str, float]:
        if self.model.zero_shot is None:
            raise ModelUnavailable("this sentiment model can't score labels")
        return self.model.zero_shot.classify(text, labels)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"scores_labels": self.model.zero_shot is not None}

    def figures(self) -> dict[str, int]:
        return {"texts": self.model.texts}
