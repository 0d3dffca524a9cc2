"""The application of Ray Serve: one deployment for each model, and the ingress.

A deployment's name is `ingress`, its kind of model (`chat`), or for further models of a kind that and their number
(`chat-2`): by it a Serve config file can change its options.
"""

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from hfjax_app.backends.backend import KINDS
from hfjax_app.limits import (
    CHAT_QUEUE,
    IMAGES_AT_ONCE,
    IMAGES_SERVED_TOGETHER,
    LISTS_AT_ONCE,
    REPLICA_DRAIN_S,
    REPLICA_REQUESTS_BESIDES,
    REPLICA_STARTS,
    SENTIMENT_AT_ONCE,
    SENTIMENT_QUEUE,
    SERVING_AT_ONCE,
)
from hfjax_app.serving.ingress import Ingress
from hfjax_app.serving.replica import ChatReplica, ImageReplica, SentimentReplica
from hfjax_app.settings import Settings

# Of several ingresses (docs/ray.md): Ray's own, because Ray's proxies use it, which may not have this app.
_SESSIONS = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
_ROUTER = "hfjax_app.serving.replica_router.ReplicaRouter"
_TEXTS_AT_ONCE = SENTIMENT_AT_ONCE + LISTS_AT_ONCE
_CPUS = 0.5  # that Ray counts for a replica, for placement; it limits nothing
_ONE_MORE = 1  # per cent of replicas, rounded up to one
_TOLD_S = 2.0  # between two of a replica's reports to the routers


def build_app(settings: Settings) -> Application:
    """The application; `serve run hfjax_app.serving:build_app slots=8` gives settings on the command line.

    Args:
        settings: HFJAX_* variables are their defaults. `host` and `port` are not read: they are Serve's `http_options`.
            Models are loaded by a new configuration, so there is no operator's key.
    """
    # nothing here may rely on an address that only this machine reaches
    own = settings.model_copy(update={"host": "0.0.0.0", "operator_key": "", "operator_folders": ""})
    kinds = {
        "chat": (ChatReplica, settings.chat_models, settings.slots, CHAT_QUEUE),
        "sentiment": (SentimentReplica, [settings.sentiment_model], _TEXTS_AT_ONCE, SENTIMENT_QUEUE),
        "images": (ImageReplica, settings.image_models, IMAGES_SERVED_TOGETHER, IMAGES_AT_ONCE),
    }
    handles = {
        kind: {
            model: serve.deployment(
                replica, name=kind if not number else f"{kind}-{number + 1}", **_options(places, queue)
            ).bind(_of_one_model(own, kind, model))
            for number, model in enumerate(models)
        }
        for kind, (replica, models, places, queue) in kinds.items()
    }
    ingress = serve.deployment(
        Ingress,
        name="ingress",
        num_replicas=1,
        max_ongoing_requests=SERVING_AT_ONCE,
        graceful_shutdown_timeout_s=settings.grace,
        max_surge_percent=_ONE_MORE,
        request_router_config=RequestRouterConfig(request_router_class=_SESSIONS),
        max_constructor_retry_count=REPLICA_STARTS,
        ray_actor_options={"num_cpus": 0},
    )
    application: Application = ingress.bind(own, handles)
    return application


def _of_one_model(settings: Settings, kind: str, model: str) -> Settings:
    """The settings of a replica: its model is the only one of its kind, and it knows no keys."""
    changed = {f"{KINDS[kind]}_model": model, "api_keys": "", "auth": ""}
    if kind == "images" and model != settings.image_models[0]:
        changed["image_lora"] = ""  # it is the first model's
    return settings.model_copy(update=changed)


def _options(places: int, queue: int) -> dict[str, Any]:
    """The deployment options of one kind of model; Serve's config file changes them by the deployment's name.

    Args:
        places: requests that a replica serves at the same time.
        queue: requests that wait in the ingress for a replica; later ones are refused.

    Returns:
        All but the name.
    """
    return {
        "num_replicas": 1,
        "ray_actor_options": {"num_cpus": _CPUS},
        # as many wait in the replica as it serves, so that a free place is taken at once and clients take turns
        "max_ongoing_requests": 2 * places + REPLICA_REQUESTS_BESIDES,
        "max_queued_requests": queue,
        "graceful_shutdown_timeout_s": REPLICA_DRAIN_S,
        "max_surge_percent": _ONE_MORE,  # a replica of a new version starts before an old one ends
        "max_constructor_retry_count": REPLICA_STARTS,
        "request_router_config": RequestRouterConfig(
            request_router_class=_ROUTER,
            request_router_kwargs={"places": places},
            request_routing_stats_period_s=_TOLD_S,
        ),
    }
