"""The links that shards of other nodes keep to this one."""

from __future__ import annotations

from weir.host.links.lanes import InLane
from weir.host.shard_connections import Home, Wire
from weir.host.trunk_end import TrunkEnd
from weir.host.trunks import Trunks
from weir.model.ids import place_node, place_shard
from weir.protocol.link import Lane, LinkHello


class Inbound:
    """A link from the shard at a place. It began with its quick lane, and ends with any of them."""

    def __init__(self, home: Home, trunks: Trunks, place: int, hello: LinkHello) -> None:
        """Have no lane yet; `hello` is what the other side said first, which tells this life of its
        process from others, and perhaps its node's folder.
        """
        self.hello = hello
        self.over = False
        self._home = home
        self._trunks = trunks
        self._place = place
        self._lanes: dict[Lane, InLane | TrunkEnd] = {}

    def takes(self, run: int, lane: Lane) -> bool:
        """Return whether a lane may join this link."""
        return not self.over and self.hello.run == run and lane not in self._lanes

    def add(self, lane: Lane, wire: Wire) -> None:
        """Give the link a lane."""
        if lane is Lane.TRUNK:
            self._lanes[lane] = self._trunks.serve(
                self._place, wire, lambda _: self.end("its trunk broke"), self.hello.shards
            )
        else:
            one = InLane(self._home, wire.transport, self._place, self.end)
            self._lanes[lane] = wire.end = one

    def tick(self) -> None:
        """Look whether the other side is still there."""
        quick = self._lanes.get(Lane.QUICK)
        if isinstance(quick, InLane):
            quick.tick()

    def cut(self) -> None:
        """End the link, which is no news."""
        self.over = True
        for lane in self._lanes.values():
            lane.cut()

    def end(self, why: str, is_warning: bool = False) -> None:
        """End the link, and say why; as a warning where an operator has something to mend."""
        if self.over:
            return
        node, shard = place_node(self._place), place_shard(self._place)
        fields = {"peer_node": node, "peer_shard": shard}
        log = self._home.log
        say = log.warning if is_warning else log.info
        text = "shard %d of node %d sends here no more: %s"
        say(text, shard, node, why, extra={"fields": fields})
        self.cut()
