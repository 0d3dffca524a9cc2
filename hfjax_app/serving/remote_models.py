"""Models whose replicas are other processes, as the service sees them; each is ready while replicas of it run."""

import hashlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, closing
from dataclasses import fields, replace
from typing import Any, Protocol, cast

from hfjax_app.backends import Backend, Backends
from hfjax_app.backends.backend import Watcher
from hfjax_app.chat.assistant import HEARTBEAT_S
from hfjax_app.chat.engine.stats import EngineActivity, EngineStats, SlotState
from hfjax_app.chat.interface import Answers, LabelScorer
from hfjax_app.chat.reply import Reply
from hfjax_app.chat.request import ChatRequest
from hfjax_app.chat.sampling.params import SamplingParams
from hfjax_app.errors import ModelUnavailable, RequestRejected
from hfjax_app.images.interface import ImageFacts, PromptLength
from hfjax_app.images.request import CompletedRequest, ImageRequest
from hfjax_app.images.steps import ImageStep, Waiting
from hfjax_app.limits import SENTIMENT_MAX_CHARACTERS, ZERO_SHOT_MAX_CHARACTERS
from hfjax_app.sentiment.interface import Explanation, Prediction
from hfjax_app.serving.replica import Description
from hfjax_app.serving.replica_calls import Refusal, ReplicaCalls, with_heartbeats
from hfjax_app.settings import Settings
from hfjax_app.validation import checked_text, quoted


class RemoteLabels:
    """A `LabelScorer` that asks replicas.

    Args:
        calls: of the model that judges.
    """

    def __init__(self, calls: ReplicaCalls):
        self._calls = calls

    def check(self, text: object, labels: object) -> None:
        """Raise RequestRejected for a text that no model takes; the replica checks the labels."""
        checked_text(text, "text", ZERO_SHOT_MAX_CHARACTERS)

    def classify(self, text: str, labels: list[str]) -> dict[str, float]:
        self.check(text, labels)
        scores: dict[str, float] = self._calls.ask_from_thread("label_scores", text, labels)
        return scores


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
        self.thinks: bool | None = facts["thinks"]
        self.picture_sizes: list[list[tuple[int, int, int]]] = facts["picture_sizes"]
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

    def count(self, request: ChatRequest) -> list[int]:
        tokens: list[int] = self.calls.ask_from_thread("count", request)
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

    async def answers(self, request: ChatRequest) -> Answers:
        """As `ChatAssistant.answers`; each answer is asked of a replica, which refuses it at the first reply."""
        return Answers(replies=[self._reply(each) for each in request.answers()])

    async def _reply(self, request: ChatRequest) -> Replies:
        """One answer. A request that all replicas let wait is answered by Replies with a place."""
        last, waiting = _NO_REPLY, object()
        self._waiting.append(waiting)
        pieces = with_heartbeats(self.calls.stream("reply", request, session=_key(request)), HEARTBEAT_S)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if piece is None:
                        place = self._waiting.index(waiting) + 1 if last is _NO_REPLY else last.place
                        yield replace(last, place=place, new_tokens=(), new_logprobs=(), prompt=(), prompt_logprobs=())
                        continue
                    if last is _NO_REPLY:
                        self._waiting.remove(waiting)
                    self._texts.update(piece.texts)
                    last = piece.reply
                    yield last
        finally:
            if last is _NO_REPLY:
                self._waiting.remove(waiting)


def _key(request: ChatRequest) -> str:
    """A name of a conversation by its beginning, that tells nothing about it."""
    if request.text is None:
        parts = [request.client, request.system_prompt, request.messages[0]["content"]]
    else:
        parts = [request.client, str(request.text[:_BEGINNING])]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)} {part}".encode(errors="surrogatepass"))
    return digest.hexdigest()


_HEARTBEAT_S = 0.5


class RemoteImages:
    """An `ImageModel` that asks replicas.

    Args:
        calls: of its replicas.
        facts: from one of them. A size that a replica compiles for a request is not offered: the others don't have it.
    """

    def __init__(self, calls: ReplicaCalls, facts: Mapping[str, Any]):
        self.calls = calls
        self.steps_per_s: float | None = None  # known to the replicas
        self.facts: ImageFacts = facts["facts"]
        self.offered_sizes: tuple[tuple[int, int], ...] = facts["offered_sizes"]

    @property
    def steps(self) -> int:
        return self.calls.figure("steps")

    def length(self, prompt: str) -> PromptLength:
        found: PromptLength = self.calls.ask_from_thread("length", prompt)
        return found

    def generate(
        self, request: ImageRequest, *, previews: bool = True, client: str = ""
    ) -> Generator[ImageStep | Waiting, None, None]:
        """As `ImageGenerator.generate`. A scheduler or mask that the model refuses is refused at the first step."""
        return self._steps(self.facts.completed(request), previews, client)

    def _steps(
        self, request: CompletedRequest, previews: bool, client: str
    ) -> Generator[ImageStep | Waiting, None, None]:
        is_taken = False
        found = self.calls.stream_from_thread("generate", request, previews, client, every_s=_HEARTBEAT_S)
        with closing(cast("Generator[Any, None, None]", found)) as steps:
            for step in steps:
                if step is not None:
                    is_taken = True
                    yield step
                elif not is_taken:
                    yield Waiting(reason="every replica is busy")


