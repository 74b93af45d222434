"""The leader's side of acks: they are entries, and are confirmed by their commit."""

from __future__ import annotations

from collections.abc import Sequence

from weir.broker.consumers.commands import Commands
from weir.broker.records.control import MessagesAcked
from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.state.clusters import ClusterState
from weir.broker.state.state import PartitionState
from weir.errors import BadRequest, StaleGrant, UnknownCluster
from weir.model.clusters import AckOutcome
from weir.model.limits import ACK_RANGES_MAX
from weir.protocol.client.messages import Ack, Acked

#: Rows in an answer, so that it fits into a frame.
_ROWS_MAX = ACK_RANGES_MAX


class Acks:
    """Takes acks of one partition while this node leads it."""

    __slots__ = ("_exact", "_outbox", "_state", "commands")

    def __init__(self, group: Group, state: PartitionState, outbox: Outbox) -> None:
        """Begin to lead; nobody waits for an answer yet."""
        self._state = state
        self._outbox = outbox
        #: Who is to be told what became of each message, instead of a refusal.
        self._exact: set[Caller] = set()
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
        if request.exact:
            self._exact.add(caller)

    def applied(
        self,
        index: int,
        cluster: ClusterState | None,
        refused: list[tuple[int, int, int]],
        late: list[tuple[int, int, int, AckOutcome]],
    ) -> None:
        """Answer for an ack that is committed; its cluster may have been deleted meanwhile.

        `refused` are the ranges that are not done, and `late` what their grants did not do.
        """
        caller = self.commands.applied(index)
        if caller is None:
            return
        is_exact = caller in self._exact
        self._exact.discard(caller)
        if cluster is None:
            self._outbox.refuse(caller, UnknownCluster("the cluster was deleted"))
        elif is_exact:
            self._outbox.reply(caller, Acked(cluster.cursor, _rows(late)))
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


def _rows(
    late: Sequence[tuple[int, int, int, AckOutcome]],
) -> tuple[tuple[int, int, int, int], ...]:
    """Return the rows of an answer. Beyond `_ROWS_MAX`, one row for each grant covers its rest."""
    rows = [(*row[:3], int(row[3])) for row in late[:_ROWS_MAX]]
    rest: dict[int, tuple[int, int]] = {}
    for fence, first, behind, _ in late[_ROWS_MAX:]:
        low, high = rest.get(fence, (first, behind))
        rest[fence] = min(low, first), max(high, behind)
    rows += [(fence, *run, int(AckOutcome.PARTLY)) for fence, run in rest.items()]
    return tuple(rows)
