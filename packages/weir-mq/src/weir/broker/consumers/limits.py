"""How many clusters read a partition, and how many grants they hold, at most."""

from __future__ import annotations

from collections.abc import Collection

from weir.broker.consumers.leases import Leases
from weir.broker.state.clusters import ClusterState
from weir.errors import Overloaded
from weir.model.limits import (
    CLUSTERS_PER_TOPIC_MAX,
    GRANTS_PER_CLUSTER_MAX,
    GRANTS_PER_CONSUMER_MAX,
    RETRY_AFTER_MS,
)
from weir.order.clock import Time


class Caps:
    """The leader's limits of one partition."""

    __slots__ = ("_clusters", "_crowded_until_ms", "_leases", "_time")

    def __init__(self, clusters: dict[str, ClusterState], leases: Leases, time: Time) -> None:
        """Limit `clusters`, whose grants end as `leases` say."""
        self._time = time
        self._clusters = clusters
        self._leases = leases
        self._crowded_until_ms = 0

    def check_name(self, name: str, waiting: Collection[str]) -> None:
        """Raise `Overloaded` if a cluster is one too many beside those that are `waiting`.

        Names are not counted again before who was refused should ask again.
        """
        if name in self._clusters or name in waiting:
            return
        now_ms = self._time.monotonic_ms()
        if now_ms >= self._crowded_until_ms:
            if len(self._clusters.keys() | waiting) < CLUSTERS_PER_TOPIC_MAX:
                return
            self._crowded_until_ms = now_ms + RETRY_AFTER_MS
        raise Overloaded(f"{CLUSTERS_PER_TOPIC_MAX} clusters read this topic", RETRY_AFTER_MS)

    def check_grant(self, name: str, consumer: int, proposed: int) -> None:
        """Raise `Overloaded` if a consumer may be granted no more, or its whole cluster."""
        cluster = self._clusters.get(name)
        held = 0 if cluster is None else len(cluster.held.get(consumer, ()))
        if held >= GRANTS_PER_CONSUMER_MAX:
            raise Overloaded(f"you hold {held:,} grants: ack some", RETRY_AFTER_MS)
        if self.is_full(name, proposed):
            raise Overloaded(
                f"cluster {name} holds {GRANTS_PER_CLUSTER_MAX:,} grants: ack some", RETRY_AFTER_MS
            )

    def is_full(self, name: str, proposed: int) -> bool:
        """Return whether a cluster with so many grants proposed may be granted nothing now.

        Beyond the limit only what ended is granted again: who held it may be gone, and then nobody
        acks it. That may cut a grant in two, so it has a limit of its own; beyond that, one grant
        at a time, and only where nobody is left who could ack any.
        """
        cluster = self._clusters.get(name)
        grants = proposed + (0 if cluster is None else len(cluster.grants))
        if cluster is None or grants < GRANTS_PER_CLUSTER_MAX:
            return False
        ended = self._leases.ended(name, cluster, self._time.monotonic_ms())
        if grants >= 2 * GRANTS_PER_CLUSTER_MAX:
            return len(ended) < grants
        return not ended
