"""When grants end: the leader's side, by a clock that never falls or jumps.

An entry holds a deadline as a stamp, for every replica to see. But a stamp is hybrid time: a wall
clock set back by an hour would hold a dead consumer's messages for an hour, one set forward would
end every lease at once. So a leader times its leases by its monotonic clock, and those it inherits
by what was left of them at the end of its log. That is safe whoever is right: a grant ends by the
entry of the next one, never by a clock.
"""

from __future__ import annotations

import heapq

from weir.broker.clusters import ClusterState, Grant
from weir.model.limits import GRANT_MS_MAX
from weir.model.stamp import milliseconds_of

#: Grants that were acked before their lease ended stay in the heap; beyond twice those that were
#: live when it was last rebuilt, and so many, it is rebuilt.
_SLACK = 256


class Leases:
    """Which grants have ended, cluster by cluster, without looking at those that have not."""

    __slots__ = ("_clusters", "_due", "_ended", "_most")

    def __init__(self, clusters: dict[str, ClusterState], last_stamp: int, now_ms: int) -> None:
        """Take over the grants of earlier leaders at monotonic time `now_ms`."""
        self._clusters = clusters
        self._due: list[tuple[int, str, int]] = []
        self._most = _SLACK
        self._ended: dict[str, dict[int, None]] = {}
        for name, cluster in clusters.items():
            for fence, grant in cluster.grants.items():
                left = milliseconds_of(grant.deadline) - milliseconds_of(last_stamp)
                self.begin(name, fence, now_ms + min(max(left, 0), GRANT_MS_MAX))

    def begin(self, name: str, fence: int, due_ms: int) -> None:
        """Let a grant end at monotonic time `due_ms`."""
        if len(self._due) >= self._most:
            self._due = [due for due in self._due if self._is_held(due[1], due[2])]
            heapq.heapify(self._due)
            self._most = 2 * len(self._due) + _SLACK
        heapq.heappush(self._due, (due_ms, name, fence))

    def _is_held(self, name: str, fence: int) -> bool:
        cluster = self._clusters.get(name)
        return cluster is not None and fence in cluster.grants

    def end(self, name: str, consumer: int) -> None:
        """End the grants of a consumer that is gone at once."""
        for fence in self._clusters[name].held.get(consumer, ()):
            self._ended.setdefault(name, {})[fence] = None

    def ended(self, name: str, cluster: ClusterState, now_ms: int) -> list[Grant]:
        """Return a cluster's grants that have ended and still hold messages, oldest first."""
        while self._due and self._due[0][0] <= now_ms:
            _, due_name, fence = heapq.heappop(self._due)
            self._ended.setdefault(due_name, {})[fence] = None
        ended = self._ended.get(name)
        if not ended:
            return []
        for fence in [fence for fence in ended if fence not in cluster.grants]:
            del ended[fence]
        return [cluster.grants[fence] for fence in ended]
