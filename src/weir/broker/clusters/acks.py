"""The leader's side of acks: they are entries, and are confirmed by their commit."""

from __future__ import annotations

from weir.broker.control import MessagesAcked
from weir.broker.entries import of_control
from weir.broker.outbox import Caller, Outbox
from weir.broker.replica.group import Group
from weir.broker.state.clusters import ClusterState
from weir.broker.state.state import PartitionState
from weir.errors import BadRequest, Refused, StaleGrant, Unavailable, UnknownCluster
from weir.model.limits import ACK_RANGES_MAX
from weir.wire.messages import Ack, Acked


class Acks:
    """Takes acks of one partition while this node leads it."""

    __slots__ = ("_draining", "_group", "_outbox", "_state", "_waiting")

    def __init__(self, group: Group, state: PartitionState, outbox: Outbox) -> None:
        """Begin to lead; nobody waits for an answer yet."""
        self._group = group
        self._state = state
        self._outbox = outbox
        self._waiting: dict[int, Caller] = {}
        self._draining = False

    def drain(self) -> None:
        """Take no more: the node stops."""
        self._draining = True

    def lose(self, error: Refused) -> None:
        """This node leads no more: another will know whether these acks were committed."""
        waiting, self._waiting = self._waiting, {}
        for caller in waiting.values():
            self._outbox.refuse(caller, error)

    def ack(self, caller: Caller, request: Ack) -> None:
        """Propose acks; they are confirmed once committed.

        Raises `UnknownCluster`, `BadRequest`, and `Unavailable` near the end of a stop.
        """
        if self._draining:
            raise Unavailable("this node is stopping: ack at another, or again shortly")
        if request.cluster not in self._state.clusters:
            raise UnknownCluster(f"cluster {request.cluster!r} was never granted anything here")
        if not 1 <= len(request.ranges) <= ACK_RANGES_MAX:
            raise BadRequest(f"{len(request.ranges)} ranges in an ack: 1 to {ACK_RANGES_MAX:,}")
        behind = self._state.next_offset
        if any(not 0 <= first < next_ <= behind for _, first, next_ in request.ranges):
            raise BadRequest("an acked range is empty or holds offsets that do not exist")
        record = MessagesAcked(request.cluster, request.ranges)
        self._waiting[self._group.propose(of_control(record))] = caller

    def applied(
        self, index: int, cluster: ClusterState | None, refused: list[tuple[int, int, int]]
    ) -> None:
        """Answer for an ack that is committed; its cluster may have been deleted meanwhile."""
        caller = self._waiting.pop(index, None)
        if caller is None:
            return
        if cluster is None:
            self._outbox.refuse(caller, UnknownCluster("the cluster was deleted"))
        elif refused:
            fence, first, behind = refused[0]
            self._outbox.refuse(
                caller,
                StaleGrant(
                    f"{len(refused)} of the ranges, first [{first}, {behind}) of grant {fence}, "
                    "are not that grant's any more; the rest is done",
                    fence,
                ),
            )
        else:
            self._outbox.reply(caller, Acked(cluster.cursor))
