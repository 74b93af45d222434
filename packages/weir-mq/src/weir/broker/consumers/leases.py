"""What consumers hold of a partition: until when, how much at most, and which attempts count.

An entry holds a deadline as a stamp, for every replica to see. But a stamp is hybrid time: a wall
clock set back by an hour would hold a dead consumer's messages for an hour, one set forward would
end every lease at once. So a leader times its leases by its monotonic clock, and those it inherits
by what was left of them at the end of its log. Where stamps are ahead of the time, by what was
promised or what a client has seen, it trusts its wall clock, by `MAX_AHEAD_MS` at most. All this is
safe whichever clock is right: a grant ends by the entry of the next one, never by a clock.

What is held back is with nobody: there a new leader trusts its own clock too, for the log may have
stood still since, and the delay may be a day.

Which messages a consumer works on comes with what it asks for anyhow (`Pull`, `Extend`, `Ping`): of
what it loses, those had an attempt. That is a leader's memory; what it means is written into the
entries by which consumers lose messages, for every replica to see.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from weir.broker.state.clusters import AT_ONCE, NOBODY, ClusterState, Grant
from weir.broker.state.ranges import Ranges
from weir.errors import Overloaded
from weir.model.limits import (
    CLUSTERS_PER_TOPIC_MAX,
    DELAY_MS_MAX,
    GRANT_MS_MAX,
    GRANTS_PER_CLUSTER_MAX,
    GRANTS_PER_CONSUMER_MAX,
    MAX_AHEAD_MS,
    RETRY_AFTER_MS,
)
from weir.order.clock import Time, milliseconds_of

#: Grants that were acked before their lease ended stay in the heap; beyond twice those that were
#: live when it was last rebuilt, and so many, it is rebuilt.
_SLACK = 256
Run = tuple[int, int]


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

    __slots__ = ("_clusters", "_due", "_ended", "_most", "_pinned", "_until")

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
        #: because messages that are granted again by then would be taken from the consumer for
        #: which they are held back.
        self._pinned: Counter[tuple[str, int]] = Counter()
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

    def pin(self, name: str, fence: int) -> None:
        """Let a grant not end before `unpin`."""
        self._pinned[name, fence] += 1

    def is_pinned(self, name: str, fence: int) -> bool:
        """Whether something of a grant is being given back."""
        return (name, fence) in self._pinned

    def unpin(self, name: str, fence: int) -> None:
        """Let a grant end when its time is up, unless it is pinned for another reason."""
        self._pinned[name, fence] -= 1
        if self._pinned[name, fence] <= 0:
            del self._pinned[name, fence]

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
        if not self._pinned:
            return ended.keys()
        return [fence for fence in ended if (name, fence) not in self._pinned]

    def left_ms(self, name: str, fence: int, now_ms: int) -> int:
        """Return for how long a grant of a cluster lasts; 0 if it has ended."""
        return max(self._until.get((name, fence), 0) - now_ms, 0)


class GrantLimits:
    """The leader's limits of one partition."""

    __slots__ = ("_clusters", "_full_until_ms", "_leases", "_time")

    def __init__(self, clusters: dict[str, ClusterState], leases: Leases, time: Time) -> None:
        """Limit `clusters`, whose grants end as `leases` say."""
        self._time = time
        self._clusters = clusters
        self._leases = leases
        self._full_until_ms = 0

    def check_name(self, name: str, waiting: Collection[str]) -> None:
        """Raise `Overloaded` if a cluster is one too many beside those that are `waiting`.

        Names are not counted again before who was refused should ask again.
        """
        if name in self._clusters or name in waiting:
            return
        now_ms = self._time.monotonic_ms()
        if now_ms >= self._full_until_ms:
            if len(self._clusters.keys() | waiting) < CLUSTERS_PER_TOPIC_MAX:
                return
            self._full_until_ms = now_ms + RETRY_AFTER_MS
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


