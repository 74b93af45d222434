"""The lag alarm: which link holds barriers back, where that begins, and why.

Every node reads its links each ten intervals. The *age* of an input is how far its barrier was
behind the node's clock at most since the reading before. In a half of a switch all inputs have come
as far, so their ages are alike: one that is five intervals above their median in all readings of
twenty intervals is reported. A link further down may be the reason: the lowest one that is as old,
seen from the median above, is named as the hop.

What the nodes at both ends say tells the cause: the receiver in three readings in which the hop is
that old, the sender in two. A link that has lagged for long enough before waits for them for
ten intervals at most. All links that lag because of one hop are reported with one cause.

Readings are no entries of the log: a new leader starts with the next ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from statistics import median_high
from typing import NamedTuple

from weir_toc.topology import Topology

#: In intervals: how often nodes read their links, how far behind is too far, and for how long.
READ_INTERVALS, LAG_INTERVALS, LASTING_INTERVALS = 10, 5, 20
#: A reading counts for so many intervals. A node without one has stopped.
FRESH_INTERVALS = 25
#: A link is said to lag for so many nanoseconds after the last reading of its node, and as long as
#: a reading counts: a leader on a busy machine may be as late to take the next one.
UNREAD_NS_MIN = 1_000_000_000
#: A clock that is wrong by so many intervals, and timers that are as late, are a cause.
CAUSE_INTERVALS = 3
#: A link that has lost so large a part of its packets is a cause: one that loses less seldom loses
#: enough in a row.
LOSS_SHARE = 1 / 3
#: So many readings of a node tell the cause: those in which the link lagged.
_KEPT = 1 + LASTING_INTERVALS // READ_INTERVALS
#: So many of the sender, to know whether it ran late more than once.
_TOLD = 2
#: They may come a period later than those of the link that is reported, but it waits no longer.
_PATIENCE_INTERVALS = LASTING_INTERVALS + READ_INTERVALS


class Cause(Enum):
    """Why a link lags."""

    #: The clock of the node that sends by it is behind.
    CLOCK = "clock"
    #: The node that sends by it pauses at times, or has stopped.
    STOPPED = "stopped process"
    #: Packets arrive late.
    QUEUE = "queue"
    #: Many packets are lost.
    LOSS = "loss"


class Link(NamedTuple):
    """The input of `node` from `neighbour`."""

    node: int
    neighbour: int


class LinkReading(NamedTuple):
    """What a node reads of one of its links; times in nanoseconds."""

    neighbour: int
    #: How far the barrier that came by it was behind the clock of the node, at most.
    age: int = 0
    #: All packets that came by it, and all that were sent.
    heard: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True)
class NodeReading:
    """All links of a node, read at one moment."""

    node: int
    #: When the controller got it, by its clock, and what the clock of the node showed.
    at: int
    clock: int
    #: How late the timers of the node were at most since its reading before.
    late: int
    links: Mapping[int, LinkReading]


class Lagging(NamedTuple):
    """A link begins to lag, or stops lagging."""

    link: Link
    #: The link at which the lag begins: this one, or one further down.
    hop: Link
    cause: Cause
    #: How far it is behind the others, in nanoseconds, and since when it is.
    behind: int
    since: int
    is_over: bool = False


@dataclass(slots=True)
class _Seen:
    """A link that is too far behind."""

    since: int
    #: How far, at the last reading, and an age between the usual one and that of the link.
    behind: int = 0
    limit: int = 0
    told: Lagging | None = None


class _Node:
    """The last readings of a node."""

    def __init__(self, reading: NodeReading) -> None:
        self.readings = deque((reading,), _KEPT)

    @property
    def last(self) -> NodeReading:
        return self.readings[-1]

    def behind(self, since: int) -> int:
        """How far its clock was behind at least: a frame may be late, too."""
        some = [one for one in self.readings if one.at >= since] or [self.last]
        return min(one.at - one.clock for one in some)

    def is_known(self, since: int) -> bool:
        """Whether it has told since then how it runs: a process that pauses reads late."""
        return sum(one.at >= since for one in self.readings) >= _TOLD

    @property
    def late(self) -> int:
        """How late it ran, more than once."""
        return median_high(one.late for one in self.readings)

    def old(self, neighbour: int, limit: int) -> list[NodeReading]:
        """Return the last readings, in all of which a link was older than `limit`."""
        found = takewhile(
            lambda one: neighbour in one.links and one.links[neighbour].age > limit,
            reversed(self.readings),
        )
        return [*found][::-1]


def _rate(readings: Sequence[NodeReading], neighbour: int, what: str) -> float | None:
    """Packets a nanosecond on a link, from the first reading to the last; None if unknown."""
    if not readings:
        return None
    first, last = readings[0], readings[-1]
    begun, ended = first.links.get(neighbour), last.links.get(neighbour)
    if begun is None or ended is None:
        return None
    elapsed = last.clock - first.clock
    if what == "heard":  # it was sent so long before: while a link gets older, packets wait on it
        elapsed -= ended.age - begun.age
    if elapsed <= 0:
        return None
    return max(0, int(getattr(ended, what)) - int(getattr(begun, what))) / elapsed


@dataclass(slots=True)
class LagAlarm:
    """Readings of one leadership. Times are those of the leader's clock, in nanoseconds."""

    topology: Topology
    interval: int
    #: Links that are reported, and how many were since the start.
    lagging: dict[Link, Lagging] = field(default_factory=dict)
    reported: int = 0
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _seen: dict[Link, _Seen] = field(default_factory=dict)
    #: Links that have lagged for long enough, and are not reported yet.
    _waiting: dict[Link, _Seen] = field(default_factory=dict)

    def read(self, reading: NodeReading) -> list[Lagging]:
        """Take what a node has read; return what is reported because of it."""
        known = self._nodes.get(reading.node)
        if known is None:  # those that have failed are forgotten as others come
            oldest = self.oldest(reading.at)
            self._nodes = {id: one for id, one in self._nodes.items() if one.last.at >= oldest}
            self._nodes[reading.node] = _Node(reading)
        else:
            known.readings.append(reading)
        found = self.expire(reading.at)
        switch = self.topology.switches.get(reading.node)
        if switch is not None:
            found += self._compare_halves(reading, {*switch.upper})
        for link, seen in [*self._waiting.items()]:
            found += self._tell(link, seen, reading.at)
        return found

    def expire(self, now: int) -> list[Lagging]:
        """Return the links that lag no more because their nodes have failed, or read no links."""
        oldest = self.oldest(now)
        return [
            over
            for link in [*self._seen]
            if (node := self._nodes.get(link.node)) is None or node.last.at < oldest
            for over in self._over(link)
        ]

    def forget(self) -> list[Lagging]:
        """Forget all readings; return the links that are not known to lag any more."""
        self._nodes.clear()
        return [over for link in [*self._seen] for over in self._over(link)]

    def oldest(self, now: int) -> int:
        """When a node must have been read at the earliest to be known."""
        return now - max(FRESH_INTERVALS * self.interval, UNREAD_NS_MIN)

    def pauses(self, node: int, now: int) -> bool:
        """Whether a node has stopped, or ran late more than once."""
        found = self._fresh(node, now)
        return found is None or found.late > CAUSE_INTERVALS * self.interval

    # -- one half ------------------------------------------------------------------------------

    def _compare_halves(self, reading: NodeReading, upper: Set[int]) -> Iterator[Lagging]:
        above = [one for one in reading.links.values() if one.neighbour in upper]
        below = [one for one in reading.links.values() if one.neighbour not in upper]
        for half in (below, above):
            yield from self._compare(reading, half)
        for link in [one for one in self._seen if one.node == reading.node]:
            if link.neighbour not in reading.links:
                yield from self._over(link)  # it was removed

    def _compare(self, reading: NodeReading, half: Sequence[LinkReading]) -> Iterator[Lagging]:
        """Compare the inputs of one half of a switch: one alone has nothing to compare with."""
        usual = self._usual(half)
        for one in half:
            link = Link(reading.node, one.neighbour)
            behind = one.age - usual
            if len(half) < 2 or behind <= LAG_INTERVALS * self.interval:
                yield from self._over(link)
                continue
            seen = self._seen.setdefault(link, _Seen(reading.at))
            seen.behind, seen.limit = behind, usual + behind // 2
            # Readings come a little sooner or later than they are due.
            lasting = LASTING_INTERVALS - READ_INTERVALS // 2
            if seen.told is None and reading.at - seen.since >= lasting * self.interval:
                self._waiting[link] = seen

    def _tell(self, link: Link, seen: _Seen, now: int) -> Iterator[Lagging]:
        """Report a link that waits, unless its hop must be read again first."""
        hop = self._lowest(link, seen.limit, now)
        old = self._nodes[hop.node].old(hop.neighbour, seen.limit)
        sender = self._fresh(hop.neighbour, now)
        is_known = len(old) == _KEPT and (sender is None or sender.is_known(seen.since))
        if not is_known and now - seen.since <= _PATIENCE_INTERVALS * self.interval:
            return
        del self._waiting[link]
        known = (one.cause for one in self.lagging.values() if one.hop == hop)
        cause = next(known, None) or self._cause(hop, old, seen.since, now)
        seen.told = self.lagging[link] = Lagging(link, hop, cause, seen.behind, seen.since)
        self.reported += 1
        yield seen.told

    @staticmethod
    def _usual(half: Sequence[LinkReading]) -> int:
        """The median age; of two inputs that of the fresher one."""
        return -median_high([-one.age for one in half]) if half else 0

    def _over(self, link: Link) -> Iterator[Lagging]:
        seen = self._seen.pop(link, None)
        self._waiting.pop(link, None)
        if seen is not None and seen.told is not None:
            del self.lagging[link]
            yield seen.told._replace(is_over=True)

    # -- where and why -------------------------------------------------------------------------

    def _lowest(self, link: Link, limit: int, now: int) -> Link:
        """Return the link at which the lag begins, following inputs that are as old down.

        `limit` lies between the age that is usual and that of the link.
        """
        switches = self.topology.switches
        passed = {link.node}
        while link.neighbour not in passed:
            passed.add(link.neighbour)
            node = self._fresh(link.neighbour, now)
            if node is None or link.neighbour not in switches:
                break
            upper = switches[link.neighbour].upper
            # What goes up has come from below; what goes down has come from everywhere.
            unrelated = {*passed, *(upper if link.node in upper else ())}
            others = [one for one in node.last.links.values() if one.neighbour not in unrelated]
            oldest = max(others, key=lambda one: one.age, default=None)
            if oldest is None or oldest.age <= limit:
                break
            link = Link(link.neighbour, oldest.neighbour)
        return link

    def _fresh(self, node: int, now: int) -> _Node | None:
        found = self._nodes.get(node)
        if found is None or now - found.last.at > FRESH_INTERVALS * self.interval:
            return None
        return found

    def _cause(self, hop: Link, old: Sequence[NodeReading], since: int, now: int) -> Cause:
        """Return why a hop lags. `old` are the readings of its node in which it did."""
        limit = CAUSE_INTERVALS * self.interval
        sender = self._fresh(hop.neighbour, now)
        if sender is None:
            return Cause.STOPPED
        if sender.behind(since) > limit:
            return Cause.CLOCK
        if self.pauses(hop.neighbour, now):
            return Cause.STOPPED
        # The two nodes read at different moments: what each of them counts is a rate.
        sent = _rate(sender.readings, hop.node, "sent")
        heard = _rate(old, hop.neighbour, "heard")
        if not sent or heard is None:
            return Cause.QUEUE
        return Cause.LOSS if 1 - heard / sent > LOSS_SHARE else Cause.QUEUE
