"""Chooses the next grant and its consumer: only in that do the modes of clusters differ.

What pickers know is soft: a new leader makes new ones, which find out from the state and the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Protocol

import msgspec
from msgspec import structs

from weir.broker.consumers.leases import Attempts, BegunMessages, Leases
from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Wait, Waits
from weir.broker.runtime.reads import MessageReading, Reads, read_messages
from weir.broker.state.clusters import ClusterState, Grant
from weir.broker.state.ranges import Ranges
from weir.broker.state.state import PartitionState
from weir.errors import Refused
from weir.model.limits import GRANT_RUNS_MAX, WATCHED_MAX
from weir.model.topic import Mode
from weir.order.clock import HybridClock, Time, stamp_at
from weir.protocol.client.messages import Pull

Run = tuple[int, int]

#: By how many bits a grant is smaller, by how often it was tried in vain; from then on, alone.
_SMALLER_BITS = (0, 0, 3)
#: However many wait, a grant may be so small a part of what was asked for, and no smaller.
_MOMENTS = 64
#: A grant of several runs spans at most so many times the messages that were asked for.
_SPAN = 16
#: Instead of a peer's session: the first consumer in the queue.
ANYBODY = 0


class PullQueue(msgspec.Struct):
    """One cluster's pulls in line, and the ranges of its grants that are proposed.

    `watches` are pulls of no message: they are told when there is something that nobody pulls.
    """

    pulls: Waits[Pull] = msgspec.field(default_factory=Waits)
    watches: Waits[Pull] = msgspec.field(default_factory=Waits)
    proposed: list[tuple[int, int]] = msgspec.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.pulls or self.watches or self.proposed)

    def pop_watches(self, messages: int) -> list[Wait[Pull]]:
        """Take out as many watches as there are messages that nobody pulls.

        One message does not wake a thousand consumers; if those who were told do not come for it,
        the next are told at the next tick.
        """
        return [self.watches.pop() for _ in range(min(messages, len(self.watches)))]

    def pop_all(self) -> Iterator[Wait[Pull]]:
        """Take out all who wait, one by one."""
        for waits in (self.pulls, self.watches):
            while waits:
                yield waits.pop()

    def withdrawn(self, session: int) -> list[Wait[Pull]]:
        """Take out all of a peer."""
        return self.pulls.withdrawn(session) + self.watches.withdrawn(session)

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self.pulls.closed(session)
        self.watches.closed(session)

    def rests(self, session: int, runs: Sequence[Run]) -> None:
        """A peer gave back `runs`: its pulls no longer say that it works on them."""

        def rested(request: Pull) -> Pull:
            if not request.begun:
                return request
            begun = Ranges(request.begun)
            for run in runs:
                begun.discard(*run)
            return structs.replace(request, begun=[*begun])

        for waits in (self.pulls, self.watches):
            waits.change(session, rested)

    def holds(self, session: int) -> bool:
        """Return whether a peer waits."""
        return self.pulls.holds(session) or self.watches.holds(session)

    def is_proposed(self, first: int, behind: int) -> bool:
        """Return whether some of [first, behind) is being granted."""
        return any(first < b and a < behind for a, b in self.proposed)


class Pick(msgspec.Struct, frozen=True):
    """Messages [first, behind) to grant, or of these the `runs` if there are several, and the whole
    entries that hold them.
    """

    first: int
    behind: int
    reading: MessageReading
    runs: tuple[Run, ...] = ()

    @property
    def parts(self) -> tuple[Run, ...]:
        """Its runs, also if it is one."""
        return self.runs or ((self.first, self.behind),)


class Granter(Protocol):
    """Grants the messages that pickers find: it is told when a read of theirs has ended."""

    def serve(self, name: str) -> None:
        """Grant a cluster what it may be granted."""

    def serve_all(self) -> None:
        """Grant every cluster what it may be granted."""


class PickerContext(msgspec.Struct, frozen=True):
    """What all pickers of a partition work with, while this node leads it."""

    granter: Granter
    group: Group
    state: PartitionState
    leases: Leases
    reads: Reads
    time: Time
    clock: HybridClock
    #: Entries that could not be read: each is granted alone, so that it keeps back no other.
    doubtful: Ranges
    #: What consumers say that they work on.
    begun: BegunMessages

    def read(
        self, first: int, behind: int, size: int, tags: frozenset[str] = frozenset()
    ) -> MessageReading | None:
        """Plan to read the whole entries that hold [first, behind), those within `size` bytes;
        with `tags`, those that have one, as far as that is known.
        """
        group = self.group
        return read_messages(
            group.log.reader, group.id, self.state.staging, first, size,
            group.node.log.committed, behind, tags or None,
        )  # fmt: skip

    def due_ms(self) -> int:
        """Return up to which time messages are due, in ms since 1970: what the wall clock says.

        Stamps may be ahead of it, after an election for example, and a delay ends by the time. No
        grant from here on is stamped below it, on whichever node.
        """
        now_ms = self.time.wall_ms()
        self.clock.raise_to(stamp_at(now_ms))
        return now_ms


class Unwanted:
    """Messages without a tag of one cluster that are not known to be done yet (docs/adr/0115).

    That they are done is an entry, which is proposed with the next grant, or at the next tick.
    """

    __slots__ = ("_context", "_name", "_untold", "is_urgent", "known", "tags")

    def __init__(self, context: PickerContext, name: str, tags: frozenset[str]) -> None:
        """Begin with none; without `tags` there never are any."""
        self._context = context
        self._name = name
        self.tags = tags
        #: All of them.
        self.known = Ranges()
        #: Of these, what no entry is proposed for.
        self._untold = Ranges()
        #: Whether the entry is waited for: messages behind these are looked for by it.
        self.is_urgent = False

    def __bool__(self) -> bool:
        """Whether an entry is to be proposed."""
        return bool(self._untold)

    def add(self, first: int, behind: int) -> None:
        """Messages [first, behind) have none of the tags."""
        cluster = self._context.state.clusters.get(self._name)
        runs = [(first, behind)] if cluster is None else cluster.not_done(first, behind)
        for start, end in runs:
            while start < end:
                begin, after = self.known.gap_from(start, end)
                self._untold.add(begin, after)
                self.known.add(begin, after)
                start = after

    def add_of(self, runs: Sequence[Run], first: int, behind: int) -> None:
        """What of these runs lies in [first, behind) has none of the tags."""
        for run in Ranges(runs).within(first, behind):
            self.add(*run)

    def take(self) -> list[Run]:
        """Return runs for one entry, which is proposed now."""
        runs = [run for run, _ in zip(self._untold, range(GRANT_RUNS_MAX), strict=False)]
        for run in runs:
            self._untold.discard(*run)
        return runs

    def put_back(self, runs: Iterable[Run]) -> None:
        """The entry could not be proposed."""
        for run in runs:
            self._untold.add(*run)

    def done(self, runs: Iterable[Run]) -> None:
        """An entry says that these are done."""
        for run in runs:
            self.known.discard(*run)
            self._untold.discard(*run)

    def drop_below(self, start: int) -> None:
        """Messages below `start` are gone."""
        self.done([(0, start)])

    def passed(self, first: int, limit: int) -> int:
        """Return the first offset from `first` on, `limit` at most, that may be wanted and is not
        done, as far as is known.
        """
        cluster = self._context.state.clusters.get(self._name)
        at = -1
        while first != at:
            at = first
            first = self.known.gap_from(first, limit)[0]
            if cluster is not None:
                first = cluster.done.gap_from(max(first, cluster.cursor), limit)[0]
        return first

    def leave(self, first: int, limit: int, size: int) -> Ranges:
        """Return what may be wanted of the next entries in [first, limit), of up to `size` bytes;
        nothing if none is before `limit`, or as far as was looked.
        """
        left = Ranges()
        reading = self._context.read(first, limit, size, self.tags)
        if reading is None:
            left.add(first, limit)  # it is lost: its reader gets the error
            return left
        for begin, end in reading.skipped:
            self.add(max(begin, first), min(end, limit))
        reached = min(reading.next_offset, limit)
        left.add(first, reached)
        cluster = self._context.state.clusters.get(self._name)
        for done in (self.known, cluster.done) if cluster is not None else (self.known,):
            for run in done.within(first, reached):
                left.discard(*run)
        self.is_urgent = self.is_urgent or (not left and reached < limit)
        return left


class Picker:
    """Shares out the messages of one cluster: to the first consumer in the queue, unless the mode
    says otherwise.
    """

    __slots__ = ("_context", "_name", "is_barred", "unwanted")

    mode: ClassVar[Mode]

    def __init__(
        self, context: PickerContext, name: str, tags: frozenset[str] = frozenset()
    ) -> None:
        """Pick for the cluster `name`, which takes messages with one of these `tags`, or all."""
        self._context = context
        self._name = name
        #: What it leaves out.
        self.unwanted = Unwanted(context, name, tags)
        #: Whether the last `pick` passed by messages that others may be granted: their peer works
        #: on them already, or waits for more.
        self.is_barred = False

    @property
    def _cluster(self) -> ClusterState | None:
        return self._context.state.clusters.get(self._name)

    def _portion(self, first: int, most: int) -> int:
        """Return how many of `most` messages to grant from `first` on.

        What was tried in vain before goes out in smaller grants, and soon alone; and never with
        what was tried less often: else a message that kills its consumers takes those along that
        were granted with it.
        """
        cluster = self._cluster
        if cluster is None or first >= cluster.frontier:
            return most
        tries = Attempts(self._context.begun, self._name, cluster)
        attempts, end = tries.alike(first, first + most)
        return min(fewer(most, attempts), end - first)

    # -- what to grant -----------------------------------------------------------------------

    def next_peer(self, queue: PullQueue) -> int | None:
        """Return the peer whose pull is next, or `ANYBODY`; None if nobody may have anything."""
        return ANYBODY

    def pick(self, queue: PullQueue, request: Pull) -> Pick | None:
        """Return what to grant to the peer whose turn it is, which is done at once; or nothing.

        It is granted nothing that it works on (`Pull.begun`).
        """
        return None

    def offered(self, queue: PullQueue) -> Run:
        """Return a range of which something could be granted, empty if there is nothing."""
        return 0, 0

    def pop_watches(self, queue: PullQueue) -> tuple[Run, Sequence[Wait[Pull]]]:
        """Take those watches out who are to be told that there is something, and say where."""
        first, behind = self.offered(queue)
        return (first, behind), queue.pop_watches(min(behind - first, WATCHED_MAX))

    # -- what became of it -------------------------------------------------------------------

    def took(self, session: int, request: Pull, pick: Pick) -> None:
        """What was picked is proposed."""

    def gave_up(self, pick: Pick) -> None:
        """What was picked could not be proposed."""

    def granted(self, pick: Pick, grant: Grant | None) -> None:
        """What was picked is granted, as far as no ack came before it."""

    def handed_out(self, fence: int, behind: int) -> None:
        """Of the last grant, what lies below `behind` has left: the rest could not be read, or its
        consumer is gone.
        """

    def has_left(self, fence: int, behind: int) -> None:
        """Its consumer has all of a grant below `behind`, by an earlier session."""

    def done(self, runs: Sequence[Run]) -> None:
        """Messages that were granted are done."""

    def unread(self, fence: int, first: int, behind: int) -> None:
        """Of a grant, what lies from `first` on cannot be read: it comes again after the lease."""

    def closed(self, session: int) -> None:
        """A peer is gone."""

    def moved(self, session: int) -> None:
        """What a peer was granted is acked by another one: its client has another connection."""

    def start_moved(self, start: int) -> None:
        """Messages below `start` are gone."""

    @property
    def failure(self) -> Refused | None:
        """Why nothing can be picked, if it is not that there is nothing: told once."""
        return None

    @property
    def is_looking(self) -> bool:
        """Whether something is under way that decides what to grant: no pull ends meanwhile."""
        return False

    @property
    def delayed(self) -> int:
        """How many messages were passed by because they are not due, as far as is known."""
        return 0


def runs_of(among: Ranges, first: int, behind: int, most: int) -> tuple[Run, ...]:
    """Return the runs in [first, behind) that make up to `most` messages."""
    found: list[Run] = []
    for start, end in among.within(first, min(behind, first + _SPAN * most)):
        found.append((start, min(end, start + most)))
        most -= found[-1][1] - start
        if not most or len(found) == GRANT_RUNS_MAX:
            break
    return tuple(found)


def share(most: int, there: int, queue: PullQueue) -> int:
    """Return how many of `most` messages to grant to the first in line, of so many that are there.

    As many as all who wait may have, so that nobody takes what is left for the others; but no less
    than what it works off in a moment, for a client asks for what it works off in a second.
    """
    waiting = queue.pulls.peers
    if waiting < 2:
        return most
    return min(most, max(-(-there // waiting), most // _MOMENTS, 1))


def fewer(most: int, attempts: int) -> int:
    """Return how many of `most` messages to grant that were tried so often before."""
    return max(most >> _SMALLER_BITS[attempts], 1) if attempts < len(_SMALLER_BITS) else 1
