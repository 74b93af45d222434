"""The links that this shard keeps to the shards of other nodes: dialled, lost, dialled again.

A link is a connection for each lane, and is there when they all are; with any of them it ends. The
quick lane is dialled first: once it is open, a node answers there.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from weir.broker.api import events as ev
from weir.host.greeting import DialedConnection, Dialer
from weir.host.lanes import OutLane
from weir.host.ports import RandomSource
from weir.host.shard_connections import LocalShard, ShardConnection, ShardWriter
from weir.host.trunks import Trunks
from weir.model.ids import place_of
from weir.protocol.link import Lane, LinkAnswer, LinkHello, Verdict, is_of

PAUSE_FIRST_SECONDS = 0.05
PAUSE_MOST_SECONDS = 1.0
# Looked up once: to look up a member of an `Enum` takes as long as the rest of `lane`.
_QUICK, _BULK = Lane.QUICK, Lane.BULK
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
        self.registered: tuple[str, int] | None = None
        self.advertised: tuple[str, int] | None = None
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
        known = (own, self.registered, self.advertised)
        return list(dict.fromkeys(one for one in known if one is not None))


class LinkKeeper(Protocol):
    """What one link asks of those who keep them all."""

    local: LocalShard
    trunks: Trunks
    dialer: Dialer
    random: RandomSource

    def hello(self, lane: Lane, node: int, shard: int) -> LinkHello:
        """Return what this shard says when it dials another."""

    def lanes_to(self, at: NodeAddress, shard: int) -> list[Lane]:
        """Return which lanes a link has, in the order to dial them."""

    def answered(self, at: NodeAddress, host: str, hello: LinkHello, answer: LinkAnswer) -> None:
        """A node that was dialled at `host` identified itself. Raises `LinkRefused` if its folder
        is another than that node's.
        """

    def tell(self, event: ev.LinkOpened | ev.LinkClosed) -> None:
        """Tell the shard what became of a link."""


class Backoff:
    """How long a link rests before it is dialled again: longer each time, and never quite the same,
    so that all those who lost a node do not come back together.
    """

    __slots__ = ("_is_resting", "_may_wake", "_nudged", "_pause", "_random")

    def __init__(self, random: RandomSource) -> None:
        """Begin with the shortest rest."""
        self._random = random
        self._pause = PAUSE_FIRST_SECONDS
        #: While it rests: whether it may be dialled before that is over, and is to be.
        self._is_resting = self._may_wake = self._nudged = False

    def begin(self) -> float:
        """Rest; return for how many seconds."""
        seconds = self._pause * self._random.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, PAUSE_MOST_SECONDS)
        self._is_resting, self._may_wake, self._nudged = True, False, False
        return seconds

    def allow_wake(self) -> bool:
        """Let the rest be cut short from now on; return whether it is to be."""
        self._may_wake = True
        return self._nudged

    def nudge(self) -> bool:
        """Cut the rest short; return whether that may be now."""
        self._nudged = True
        return self._may_wake

    def end(self) -> bool:
        """End the rest; return whether there was one."""
        was_resting, self._is_resting, self._may_wake = self._is_resting, False, False
        return was_resting

    def reset(self) -> None:
        """Begin with the shortest rest again: the link was up."""
        self._pause = PAUSE_FIRST_SECONDS


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
        #: What ends with each attempt: lanes, a lane that is dialled, a rest.
        self._attempt = 0
        self._dialled: DialedConnection | None = None
        #: How often dialling was in vain, and whether the last answer said where to dial instead.
        self._tries, self._redirected = 0, False
        self._backoff = Backoff(links.random)
        #: What was said when the last lane was opened, and the answer.
        self._greeted: tuple[LinkHello, LinkAnswer] | None = None
        self._dial()

    def lane(self, quick: bool) -> ShardWriter | None:
        """Return where frames are to be written; None while the link is down."""
        return self._lanes.get(_QUICK if quick else _BULK) if self._up else None

    def check_silence(self) -> None:
        """Look after the lanes."""
        for lane in list(self._lanes.values()):
            if isinstance(lane, OutLane):
                lane.check_silence()

    def close(self) -> None:
        """End the link for good, once what was written is out."""
        self._closed = True
        self._backoff.end()
        self._attempt += 1
        if self._dialled is not None:
            self._dialled.cut()
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.close()
        if self._up:
            self._up = False
            self._links.local.log.info("%s is closed", self._name(), extra=self._fields())
            self._links.tell(ev.LinkClosed(self.place))

    def expect(self, birth: int) -> None:
        """End the link if it is to another folder than the one that was founded as this node."""
        if self._greeted is not None and not is_of(self._greeted[1], self._greeted[0], birth):
            self._ended(self._attempt, founded_anew(self._at.node))

    def nudge(self) -> None:
        """Dial soon: the other side is known to be there."""
        if self._backoff.nudge():
            self._rested(self._attempt)

    # -- news of the dialled node -------------------------------------------------------------

    def answered(
        self, dialled: DialedConnection, connection: ShardConnection, answer: LinkAnswer
    ) -> None:
        """The other side said what comes of a lane."""
        self._dialled = None
        try:
            self._links.answered(self._at, dialled.host, dialled.hello, answer)
            if self._closed:  # the node has fewer shards
                connection.transport.abort()
                return
            is_elsewhere = self._check(answer, dialled.where)
        except LinkRefused as error:
            connection.transport.abort()
            self._refused(str(error))
            return
        if is_elsewhere:
            connection.transport.abort()
            self._redirect(f"{dialled.where} is shard {answer.shard}")
            return
        lane, over = dialled.hello.lane, partial(self._ended, self._attempt)
        self._greeted = dialled.hello, answer
        if lane is Lane.TRUNK:
            trunks = self._links.trunks
            self._lanes[lane] = trunks.ask(
                self.place, connection, lambda _: over("its trunk broke")
            )
        else:
            out = OutLane(self._links.local, connection.transport, lane is Lane.QUICK, over)
            self._lanes[lane] = connection.handler = out
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
            self._ended(self._attempt, why)
            return
        self._cut()
        self._tries = 0
        self._dial()

    def _refused(self, why: str) -> None:
        tries = self._tries + 1
        self._ended(self._attempt, why)
        self._tries = tries

    def _ended(self, attempt: int, why: str) -> None:
        if attempt != self._attempt:
            return
        self._cut()
        self._tries, self._redirected = 0, False
        if self._down(why):
            self._backoff.reset()
        self._rest()

    def _cut(self) -> None:
        self._attempt += 1
        dialled, self._dialled = self._dialled, None
        if dialled is not None:
            dialled.cut()
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.cut()
        self._greeted = None  # the next answer may be another node's

    def _rest(self) -> None:
        """Wait before dialling again."""
        seconds, later = self._backoff.begin(), self._links.local.later
        if seconds > PAUSE_FIRST_SECONDS:
            later(PAUSE_FIRST_SECONDS, partial(self._may_be_woken, self._attempt))
        later(seconds, partial(self._rested, self._attempt))

    def _may_be_woken(self, attempt: int) -> None:
        if attempt == self._attempt and self._backoff.allow_wake():
            self._rested(attempt)

    def _rested(self, attempt: int) -> None:
        if attempt == self._attempt and self._backoff.end():
            self._dial()

    def _came_up(self) -> None:
        self._up = True
        self._complaints.clear()
        self._links.local.log.info("%s is linked", self._name(), extra=self._fields())
        if Lane.BULK in self._lanes:
            assert self._greeted is not None  # each lane was answered
            answer = self._greeted[1]
            opened = ev.LinkOpened(self.place, self._at.shards, answer.run, answer.level)
            self._links.tell(opened)

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
