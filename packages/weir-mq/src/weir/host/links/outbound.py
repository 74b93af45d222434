"""The links that this shard keeps to the shards of other nodes: dialled, lost, dialled again.

A link is a connection for each lane, and is there when they all are; with any of them it ends. The
quick lane is dialled first: where it is, there is somebody who answers.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from weir.broker.api import events as ev
from weir.host.links.greeting import DialedConnection, Dialer, Dice
from weir.host.links.lanes import OutLane
from weir.host.shard_connections import LocalShard, Wire
from weir.host.trunk_end import ShardWriter
from weir.host.trunks import Trunks
from weir.model.ids import place_of
from weir.protocol.link import Lane, LinkAnswer, LinkHello, Verdict, is_of

PAUSE_FIRST_SECONDS = 0.05
PAUSE_MOST_SECONDS = 1.0
#: So many different reasons are told until a link is up.
_COMPLAINTS_MAX = 8


class LinkRefused(Exception):
    """The other side answered, and will have no link."""


class NodeAddress:
    """Where a node is reached, and what its answers told of its shards."""

    def __init__(self, node: int) -> None:
        """Know nothing yet but that there is a shard 0."""
        self.node = node
        self.shards = 1
        #: Host and port that all shards share: as the registry has them, as the node says itself.
        self.told: tuple[str, int] | None = None
        self.said: tuple[str, int] | None = None
        self._own: tuple[str, tuple[int, ...]] = ("", ())

    def learn(self, host: str, ports: tuple[int, ...]) -> None:
        """Take the ports of its shards that a node told which was reached at `host`."""
        self._own = host, ports

    def of(self, shard: int) -> list[tuple[str, int]]:
        """Return hosts and ports to dial for a shard, in the order in which to try them. Where
        shards share a port, any of them may answer.
        """
        host, ports = self._own
        own = (host, ports[shard]) if shard < len(ports) and ports[shard] else None
        return list(dict.fromkeys(one for one in (own, self.told, self.said) if one is not None))


class LinkKeeper(Protocol):
    """What one link asks of those who keep them all."""

    local: LocalShard
    trunks: Trunks
    dialer: Dialer
    dice: Dice

    def hello(self, lane: Lane, node: int, shard: int) -> LinkHello:
        """Return what this shard says when it dials another."""

    def lanes_to(self, at: NodeAddress, shard: int) -> list[Lane]:
        """Return which lanes a link has, in the order to dial them."""

    def answered(self, at: NodeAddress, host: str, hello: LinkHello, answer: LinkAnswer) -> None:
        """A node that was dialled at `host` said who it is. Raises `LinkRefused` if its folder is
        another than that node's.
        """

    def tell(self, event: ev.LinkOpened | ev.LinkClosed) -> None:
        """Tell the shard what became of a link."""


class OutboundLink:
    """The link from this shard to one of another node, kept up until `close`."""

    def __init__(self, links: LinkKeeper, at: NodeAddress, shard: int) -> None:
        """Begin to dial."""
        self.place = place_of(at.node, shard)
        self._links = links
        self._at = at
        self._shard = shard
        self._lanes: dict[Lane, ShardWriter] = {}
        self._up = self._closed = False
        self._complaints: set[str] = set()
        #: What ends with each time that the link does: lanes, a lane that is dialled, a rest.
        self._time = 0
        self._dialled: DialedConnection | None = None
        #: How often dialling was in vain, and whether the last answer said where to dial instead.
        self._tries, self._redirected = 0, False
        #: While it rests: whether it may be dialled before that is over, and is to be.
        self._rests = self._may_wake = self._nudged = False
        self._pause = PAUSE_FIRST_SECONDS
        self._run = 0
        #: What was said when the last lane was opened, and the answer.
        self._greeted: tuple[LinkHello, LinkAnswer] | None = None
        self._dial()

    def lane(self, quick: bool) -> ShardWriter | None:
        """Return where frames are to be written; None while the link is down."""
        return self._lanes.get(Lane.QUICK if quick else Lane.BULK) if self._up else None

    def check_silence(self) -> None:
        """Look after the lanes."""
        for lane in list(self._lanes.values()):
            if isinstance(lane, OutLane):
                lane.check_silence()

    def close(self) -> None:
        """End the link for good, once what was written is out."""
        self._closed, self._rests = True, False
        self._time += 1
        if self._dialled is not None:
            self._dialled.cut()
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.close()
        if self._up:
            self._up = False
            self._links.local.log.info("%s is let go", self._name(), extra=self._fields())
            self._links.tell(ev.LinkClosed(self.place))

    def expect(self, birth: int) -> None:
        """End the link if it is to another folder than the one that was founded as this node."""
        if self._greeted is not None and not is_of(self._greeted[1], self._greeted[0], birth):
            self._ended(self._time, founded_anew(self._at.node))

    def nudge(self) -> None:
        """Dial soon: the other side is known to be there."""
        self._nudged = True
        self._wake()

    # -- who is dialled tells -----------------------------------------------------------------

    def answered(self, dialled: DialedConnection, wire: Wire, answer: LinkAnswer) -> None:
        """The other side said what comes of a lane."""
        self._dialled = None
        try:
            self._links.answered(self._at, dialled.host, dialled.hello, answer)
            if self._closed:  # the node has fewer shards
                wire.transport.abort()
                return
            is_elsewhere = self._check(answer, dialled.where)
        except LinkRefused as error:
            wire.transport.abort()
            self._refused(str(error))
            return
        if is_elsewhere:
            wire.transport.abort()
            self._redirect(f"{dialled.where} is shard {answer.shard}")
            return
        lane, over = dialled.hello.lane, partial(self._ended, self._time)
        self._run, self._greeted = answer.run, (dialled.hello, answer)
        if lane is Lane.TRUNK:
            trunks = self._links.trunks
            self._lanes[lane] = trunks.ask(self.place, wire, lambda _: over("its trunk broke"))
        else:
            out = OutLane(self._links.local, wire.transport, lane is Lane.QUICK, over)
            self._lanes[lane] = wire.end = out
        self._dial()

    def failed(self, dialled: DialedConnection, why: str) -> None:
        """There is no answer."""
        if self._dialled is dialled:
            self._dialled = None
            self._refused(f"{dialled.where}: {why}")

    # -- inside -------------------------------------------------------------------------------

    def _dial(self) -> None:
        """Dial the next lane, if there is one."""
        missing = (one for one in self._links.lanes_to(self._at, self._shard)
                   if one not in self._lanes)  # fmt: skip
        if (lane := next(missing, None)) is None:
            self._came_up()
            return
        places = self._at.of(self._shard)
        host, port = places[self._tries % len(places)]
        hello = self._links.hello(lane, self._at.node, self._shard)
        self._dialled = DialedConnection(self, self._links.local, hello, host, port)
        self._links.dialer.dial(host, port, self._tries, self._dialled)

    def _check(self, answer: LinkAnswer, where: str) -> bool:
        """Return whether another shard of the node answered. Raises `LinkRefused`."""
        if answer.verdict == Verdict.ELSEWHERE and answer.node == self._at.node:
            return True
        if answer.verdict != Verdict.ACCEPTED:
            raise LinkRefused(f"{where} refused it: {answer.reason}")
        if (answer.node, answer.shard) != (self._at.node, self._shard):
            raise LinkRefused(f"{where} is shard {answer.shard} of node {answer.node}")
        return False

    def _redirect(self, why: str) -> None:
        """The shard's own port is known now: unless that is what answered, dial it at once."""
        self._redirected = not self._redirected
        if not self._redirected:
            self._ended(self._time, why)
            return
        self._cut()
        self._tries = 0
        self._dial()

    def _refused(self, why: str) -> None:
        tries = self._tries + 1
        self._ended(self._time, why)
        self._tries = tries

    def _ended(self, time: int, why: str) -> None:
        if time != self._time:
            return
        self._cut()
        self._tries, self._redirected = 0, False
        if self._down(why):
            self._pause = PAUSE_FIRST_SECONDS
        self._rest()

    def _cut(self) -> None:
        self._time += 1
        dialled, self._dialled = self._dialled, None
        if dialled is not None:
            dialled.cut()
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.cut()
        self._greeted = None  # who answers next may be another

    def _rest(self) -> None:
        """Wait before dialling again: longer each time, and never quite the same, so that all those
        who lost a node do not come back together.
        """
        seconds = self._pause * self._links.dice.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, PAUSE_MOST_SECONDS)
        self._rests, self._may_wake, self._nudged = True, False, False
        later = self._links.local.later
        if seconds > PAUSE_FIRST_SECONDS:
            later(PAUSE_FIRST_SECONDS, partial(self._may_be_woken, self._time))
        later(seconds, partial(self._rested, self._time))

    def _may_be_woken(self, time: int) -> None:
        if time == self._time:
            self._may_wake = True
            self._wake()

    def _wake(self) -> None:
        if self._nudged and self._may_wake:
            self._rested(self._time)

    def _rested(self, time: int) -> None:
        if time == self._time and self._rests:
            self._rests = self._may_wake = False
            self._dial()

    def _came_up(self) -> None:
        self._up = True
        self._complaints.clear()
        self._links.local.log.info("%s is linked", self._name(), extra=self._fields())
        if Lane.BULK in self._lanes:
            self._links.tell(ev.LinkOpened(self.place, self._at.shards, self._run))

    def _down(self, why: str) -> bool:
        """Say that the link is down, and why; return whether it was up."""
        was_up, self._up = self._up, False
        log = self._links.local.log
        if was_up:
            log.warning("%s is no longer linked: %s", self._name(), why, extra=self._fields())
            self._links.tell(ev.LinkClosed(self.place))
        elif why not in self._complaints and len(self._complaints) < _COMPLAINTS_MAX:
            self._complaints.add(why)
            log.warning("%s has no link yet: %s", self._name(), why, extra=self._fields())
        return was_up

    def _name(self) -> str:
        return f"shard {self._shard} of node {self._at.node}"

    def _fields(self) -> dict[str, dict[str, int]]:
        return {"fields": {"peer_node": self._at.node, "peer_shard": self._shard}}


def founded_anew(node: int) -> str:
    """Return why there is no link to a node, or from it, whose folder is another than it had."""
    return (
        f"node {node} of this set has another data folder: start it with that one. If that is "
        "lost, add a node under another number (`weir node add`), then drain and remove node "
        f"{node}"
    )
