"""What consumers said last that they work on: of what they lose, that counts an attempt.

It comes with what they ask for anyhow (`Pull`, `Extend`, `Ping`), and is a leader's memory; what it
means is written into the entries by which they lose messages, for every replica to see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weir.broker.state.clusters import ClusterState
from weir.broker.state.ranges import Ranges

Run = tuple[int, int]


class Begun:
    """By cluster and consumer, the messages of a partition that were begun, as was said last."""

    __slots__ = ("_clusters", "_said")

    def __init__(self, clusters: dict[str, ClusterState]) -> None:
        """Begin to lead; nobody has said anything."""
        self._clusters = clusters
        self._said: dict[tuple[str, int], Ranges] = {}

    def said(self, name: str, consumer: int, runs: Sequence[Run] | None) -> None:
        """A consumer works on `runs`; None: it does not say. Only of one that holds messages is
        that remembered.
        """
        cluster = self._clusters.get(name)
        if runs is not None and cluster is not None and consumer in cluster.held:
            self._said[name, consumer] = said = Ranges()
            for first, behind in runs:  # in any order, as far as is known
                if first < behind:
                    said.add(first, behind)

    def forget(self, name: str, consumer: int) -> None:
        """A consumer is gone."""
        self._said.pop((name, consumer), None)

    def lost_by(self, name: str, consumer: int) -> list[Run]:
        """Return what counts an attempt of all that a consumer holds which is gone: what it had
        begun; where it said of nothing that is unfinished, the first message of each grant.
        """
        cluster = self._clusters[name]
        fences = [*cluster.held.get(consumer, ())]
        begun = [run for fence in fences for run in self._begun(name, cluster, fence)]
        return begun or self.of_grants(name, fences)

    def of_grants(self, name: str, fences: Iterable[int]) -> list[Run]:
        """Return what counts an attempt of each of some grants whose leases have ended: what was
        begun, or else its first message.
        """
        cluster, found = self._clusters[name], list[Run]()
        for fence in fences:
            grant = cluster.grants[fence]
            if not grant.is_counted:
                first, _ = next(iter(grant.left))
                found += self._begun(name, cluster, fence) or [(first, first + 1)]
        return found

    def _begun(self, name: str, cluster: ClusterState, fence: int) -> list[Run]:
        grant = cluster.grants[fence]
        said = self._said.get((name, grant.consumer))
        return [] if said is None else [one for run in grant.left for one in said.within(*run)]


class Tries:
    """How many attempts messages of a cluster have had, were they granted again now."""

    __slots__ = ("_begun", "_cluster", "_counted", "_name")

    def __init__(self, begun: Begun, name: str, cluster: ClusterState) -> None:
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