class BegunMessages:
    """By cluster and consumer, the messages of a partition that were begun, as was reported last.

    A consumer that reports does so before it begins a message that was tried before: of a grant of
    such messages nothing was begun unless it is reported (docs/adr/0064).
    """

    __slots__ = ("_clusters", "_reported")

    def __init__(self, clusters: dict[str, ClusterState]) -> None:
        """Begin to lead; nobody has reported anything."""
        self._clusters = clusters
        self._reported: dict[tuple[str, int], Ranges] = {}

    def report(self, name: str, consumer: int, runs: Sequence[Run] | None) -> None:
        """A consumer works on `runs`; None: it does not say. Only of one that holds messages is
        that remembered.
        """
        cluster = self._clusters.get(name)
        if runs is not None and cluster is not None and consumer in cluster.held:
            self._reported[name, consumer] = reported = Ranges()
            for first, behind in runs:  # in any order, as far as is known
                if first < behind:
                    reported.add(first, behind)

    def add(self, name: str, consumer: int, first: int, behind: int) -> None:
        """A consumer is about to begin [first, behind) beside what it reported before."""
        self._reported.setdefault((name, consumer), Ranges()).add(first, behind)

    def begin(self, name: str, runs: Iterable[Run], gone: Collection[int]) -> bool:
        """The holder of `runs` is about to begin them, unless it is gone; False if nobody holds
        them.
        """
        cluster, found = self._clusters.get(name), False
        if cluster is None:
            return False
        for run in runs:
            for fence, first, behind in cluster.holders.within(*run):
                grant = cluster.grants[fence]
                if grant.deadline != AT_ONCE and grant.consumer not in (NOBODY, *gone):
                    self.add(name, grant.consumer, first, behind)
                    found = True
        return found

    def granted(self, name: str, consumer: int, runs: Sequence[Run] | None) -> None:
        """A consumer that pulled with `runs` is granted messages: whether it reports is known from
        then on.
        """
        if (name, consumer) not in self._reported:
            self.report(name, consumer, runs)

    def forget(self, name: str, consumer: int) -> None:
        """A consumer is gone."""
        self._reported.pop((name, consumer), None)

    def all_lost_by(self, consumer: int) -> list[tuple[str, int, int]]:
        """Return what had an attempt of all that a consumer holds which is gone, by cluster."""
        return [
            (name, *run)
            for name, cluster in self._clusters.items()
            if consumer in cluster.held
            for run in self.lost_by(name, consumer)
        ]

    def lost_by(self, name: str, consumer: int) -> list[Run]:
        """Return what counts an attempt of all that a consumer holds which is gone: what it had
        begun; where it reported nothing that is unfinished, see `of_grants`.
        """
        cluster = self._clusters[name]
        fences = [*cluster.held.get(consumer, ())]
        begun = [run for fence in fences for run in self._begun(name, cluster, fence)]
        return begun or self.of_grants(name, fences)

    def of_grants(self, name: str, fences: Iterable[int]) -> list[Run]:
        """Return what counts an attempt of each of some grants whose leases have ended: what was
        begun, or else its first message; but none where it would have been reported.
        """
        cluster, found = self._clusters[name], list[Run]()
        for fence in fences:
            grant = cluster.grants[fence]
            if grant.is_counted:
                continue
            begun = self._begun(name, cluster, fence)
            if not begun and not self._waits(name, grant):
                first, _ = next(iter(grant.left))
                begun.append((first, first + 1))
            found += begun
        return found

    def _begun(self, name: str, cluster: ClusterState, fence: int) -> list[Run]:
        grant = cluster.grants[fence]
        reported = self._reported.get((name, grant.consumer))
        if reported is None:
            return []
        return [one for run in grant.left for one in reported.within(*run)]

    def _waits(self, name: str, grant: Grant) -> bool:
        """Whether nothing of a grant was begun if nothing is reported: it was tried before."""
        return grant.attempts > 1 and (name, grant.consumer) in self._reported


class Attempts:
    """How many attempts messages of a cluster have had, were they granted again now."""

    __slots__ = ("_begun", "_cluster", "_counted", "_name")

    def __init__(self, begun: BegunMessages, name: str, cluster: ClusterState) -> None:
        """Look at a cluster, for as long as nothing of it changes."""
        self._begun = begun
        self._name = name
        self._cluster = cluster
        self._counted: dict[int, Ranges] = {}

    def alike(self, first: int, behind: int) -> tuple[int, int]:
        """Return how often `first` was tried, and where in [first, behind) those end that were
        tried as often; where nobody has it, where that ends.
        """
        tries, end = 0, first
        for start, stop, known in self._within(first, behind):
            if start > first == end:
                return 0, start
            if start > end or (end > first and known != tries):
                break
            tries, end = known, stop
        return (tries, end) if end > first else (0, behind)

    def _within(self, first: int, behind: int) -> Iterator[tuple[int, int, int]]:
        for fence, begin, end in self._cluster.holders.within(first, behind):
            grant = self._cluster.grants[fence]
            if grant.is_counted:
                yield from grant.tries(begin, end)
                continue
            if fence not in self._counted:
                self._counted[fence] = Ranges(self._begun.of_grants(self._name, [fence]))
            for start, stop in self._counted[fence].within(begin, end):
                if begin < start:
                    yield begin, start, grant.attempts - 1
                yield start, stop, grant.attempts
                begin = stop
            if begin < end:
                yield begin, end, grant.attempts - 1
