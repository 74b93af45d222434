"""The links that shards of other nodes keep to this one."""

from __future__ import annotations

import asyncio
import logging

from weir.model.ids import place_node, place_shard
from weir.server.driving import Driving
from weir.server.link_lanes import InLane
from weir.server.outlet import End
from weir.server.trunk import Trunks, adopt
from weir.wire.link import Lane, LinkHello

log = logging.getLogger(__name__)


class Inbound:
    """A link from the shard at a place. It began with its quick lane, and ends with any of them."""

    def __init__(self, driver: Driving, trunks: Trunks, place: int, hello: LinkHello) -> None:
        """Have no lane yet; `hello` is what the other side said first, which tells this life of its
        process from others, and perhaps its node's folder.
        """
        self.hello = hello
        self.over = False
        self._driver = driver
        self._trunks = trunks
        self._place = place
        self._lanes: dict[Lane, InLane | End] = {}

    def takes(self, run: int, lane: Lane) -> bool:
        """Return whether a lane may join this link."""
        return not self.over and self.hello.run == run and lane not in self._lanes

    def add(self, lane: Lane, transport: asyncio.Transport) -> None:
        """Give the link a lane."""
        if lane is Lane.TRUNK:
            self._lanes[lane] = self._trunks.serve(
                self._place, transport, lambda _: self.end("its trunk broke")
            )
        else:
            one = self._lanes[lane] = InLane(self._driver, self._place, self.end)
            adopt(transport, one)

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

    def end(self, why: str, level: int = logging.INFO) -> None:
        """End the link, and say why; as a warning where an operator has something to mend."""
        if self.over:
            return
        node, shard = place_node(self._place), place_shard(self._place)
        fields = {"peer_node": node, "peer_shard": shard}
        text = "shard %d of node %d sends here no more: %s"
        log.log(level, text, shard, node, why, extra={"fields": fields})
        self.cut()
