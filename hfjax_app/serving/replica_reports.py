"""What the running replicas reported last, as far as this process knows: the way from Ray's routers to the app."""

from collections.abc import Mapping
from typing import Any

Reports = Mapping[str, Mapping[str, Any]]  # by replica: what its `record_routing_stats` gave

_reports: dict[str, Reports] = {}  # by deployment; each is replaced as a whole, so that readers need no lock


def keep(deployment: str, reports: Reports) -> None:
    """Called by the deployment's router whenever a replica comes, goes or reports."""
    _reports[deployment] = reports


def replicas_of(deployment: str) -> Reports:
    """The running replicas of a deployment that this process has called."""
    return _reports.get(deployment, {})
