"""The leader's side of acks: they are entries, and are confirmed by their commit."""

from __future__ import annotations

from weir.broker.clusters.commands import Commands
from weir.broker.control import MessagesAcked
from weir.broker.outbox import Caller, Outbox
from weir.broker.replica.group import Group
from weir.broker.state.clusters import ClusterState
from weir.broker.state.state import PartitionState
from weir.errors import BadRequest, StaleGrant, UnknownCluster
from weir.model.limits import ACK_RANGES_MAX
from weir.wire.messages import Ack, Acked


class Acks:
    """Takes acks of one partition while this node leads it."""

    __slots__ = ("_outbox", "_state", "commands")

    def __init__(self, group: Group, state: PartitionState, outbox: Outbox) -> None:
        """Begin to lead; nobody waits for an answer yet."""
        self._state = state
        self._outbox = outbox
        self.commands = Commands(group, outbox)

    def ack(self, caller: Caller, request: Ack) -> None:
        """Propose acks; they are confirmed once committed.

        Raises `UnknownCluster`, `BadRequest`, and `Unavailable` near the end of a stop.
        """
        self.commands.check_open()
        if request.cluster not in self._state.clusters:
            raise UnknownCluster(f"cluster {request.cluster!r} was never granted anything here")
        if not 1 <= len(request.ranges) <= ACK_RANGES_MAX:
            raise BadRequest(f"{len(request.ranges)} ranges in an ack: 1 to {ACK_RANGES_MAX:,}")
        behind = self._state.next_offset
        if any(not 0 <= first < next_ <= behind for _, first, next_ in request.ranges):
            raise BadRequest("an acked range is empty or holds offsets that do not exist")
        self.commands.propose(MessagesAcked(request.cluster, request.ranges), caller)

    def applied(
        self, index: int, cluster: ClusterState | None, refused: list[tuple[int, int, int]]
    ) -> None:
        """Answer for an ack that is committed; its cluster may have been deleted meanwhile."""
        caller = self.commands.applied(index)
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
