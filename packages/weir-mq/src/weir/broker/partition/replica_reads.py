"""Reads from a replica that does not lead: what it has applied is committed, if it lags or not."""

from __future__ import annotations

from weir.broker.partition.fetches import Fetches
from weir.broker.replica.group import Group
from weir.broker.replica.refusals import no_leader
from weir.errors import Refused, Unavailable
from weir.model.ids import node_of


def check_replica(group: Group) -> None:
    """Raise `Unavailable` or `NotLeader` unless this replica can be read: it lacks nothing of what
    it has applied, and hears of a leader, so that it will not lag for ever.
    """
    error = _unfit(group)
    if error is not None:
        raise error


def end_if_astray(group: Group, fetches: Fetches) -> None:
    """Send away all who wait at a replica that cannot be read any more."""
    if fetches.waiting and (error := _unfit(group)) is not None:
        fetches.end(error)


def _unfit(group: Group) -> Refused | None:
    if group.damage is not None or group.is_incomplete:
        return no_leader(node_of(group.leader))
    if not group.is_current:
        return Unavailable("this replica knows of no leader: read from another one")
    return None
