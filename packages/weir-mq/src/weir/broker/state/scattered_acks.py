"""What undecided acks of a scattering hold: taken from grants, and perhaps given back to them."""

from __future__ import annotations

from collections.abc import Sequence

from weir.broker.state.clusters import NEVER, NOBODY, ClusterState, Grant
from weir.broker.state.ranges import Ranges
from weir.broker.state.scatterings import Taken


def put_aside(
    cluster: ClusterState, name: str, fence: int, ranges: Sequence[tuple[int, int, int]]
) -> list[Taken] | None:
    """Move ranges (fence, first, next) of grants into one of nobody's under `fence` that never
    ends; return what they were. None, and nothing is done, unless those grants hold all of it.
    """
    taken, runs = [], Ranges()
    for old, first, behind in ranges:
        grant = cluster.grants.get(old)
        if grant is None or grant.consumer == NOBODY or not grant.left.covers(first, behind):
            return None
        runs.add(first, behind)
        row = Taken(name, old, grant.consumer, grant.deadline, grant.attempts, first, behind)
        taken.append(row)
    if not taken or runs.count != sum(one.behind - one.first for one in taken):
        return None
    for one in taken:
        cluster.take(one.fence, cluster.grants[one.fence], one.first, one.behind)
    attempts = max(one.attempts for one in taken)
    cluster.hold(fence, Grant(NOBODY, NEVER, attempts, runs))
    return taken


def give_again(cluster: ClusterState, fence: int, one: Taken) -> bool:
    """Put back what `put_aside` took, as far as it is there; return whether some of it is."""
    aside = cluster.grants.get(fence)
    if aside is None:
        return False
    runs = aside.left.within(one.first, one.behind)
    for run in runs:
        cluster.take(fence, aside, *run)
        grant = cluster.grants.get(one.fence)
        if grant is None:
            rest = Ranges([run])
            cluster.hold(one.fence, Grant(one.consumer, one.deadline, one.attempts, rest))
        else:
            grant.left.add(*run)
            cluster.holders.put(*run, one.fence)
    return bool(runs)
