"""Which replica a request goes to: a conversation to the one that holds it, anything else to the least busy one.

Ray makes a router for each deployment in each process that has a handle to it, and copies this module's code there:
state that others read can't be here.
"""

import random
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from hfjax_app.runtime.seams.ray import deployment_of, queue_length
from hfjax_app.serving.rendezvous import weight
from hfjax_app.serving.replica_reports import keep


class ReplicaRouter(RequestRouter):
    """Sends requests of a session to the same replica, as long as that has a free place.

    A session's replica is the first by rendezvous hashing. If it is busy the request goes to the least busy one, as
    requests without a session do: to compute a conversation's beginning again takes less time than to wait for an
    answer's end.
    """

    def initialize_state(self, *, places: int, by_session: bool = True) -> None:
        """Ray calls it with the deployment's `request_router_kwargs`.

        Args:
            places: requests that a replica serves at the same time; others wait there.
            by_session: False: sessions are ignored, for comparison.
        """
        self._places, self._by_session = places, by_session

    def update_replicas(self, replicas: Sequence[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._tell()

    def on_replica_actor_died(self, replica_id: Any) -> None:
        super().on_replica_actor_died(replica_id)
        self._tell()

    def _tell(self) -> None:
        replicas = self.curr_replicas.values()
        if (deployment := deployment_of(self)) is not None:
            keep(deployment, {replica.replica_id.unique_id: replica.routing_stats for replica in replicas})

    async def choose_replicas(
        self, candidate_replicas: Sequence[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if not candidate_replicas:
            return []
        anyone = random.sample(candidate_replicas, len(candidate_replicas))  # of equally busy ones the first is taken
        if pending_request is None:
            return [anyone]
        pending_request.routing_context.should_backoff = True  # when all are busy
        session = pending_request.metadata.session_id if self._by_session else ""
        own = max(candidate_replicas, key=lambda replica: weight(session, replica.replica_id.unique_id))
        busy = queue_length(self, own)
        if not session or (busy is not None and busy >= self._places):
            return [anyone]
        return [[own], [replica for replica in anyone if replica is not own]]
