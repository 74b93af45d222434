"""The simulated links between nodes: each side opens lanes to send on; server.links' twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weir.broker import events as ev
from weir.broker.layout import Layout
from weir.model.ids import place_of
from weir.sim.network import Link, Way
from weir.sim.trunks import Trunks
from weir.sim.world import MS
from weir.wire.link import LinkStream

if TYPE_CHECKING:
    from weir.sim.process import Process

_HELLO = (1 * MS, 10 * MS)
_REDIAL = (50 * MS, 400 * MS)

#: Returns a node's processes that run, how many shards it has, and the ways to it and from it.
Dial = Callable[[int], tuple[list["Process"], Layout, Way, Way]]


class _Arrival:
    """Where a lane ends: what another node sends comes in."""

    def __init__(self, process: Process, source: int) -> None:
        self._process = process
        self._source = source
        self._stream = LinkStream()

    def received(self, link: Link, data: bytes) -> None:
        process = self._process
        if process.paused and process.asleep(self.received, link, data):
            return
        if process.shard is None:  # it died, and what had come before while it stood still is gone
            return
        if frames := self._stream.receive(data):
            process.handle(ev.PeerSent(self._source, frames))

    def lost(self, link: Link) -> None:
        pass  # the sender dials again


class _Lanes:
    """The two lanes on which this process sends to a shard of another node, and the trunk there."""

    def __init__(self, owner: Links, target: Process, up: Way, down: Way) -> None:
        self.owner = owner
        self.target = target
        self.open = False
        process = owner.process
        source = place_of(process.node, process.number)
        self.bulk, self.quick = (
            Link(process.world, self, _Arrival(target, source), up, down) for _ in range(2)
        )
        target.links.arriving.append(self)

    def received(self, link: Link, data: bytes) -> None:
        pass  # nothing ever comes back on a lane

    def lost(self, link: Link) -> None:
        if not self.owner.process.asleep(self.lost, link):
            self.owner.lost(self)

    def cut(self, silent: bool = False) -> None:
        """Break; silently if the other side went without a word."""
        self.bulk.cut(self, silent)
        self.quick.cut(self, silent)


class Links:
    """All links of a process: to each shard of another node that has a log of its own in common."""

    def __init__(self, process: Process, dial: Dial) -> None:
        """Begin without any; `dial` finds the processes of a node."""
        self.process = process
        self._dial = dial
        #: What other processes opened to here, to send on.
        self.arriving: list[_Lanes] = []
        self._lanes: dict[int, _Lanes] = {}
        #: The nodes that are to be linked, each with a number that ends older rounds of dialling.
        self.wanted: dict[int, int] = {}
        self._rounds = 0

    def connect(self, node: int) -> None:
        """Keep links to a node from here on."""
        if node != self.process.node and node not in self.wanted:
            self._rounds += 1
            self.wanted[node] = self._rounds
            self._try(node, self._rounds)

    def nudge(self, node: int) -> None:
        """A node is there, for it dialled: dial it now."""
        if node in self.wanted and self.process.shard is not None:
            self._dial_all(node)

    def disconnect(self, node: int) -> None:
        """Keep none any more."""
        self.wanted.pop(node, None)
        for lanes in list(self._lanes.values()):
            if lanes.target.node == node:
                lanes.cut()

    def send(self, place: int, quick: bool, data: bytes) -> None:
        """Send frames, or drop them."""
        lanes = self._lanes.get(place)
        if lanes is not None and lanes.open:
            (lanes.quick if quick else lanes.bulk).to_host(data)

    def cut(self, silent: bool) -> None:
        """The process has ended."""
        self.wanted.clear()
        for lanes in [*self._lanes.values(), *self.arriving]:
            lanes.cut(silent)

    def sever(self) -> None:
        """Break every link; they are dialled again."""
        for lanes in list(self._lanes.values()):
            lanes.cut()

    def _try(self, node: int, number: int) -> None:
        """Dial what is not linked; look again later, for shards come and go."""
        process = self.process
        if process.shard is None or self.wanted.get(node) != number:
            return
        process.world.after(process.world.between(*_REDIAL), self._try, node, number)
        if not process.paused:
            self._dial_all(node)

    def _dial_all(self, node: int) -> None:
        targets, layout, up, down = self._dial(node)
        if not (up.open and down.open):
            return
        for target in targets:
            self._link(target, layout, up, down)

    def _link(self, target: Process, layout: Layout, up: Way, down: Way) -> None:
        place = place_of(target.node, target.number)
        process = self.process
        if not process.trunks.asks_place(place):
            Trunks.join(process, target, up, down)
        if place in self._lanes or not set(process.logs) & set(layout.logs_of(target.number)):
            return
        lanes = self._lanes[place] = _Lanes(self, target, up, down)
        hello = process.world.between(*_HELLO) * up.slow
        process.world.after(hello, self._answer, lanes, layout.shards)

    def _answer(self, lanes: _Lanes, shards: int) -> None:
        """The other side takes the hello, unless it is gone by now."""
        if lanes.target.asleep(self._answer, lanes, shards):
            return
        if self.process.asleep(self._answer, lanes, shards):
            return
        place = place_of(lanes.target.node, lanes.target.number)
        if self._lanes.get(place) is not lanes or lanes.target.shard is None:
            return
        lanes.open = True
        self.process.world.note("link", self.process.name, lanes.target.name)
        self.process.handle(ev.LinkOpened(place, shards, lanes.target.run))
        lanes.target.links.nudge(self.process.node)

    def lost(self, lanes: _Lanes) -> None:
        """One of the lanes broke: so does the other."""
        lanes.cut()
        if lanes in lanes.target.links.arriving:
            lanes.target.links.arriving.remove(lanes)
        place = place_of(lanes.target.node, lanes.target.number)
        if self._lanes.get(place) is lanes:
            del self._lanes[place]
            if lanes.open and self.process.shard is not None:
                self.process.world.note("unlink", self.process.name, lanes.target.name)
                self.process.handle(ev.LinkClosed(place))
