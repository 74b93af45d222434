"""What consumers at a relay work on: a relay tells the leaders of the partitions in the core.

A client tells it by pings to whom it is connected. A ping is answered by the shard that it comes
to, and the one connection that a relay has for a client ends at any shard of the core. So each
partition's part goes on as a pull of no message, which the core passes on to the leader
(docs/adr/0064). A message that ends its consumer thus counts as tried, whoever leads it.
"""

from __future__ import annotations

from msgspec import structs

from weir.client.connection.connection import Connection
from weir.errors import BadRequest, Disconnected
from weir.model.ids import Address, topic_of
from weir.model.limits import ACK_RANGES_MAX
from weir.protocol.client import messages as m

#: So many clusters of a client are remembered, of those that it was granted messages in last.
CLUSTERS_MAX = 64
#: Of so many partitions it is told at once. The client's next pulls tell of the others.
PARTITIONS_MAX = 256


class BegunReports:
    """Passes on what the consumers of one client work on."""

    def __init__(self) -> None:
        """Nothing was granted yet."""
        #: By topic and cluster, the last pull that was granted messages: it has mode and tags,
        #: without which the core takes no pull.
        self._pulls: dict[tuple[int, str], m.Pull] = {}
        #: The connection by which reports are under way, and how many.
        self._upstream: Connection | None = None
        self._under_way = 0

    def granted(self, pull: m.Pull) -> None:
        """Take note of a pull that was granted messages."""
        key = topic_of(pull.address.group), pull.cluster
        self._pulls.pop(key, None)
        self._pulls[key] = structs.replace(
            pull, max_messages=0, max_bytes=0, wait_ms=0, begun=None, offsets_only=False
        )
        if len(self._pulls) > CLUSTERS_MAX:
            del self._pulls[next(iter(self._pulls))]

    def tell(self, ping: m.Ping, upstream: Connection) -> None:
        """Pass on what a ping tells. While the last one is under way nothing is, nor is anything
        kept for a core that takes nothing: the next ping says it again. Raises `BadRequest` for
        more runs than the core takes.
        """
        if sum(len(runs) for _, _, runs in ping.begun) > ACK_RANGES_MAX:
            raise BadRequest(f"a ping tells of {ACK_RANGES_MAX:,} runs of messages at most")
        if upstream is self._upstream and self._under_way:
            return
        self._upstream, self._under_way = upstream, 0

        def told(_: int, __: m.Reply | Disconnected) -> None:
            # What was refused, as nobody holds it any more, concerns nobody.
            if upstream is self._upstream:
                self._under_way -= 1

        for address, cluster, runs in ping.begun:
            pull = self._pulls.get((topic_of(address.group), cluster))
            if pull is None or not runs:
                continue
            if self._under_way == PARTITIONS_MAX:
                return
            report = structs.replace(pull, address=Address(0, 0, address.group), begun=runs)
            if upstream.offer(report, told) is None:
                return
            self._under_way += 1
