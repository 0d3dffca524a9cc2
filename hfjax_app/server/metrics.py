"""/metrics for Prometheus: what the models, the lines and the device do, read when it is asked for.

Times and tokens of requests are counted in `hfjax_app/service/usage.py`, HTTP requests in `request_log.py`.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import prometheus_client as prometheus
from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hfjax_app.backends import Backend, Backends
from hfjax_app.service.admission import LINES, Admission

if TYPE_CHECKING:  # it imports Gradio, and replicas on Ray have no page
    from hfjax_app.studio.event_queue import FairQueue


class LineMetrics(Collector):
    """The lines at one moment.

    Args:
        queue: of Gradio's events.
        admission: of all requests.
    """

    def __init__(self, queue: "FairQueue", admission: Admission):
        self._queue, self._admission = queue, admission

    def collect(self) -> Iterator[Metric]:
        inside = GaugeMetricFamily("hfjax_requests", "Requests that run or wait, by line", labels=["line"])
        waiting = GaugeMetricFamily("hfjax_requests_waiting", "Of these, waiting to start", labels=["line"])
        for line in LINES:
            inside.add_metric([line], self._admission.of_line(line))
            waiting.add_metric([line], self._queue.waiting_in(line))
        yield from (inside, waiting)


class ModelMetrics(Collector):
    """The models and the devices of this process at one moment.

    Args:
        backends: the models.
    """

    def __init__(self, backends: Backends):
        self._backends = backends

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry would otherwise collect once at its set-up, before the models are there."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._models()
        yield from self._chat()
        texts = CounterMetricFamily("hfjax_texts", "Texts that were classified", labels=["model"])
        steps = CounterMetricFamily("hfjax_image_steps", "Denoising steps of all pictures", labels=["model"])
        for family, models, attribute in (
            (texts, self._backends.sentiment_models, "texts"),
            (steps, self._backends.image_models, "steps"),
        ):
            for model, served in _ready(models):
                family.add_metric([model], getattr(served, attribute))
        yield from (texts, steps)
        backends = self._backends
        since = 0
        if backends.compiled_for_warm_up is not None:
            since = backends.compiler.compilations - backends.compiled_for_warm_up
            yield from _device_memory()
        yield CounterMetricFamily("hfjax_compilations_since_warm_up", "Programs compiled while serving", value=since)

    def _models(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily("hfjax_model_ready", "1: it serves", labels=["kind", "model"])
        programs = GaugeMetricFamily("hfjax_programs", "Programs of a model", labels=["kind", "model", "source"])
        restarts = CounterMetricFamily(
            "hfjax_restarts", "Times that a model was started again", labels=["kind", "model"]
        )
        for backend in self._backends.all:
            labels = [backend.kind, backend.name]
            ready.add_metric(labels, backend.state == "ready")
            restarts.add_metric(labels, backend.restarts)
            hits = sum(report.cached for report in backend.reports)
            programs.add_metric([*labels, "bundle"], hits)
            programs.add_metric([*labels, "compiled"], len(backend.reports) - hits)
        yield from (ready, programs, restarts)

    def _chat(self) -> Iterator[Metric]:
        slots = GaugeMetricFamily("hfjax_chat_slots", "Slots of the engine", labels=["model", "state"])
        waiting = GaugeMetricFamily("hfjax_chat_waiting", "Requests that wait for a slot", labels=["model"])
        tokens = CounterMetricFamily("hfjax_tokens", "Tokens by kind", labels=["model", "kind"])
        for model, assistant in _ready(self._backends.chat_models):
            stats = assistant.stats()
            slots.add_metric([model, "busy"], stats.busy)
            slots.add_metric([model, "free"], stats.slots - stats.busy)
            waiting.add_metric([model], stats.waiting)
            for kind, count in (
                ("cached", stats.reused_tokens),
                ("made", stats.tokens),
                ("drafted", stats.drafted_tokens),
                ("accepted", stats.accepted_tokens),
                ("wasted", stats.wasted_tokens),
            ):
                tokens.add_metric([model, kind], count)
        yield from (slots, waiting, tokens)


def _ready(models: Iterable[Backend[Any]]) -> Iterator[tuple[str, Any]]:
    return ((backend.name, backend.get()) for backend in models if backend.state == "ready")


def _device_memory() -> Iterator[Metric]:
    family = GaugeMetricFamily("hfjax_device_memory_bytes", "Memory of a device", labels=["device", "kind"])
    for device in jax.local_devices():
        found = device.memory_stats() or {}  # a CPU has none: see process_resident_memory_bytes
        for kind in ("bytes_in_use", "peak_bytes_in_use", "bytes_limit"):
            if kind in found:
                family.add_metric([str(device.id), kind.removeprefix("bytes_")], found[kind])
    yield family


def metrics_router(registry: prometheus.CollectorRegistry) -> APIRouter:
    router = APIRouter()
    prometheus.ProcessCollector(registry=registry)

    @router.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        """Not a coroutine: it takes milliseconds, in a thread."""
        return Response(prometheus.generate_latest(registry), media_type=prometheus.CONTENT_TYPE_LATEST)

    return router
