"""A replica: a process with one model. Ray counts it in when its programs are warm and it has given an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from hfjax_app.backends import Backend, Backends
from hfjax_app.backends.first_answer import FIRST_ANSWERS
from hfjax_app.backends.watch import MOST_DEATHS
from hfjax_app.errors import ModelUnavailable
from hfjax_app.runtime.program_report import ProgramReport
from hfjax_app.server.metrics import ModelMetrics
from hfjax_app.server.request_log import set_up_log
from hfjax_app.settings import Settings

T = TypeVar("T")


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
