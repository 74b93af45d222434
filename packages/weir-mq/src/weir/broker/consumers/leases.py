"""When grants end: the leader's side, by a clock that never falls or jumps.

An entry holds a deadline as a stamp, for every replica to see. But a stamp is hybrid time: a wall
clock set back by an hour would hold a dead consumer's messages for an hour, one set forward would
end every lease at once. So a leader times its leases by its monotonic clock, and those it inherits
by what was left of them at the end of its log. Where stamps are ahead of the time, by what was
promised or what a client has seen, it trusts its wall clock, by `MAX_AHEAD_MS` at most. All that is
safe whoever is right: a grant ends by the entry of the next one, never by a clock.

What is held back is with nobody: there a new leader trusts its own clock too, for the log may have
stood still since, and the delay may be a day.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection

from weir.broker.state.clusters import AT_ONCE, NOBODY, ClusterState, Grant
from weir.model.limits import DELAY_MS_MAX, GRANT_MS_MAX, MAX_AHEAD_MS
from weir.model.stamp import milliseconds_of
from weir.order.clock import Time

#: Grants that were acked before their lease ended stay in the heap; beyond twice those that were
#: live when it was last rebuilt, and so many, it is rebuilt.
_SLACK = 256


def left_of(deadline: int, consumer: int, last_stamp: int, time: Time) -> int:
    """Return until which monotonic time, in ms, a lease of an earlier leader lasts, or what it held
    back is held back: `deadline` is a stamp, and the log ends at `last_stamp`.
    """
    last, wall = milliseconds_of(last_stamp), time.wall_ms()
    since, most = max(min(last, wall), last - MAX_AHEAD_MS), GRANT_MS_MAX
    if consumer == NOBODY:
        since, most = max(since, wall), DELAY_MS_MAX
    return time.monotonic_ms() + min(max(milliseconds_of(deadline) - since, 0), most)


class Leases:
    """Which grants have ended, cluster by cluster, without looking at those that have not."""

    __slots__ = ("_clusters", "_due", "_ended", "_kept", "_most", "_until")

    def __init__(self, clusters: dict[str, ClusterState], last_stamp: int, time: Time) -> None:
        """Take over the grants of earlier leaders, and what they held back."""
        self._clusters = clusters
        self._due: list[tuple[int, str, int]] = []
        #: When each grant ends; earlier times in the heap do not count any more.
        self._until: dict[tuple[str, int], int] = {}
        self._most = _SLACK
        #: And when their time was up; 0 if their consumer was gone before that.
        self._ended: dict[str, dict[int, int]] = {}
        #: Grants of which something is being given back, and how often: they do not end meanwhile,
        #: for what is granted again by then would be taken from whom it is held back for.
        self._kept: Counter[tuple[str, int]] = Counter()
        for name, cluster in clusters.items():
            for fence, grant in cluster.grants.items():
                due_ms = left_of(grant.deadline, grant.consumer, last_stamp, time)
                self.begin(name, fence, due_ms)

    def begin(self, name: str, fence: int, due_ms: int) -> None:
        """Let a grant end at monotonic time `due_ms`."""
        if len(self._due) >= self._most:
            self._until = {of: due for of, due in self._until.items() if self._is_held(*of)}
            self._due = [(due, *of) for of, due in self._until.items()]
            heapq.heapify(self._due)
            self._most = 2 * len(self._due) + _SLACK
        self._until[name, fence] = due_ms
        heapq.heappush(self._due, (due_ms, name, fence))

    def extend(self, name: str, fence: int, due_ms: int) -> None:
        """Let a grant end no sooner than at monotonic time `due_ms`; not even if it had ended, for
        it has not gone to anybody else. One whose consumer is gone stays over.
        """
        grant = self._clusters[name].grants.get(fence)
        if grant is None or grant.consumer == NOBODY or grant.deadline == AT_ONCE:
            return
        if self._until.get((name, fence), 0) < due_ms:
            self._ended.get(name, {}).pop(fence, None)
            self.begin(name, fence, due_ms)

    def keep(self, name: str, fence: int) -> None:
        """Let a grant not end before `let_go`."""
        self._kept[name, fence] += 1

    def is_kept(self, name: str, fence: int) -> bool:
        """Whether something of a grant is being given back."""
        return (name, fence) in self._kept

    def let_go(self, name: str, fence: int) -> None:
        """Let a grant end when its time is up, if it is not kept by others."""
        self._kept[name, fence] -= 1
        if self._kept[name, fence] <= 0:
            del self._kept[name, fence]

    def _is_held(self, name: str, fence: int) -> bool:
        cluster = self._clusters.get(name)
        return cluster is not None and fence in cluster.grants

    def end(self, name: str, consumer: int) -> None:
        """End the grants of a consumer that is gone at once."""
        for fence in self._clusters[name].held.get(consumer, ()):
            self._ended.setdefault(name, {})[fence] = 0

    def has_ended_since(self, name: str, cluster: ClusterState, consumer: int, ms: int) -> bool:
        """Whether a lease of a consumer that still holds messages has ended after `ms`."""
        ended = self._ended.get(name)
        if not ended:
            return False
        return any(ended.get(fence, 0) > ms for fence in cluster.held.get(consumer, ()))

    def ended(self, name: str, cluster: ClusterState, now_ms: int) -> list[Grant]:
        """Return a cluster's grants that have ended and still hold messages, oldest first."""
        return [cluster.grants[fence] for fence in self.over(name, cluster, now_ms)]

    def over(self, name: str, cluster: ClusterState, now_ms: int) -> Collection[int]:
        """Return the fences of a cluster's grants that have ended and still hold messages."""
        while self._due and self._due[0][0] <= now_ms:
            due_ms, due_name, fence = heapq.heappop(self._due)
            if self._until.get((due_name, fence)) == due_ms:
                del self._until[due_name, fence]
                self._ended.setdefault(due_name, {})[fence] = due_ms
        ended = self._ended.get(name)
        if not ended:
            return ()
        for fence in [fence for fence in ended if fence not in cluster.grants]:
            del ended[fence]
        if not self._kept:
            return ended.keys()
        return [fence for fence in ended if (name, fence) not in self._kept]