class RemoteSentiment:
    """A `SentimentModel` that asks replicas.

    Args:
        calls: of its replicas.
        facts: from one of them.
    """

    def __init__(self, calls: ReplicaCalls, facts: Mapping[str, Any]):
        self.calls = calls
        self.labels: list[str] = facts["labels"]
        self.token_limit: int = facts["token_limit"]
        self.zero_shot: LabelScorer | None = RemoteLabels(calls) if facts["scores_labels"] else None

    @property
    def texts(self) -> int:
        return self.calls.figure("texts")

    def check(self, text: object, label: object = None) -> None:
        checked_text(text, "text", SENTIMENT_MAX_CHARACTERS)
        if label is not None and label not in self.labels:
            raise RequestRejected(f"label {quoted(label)}: must be one of {', '.join(self.labels)}")

    def submit(self, text: str) -> "Future[Prediction]":
        return self.calls.begin("predict_one", checked_text(text, "text", SENTIMENT_MAX_CHARACTERS))

    def classify(self, texts: list[str]) -> list[dict[str, float]]:
        scores: list[dict[str, float]] = self.calls.ask_from_thread("classify", texts)
        return scores

    def predict(self, texts: list[str], *, urgent: bool = False) -> list[Prediction | Exception]:
        found = self.calls.ask_from_thread("predict", texts, urgent)
        return [each.error() if isinstance(each, Refusal) else each for each in found]

    def explain(self, text: str, label: str | None = None, *, urgent: bool = True) -> Explanation:
        self.check(text, label)
        explanation: Explanation = self.calls.ask_from_thread("explain", text, label, urgent)
        return explanation


_log = logging.getLogger(__name__)

LOOK_S = 0.5
_MODELS: Mapping[str, Callable[[ReplicaCalls, Mapping[str, Any]], "RemoteModel"]] = {
    "chat": RemoteChat,
    "sentiment": RemoteSentiment,
    "images": RemoteImages,
}


class RemoteModel(Protocol):
    """A model whose replicas are other processes."""

    @property
    def calls(self) -> ReplicaCalls: ...


class RemoteLoader:
    """Waits for the replicas of models of one kind. Ray loads, watches, stops and starts them.

    Args:
        kind: of model.
        calls: of the replicas, by model.

    Attributes:
        devices: that the replicas compute on, by model; of those that had a replica.
    """

    def __init__(self, kind: str, calls: Mapping[str, ReplicaCalls]):
        self._kind, self._calls = kind, calls
        self.devices: dict[str, str] = {}

    def load(self, model: str, watcher: Watcher) -> RemoteModel:
        """Blocks until a replica runs, however long that takes.

        Raises:
            ModelUnavailable: none can be started.
        """
        calls = self._calls[model]
        description: Description = calls.ask_from_thread("describe")
        watcher.expect([report.name for report in description.reports], len(description.reports))
        for report in description.reports:
            watcher.record(report)
        self.devices[model] = description.device
        return _MODELS[self._kind](calls, description.facts)

    def warm_up(self, served: RemoteModel) -> None:
        """Programs are the replicas' own."""

    def held_memory(self, served: RemoteModel) -> None:
        """The replicas' memory is theirs."""

    def failure(self, served: RemoteModel) -> str | None:
        return None if served.calls.running else "no replica of it runs; Ray starts another one"

    def restart(self, served: RemoteModel) -> None:
        if reason := self.failure(served):
            raise ModelUnavailable(reason)

    def stop(self, served: RemoteModel) -> None:
        """Ray stops replicas."""

    def running(self, model: str) -> int:
        """Replicas of a model that answer."""
        return self._calls[model].running


class RemoteBackends(Backends):
    """The same as Backends, without any computation in this process.

    Args:
        settings: of one machine.
        calls: of the replicas, by kind of model and by model.
    """

    takes_models = False

    def __init__(self, settings: Settings, calls: Mapping[str, Mapping[str, ReplicaCalls]]):
        self._loaders = {kind: RemoteLoader(kind, each) for kind, each in calls.items()}
        super().__init__(settings, loader=lambda kind, _: self._loaders[kind])

    def start(self) -> "RemoteBackends":
        for backend in self.all:
            threading.Thread(target=backend.load, name=f"await-{backend.kind}", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        return self

    def hold(self, kind: str, model: str, *, name: str | None = None) -> Backend[Any]:
        """Refuse another model: each has a deployment of its own."""
        raise RequestRejected("models are Ray's deployments here: name them in the settings and deploy again")

    def processes(self, kind: str) -> int:
        """The replicas of all models of this kind that answer."""
        return max(1, sum(self._loaders[kind].running(backend.model) for backend in self.all if backend.kind == kind))

    def device(self) -> str:
        """The devices of all replicas, such as "2 replicas on 4 x TPU v6 lite, 1 replica on CPU"."""
        counts: dict[str, int] = {}
        for loader in self._loaders.values():
            for model, device in loader.devices.items():
                counts[device] = counts.get(device, 0) + loader.running(model)
        shown = [f"{count} replica{'s' * (count != 1)} on {device}" for device, count in counts.items()]
        return ", ".join(shown) or "starting"

    def _watch(self) -> None:
        """A model whose last replica has gone serves again when there is another one."""
        pause = threading.Event()
        while not pause.wait(LOOK_S):
            for backend in self.all:
                if backend.has_died and self._loaders[backend.kind].running(backend.model):
                    backend.restart()
                    _log.warning("%s model %s has a replica again", backend.kind, backend.name)
