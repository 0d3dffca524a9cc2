"""The ingress: the web app of `server/app.py` in a replica of Ray Serve, with models that ask the other replicas.

One process has all keys, limits and lines. There is one replica of it: a page of the studio asks in one request and
reads the answer in another, and both must reach the process that has the page's session.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping

from fastapi import FastAPI
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from ray import serve
from ray.serve.handle import DeploymentHandle

from hfjax_app.server.request_log import set_up_log
from hfjax_app.serving.replica_calls import ReplicaCalls
from hfjax_app.serving.replica_reports import replicas_of
from hfjax_app.settings import Settings

_FAMILIES: Mapping[str, type[CounterMetricFamily] | type[GaugeMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


@serve.ingress()
class Ingress:
    """Serves the studio and the API.

    Args:
        settings: of one machine.
        handles: of the deployments, by kind of model and by model.
    """

    def __init__(self, settings: Settings, handles: Mapping[str, Mapping[str, DeploymentHandle]]):
        self._settings, self._handles = settings, handles

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Ray calls it on the event loop that serves."""
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        from hfjax_app.server.app import build_app
        from hfjax_app.serving.remote_models import RemoteBackends
        from hfjax_app.serving.replica import leave_chips

        set_up_log(self._settings.log)
        leave_chips()
        loop = asyncio.get_running_loop()
        calls = {
            kind: {model: ReplicaCalls(handle, loop) for model, handle in handles.items()}
            for kind, handles in self._handles.items()
        }
        backends = RemoteBackends(self._settings, calls).start()
        deployments = [each.deployment for models in calls.values() for each in models.values()]
        self._studio = build_app(backends, model_metrics=ReplicaMetrics(deployments))
        return self._studio.app


class ReplicaMetrics(Collector):
    """What the replicas measured, a few seconds old, with their names.

    Args:
        deployments: theirs.
    """

    def __init__(self, deployments: Iterable[str]):
        self._deployments = tuple(deployments)

    def describe(self) -> Iterable[Metric]:
        """Nothing, as `ModelMetrics`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("hfjax_replicas", "Replicas that answer", labels=["deployment"])
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for deployment in self._deployments:
            replicas = replicas_of(deployment)
            running.add_metric([deployment], len(replicas))
            for replica, told in replicas.items():
                for sample in told.get("samples", ()):
                    labels = {**sample["labels"], "deployment": deployment, "replica": replica}
                    if sample["metric"] not in families:
                        family = _FAMILIES[sample["type"]]
                        families[sample["metric"]] = family(sample["metric"], sample["help"], labels=[*labels])
                    families[sample["metric"]].add_metric([*labels.values()], sample["value"])
        yield from (running, *families.values())
