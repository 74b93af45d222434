"""What readers ask of one partition: messages by offset, with long poll, chunks by the index of
their entries, and positions.

A poll is a notify waited for. A replica that does not lead serves what it has applied: that is
committed, whether the replica lags or not. Positions of a stamp hold: nothing below it is still on
its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from weir.broker.produce.appender import Appender
from weir.broker.records.entries import of_control
from weir.broker.records.partition import StampsRaised
from weir.broker.replica.group import Group
from weir.broker.replica.requests import assured, no_leader
from weir.broker.runtime.filtering import filtered
from weir.broker.runtime.outbox import Caller, Outbox, Wait, Waits
from weir.broker.runtime.reads import (
    PublishedReading,
    Reads,
    batches_in,
    read_messages,
    without,
)
from weir.broker.state.ranges import Ranges
from weir.broker.state.staging import StagingTable
from weir.broker.state.state import PartitionState
from weir.codec import Buffer
from weir.errors import (
    BadRequest,
    DamagedRange,
    NotLeader,
    OffsetOutOfRange,
    Refused,
    Unavailable,
    ValueLost,
)
from weir.model.ids import node_of
from weir.model.limits import CHUNKS_PER_FETCH_MAX, FETCH_BYTES_MAX, WAIT_MS_MAX
from weir.order.clock import Time
from weir.protocol.client.messages import Fetch, FetchChunks, Fetched, FetchedChunks, PositionsReply
from weir.storage.log_reader import LogReader

#: Far above what a commit takes, and below what a client waits for an answer.
_WAIT_MS_MAX = 10_000


class FetchedPartition(Protocol):
    """A partition, as far as its fetches know it."""

    def begin_waiting(self, until_ms: int = 0) -> None:
        """Be told of messages, and that time passes from `until_ms` on, until nobody waits."""

    def order(self) -> tuple[int, int]:
        """Return its barrier, and how many partitions its topic is of: see `Fetched`."""


class Fetches:
    """Serves fetches, and parks those that are at the end until data or their deadline comes."""

    __slots__ = (
        "_draining",
        "_group",
        "_outbox",
        "_parked",
        "_partition",
        "_reads",
        "_state",
        "_time",
    )

    def __init__(
        self, group: Group, state: PartitionState, reads: Reads, outbox: Outbox, time: Time,
        partition: FetchedPartition,
    ) -> None:  # fmt: skip
        """Serve one partition; nobody waits yet."""
        self._partition = partition
        self._group = group
        self._state = state
        self._reads = reads
        self._outbox = outbox
        self._time = time
        self._parked: Waits[Fetch] = Waits()
        self._draining = False

    def fetch(self, caller: Caller, request: Fetch) -> None:
        """Answer now if there is data or no time to wait. A replica may lag: what lies ahead of
        it is waited for.

        Raises `OffsetOutOfRange`, and `Overloaded` or `Unavailable` where nobody may wait. A client
        that has read in a lineage of which nothing is known here is told that this is no leader.
        """
        if request.offset > self._state.next_offset and not request.replica:
            # Other replicas may have served messages that this leader's own disk does not hold yet,
            # and a deposed leader may not know of its successor, nor of the messages that were read
            # there.
            assured(self._group, self._outbox, caller, partial(self._fetch, caller, request))
        else:
            self._fetch(caller, request)

    def _fetch(self, caller: Caller, request: Fetch) -> None:
        start, behind = self._state.log_start, self._state.next_offset
        self._check_lineage(request)
        if request.offset > behind and not request.replica:
            raise request.beyond(start, behind, self._state.membership.forks)
        if request.offset < start:
            raise OffsetOutOfRange(
                f"offset {request.offset} is not there: this partition holds {start} to {behind}",
                start,
            )
        wait_ms = min(request.wait_ms, WAIT_MS_MAX)
        if request.offset < self._state.decided_offset:
            self._serve(caller, request)
        elif wait_ms > 0:
            if self._draining:
                raise Unavailable("this node is stopping: wait at another, or again shortly")
            self._parked.check_room()
            until_ms = self._time.monotonic_ms() + wait_ms
            self._partition.begin_waiting(until_ms)
            self._parked.add(Wait(caller, request, until_ms))
        else:
            self._answer(caller, request, request.offset, ())

    def _check_lineage(self, request: Fetch) -> None:
        """Raise why what comes at an offset is not what follows on what the client has read."""
        known, state = self._state.membership, self._state
        if request.lineage in (known.lineage, -1):
            return
        if request.lineage > known.lineage:
            # A home that was left behind and does not know it, or a copy that lags.
            raise NotLeader(
                f"this node has not heard of lineage {request.lineage} of the partition, in which "
                "you have read: another one leads it",
                0,
            )
        if 0 <= known.fork_of(request.lineage) < request.offset:
            raise request.beyond(state.log_start, state.next_offset, known.forks)

    @property
    def waiting(self) -> bool:
        """Whether somebody waits."""
        return bool(self._parked)

    @property
    def due_ms(self) -> int:
        """The monotonic time before which nobody has waited long enough."""
        return self._parked.due_ms

    def answer_ready(self) -> None:
        """New messages are applied: answer all, in turn, for all waited for the next offset; but
        not those who ask a replica that lags for what lies ahead of it.
        """
        if not self._parked:
            return
        parked, self._parked = self._parked, Waits()
        while parked:
            waiter = parked.pop()
            if waiter.request.offset < self._state.decided_offset:
                self._serve(waiter.caller, waiter.request)
            else:
                self._parked.add(waiter)

    def roster_grew(self) -> None:
        """More partitions belong to the topic's order: answer all with nothing, which says so."""
        self._answer_all()

    def expire(self) -> None:
        """Answer those whose time is up, with nothing."""
        for waiter in self._parked.ended(self._time.monotonic_ms()):
            self._answer(waiter.caller, waiter.request, waiter.request.offset, ())

    def drain(self) -> None:
        """Answer all with nothing, and let nobody wait any more: the node stops."""
        self._draining = True
        self._answer_all()

    def _answer_all(self) -> None:
        while self._parked:
            waiter = self._parked.pop()
            self._answer(waiter.caller, waiter.request, waiter.request.offset, ())

    def end(self, error: Refused) -> None:
        """The topic is gone: refuse all who wait."""
        while self._parked:
            self._outbox.refuse(self._parked.pop().caller, error)

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self._parked.closed(session)

    def _serve(self, caller: Caller, request: Fetch) -> None:
        if request.tags:
            self._serve_tags(caller, request)
        else:
            self._serve_all(caller, request)

    def _serve_tags(self, caller: Caller, request: Fetch) -> None:
        """Serve what has wanted tags; an answer without any tells how far was looked, so that
        a reader that merges partitions goes on.
        """
        tags, group = frozenset(request.tags), self._group.id
        reading = read_messages(*self._scope(request), tags)
        if reading is None:
            self._answer_nothing(caller, request)
            return
        known = Ranges(self._state.voids.within(request.offset, reading.next_offset))

        def answer(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            if failure is not None:
                self._outbox.refuse(caller, failure)
                return
            staged = reading if isinstance(reading, PublishedReading) else None
            found = filtered(
                batches_in(payloads),
                request.offset,
                reading.reached(payloads),
                reading.skipped,
                known,
                tags,
                group,
                self._reads.slices,
                ends_early=staged is None,  # all of a stamp, or it is said to be cut
            )
            self._answer(
                caller,
                request,
                found.behind,
                found.batches,
                tuple(known.within(request.offset, found.behind)),
                staged is not None and staged.is_cut(payloads),
                staged is not None and staged.is_alike,
                found.skipped,
            )

        self._reads.start(reading, answer)

    def _scope(self, request: Fetch) -> tuple[LogReader, int, StagingTable, int, int, int, int]:
        """Return where it is to be read, and how much of it."""
        return (
            self._group.log.reader,
            self._group.id,
            self._state.staging,
            request.offset,
            min(max(request.max_bytes, 1), FETCH_BYTES_MAX),
            # What an entry means, and who belongs to the order by it, is known once it is applied.
            self._group.node.log.applied,
            self._state.decided_offset,
        )

    def _serve_all(self, caller: Caller, request: Fetch) -> None:
        reading = read_messages(*self._scope(request))
        if reading is None:
            self._answer_nothing(caller, request)
            return
        # As they are now: of what goes past retention while it is read, they are forgotten.
        known = Ranges(self._state.voids.within(request.offset, reading.next_offset))

        def answer(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            if failure is not None:
                self._outbox.refuse(caller, failure)
            else:
                behind = reading.reached(payloads)
                voids = known.within(request.offset, behind)
                if voids:
                    payloads = without(payloads, known)
                is_cut = is_alike = False
                if isinstance(reading, PublishedReading):
                    is_cut, is_alike = reading.is_cut(payloads), reading.is_alike
                self._answer(
                    caller, request, behind, tuple(payloads), tuple(voids), is_cut, is_alike
                )

        self._reads.start(reading, answer)

    def _answer_nothing(self, caller: Caller, request: Fetch) -> None:
        """There is nothing in the log: of what is committed, that means that it is lost."""
        if not self._state.log_start <= request.offset < self._state.next_offset:
            self._answer(caller, request, request.offset, ())
            return
        if request.replica and self._group.leader != self._group.voter:
            # Messages that a snapshot covers may still be on their way here: the leader has them.
            self._outbox.refuse(caller, no_leader(node_of(self._group.leader)))
            return
        damage = self._group.damage
        lost = DamagedRange(
            f"the messages from offset {request.offset} on are lost on this node: read on behind "
            "them, or restore its folder from a backup",
            damage.position if damage is not None else 0,
        )
        self._outbox.refuse(caller, lost)

    def _answer(
        self,
        caller: Caller,
        request: Fetch,
        behind: int,
        batches: tuple[Buffer, ...],
        voids: tuple[tuple[int, int], ...] = (),
        is_cut: bool = False,
        is_alike: bool = False,
        skipped: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Answer; several `batches` have one stamp if they are `is_alike`, see `Fetched.is_cut`."""
        try:
            check_equal_stamps(request, is_alike or is_cut)
            self._check_lineage(request)  # another one may have begun meanwhile
        except Refused as error:
            self._outbox.refuse(caller, error)
            return
        committed, order = self._state.decided_offset, self._partition.order()
        fetched = Fetched(
            request.address, request.offset, behind, committed, batches, *order, voids, is_cut,
            bool(request.tags), skipped, self._state.membership.lineage,
        )  # fmt: skip
        self._outbox.reply(caller, fetched)


def check_equal_stamps(request: Fetch, is_alike: bool) -> None:
    """Raise `BadRequest` for a client of an earlier release where several batches are stamped
    alike: in total order it would take the first of them for all there is.
    """
    if is_alike and not request.equal_stamps:
        raise BadRequest(
            f"several batches from offset {request.offset} on have one stamp, which this client "
            "does not know of: upgrade it to the broker's release"
        )


def check_replica(group: Group) -> None:
    """Raise `Unavailable` or `NotLeader` unless this replica can be read: it lacks nothing of what
    it has applied, and hears of a leader, so that it will not lag for ever.
    """
    error = _unfit(group)
    if error is not None:
        raise error


def end_if_astray(group: Group, fetches: Fetches) -> None:
    """Send away all who wait at a replica that cannot be read any more."""
    if fetches.waiting and (error := _unfit(group)) is not None:
        fetches.end(error)


def _unfit(group: Group) -> Refused | None:
    if group.damage is not None or group.is_incomplete:
        return no_leader(node_of(group.leader))
    if not group.is_current:
        return Unavailable("this replica knows of no leader: read from another one")
    return None


class ChunkReads:
    """Serves one partition's chunks; nothing waits here, for what is referred to is committed."""

    __slots__ = ("_group", "_outbox", "_reads")

    def __init__(self, group: Group, reads: Reads, outbox: Outbox) -> None:
        """Serve what the group's log holds."""
        self._group = group
        self._reads = reads
        self._outbox = outbox

    def fetch(self, caller: Caller, request: FetchChunks) -> None:
        """Answer with at least one entry. Raises `BadRequest`, and `ValueLost` where none lies."""
        if request.index < 1 or request.count < 1:
            raise BadRequest("chunks lie in entries from 1 on: ask for one or more")
        reading = self._group.log.reader.read_entries(
            self._group.id,
            range(request.index, request.index + min(request.count, CHUNKS_PER_FETCH_MAX)),
            min(max(request.max_bytes, 1), FETCH_BYTES_MAX),
            self._group.node.log.committed,
        )
        if reading is None:
            raise ValueLost(
                f"no chunk lies in entry {request.index}: it is past retention, or the references "
                "are not of this partition"
            )

        def answer(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            if failure is not None:
                self._outbox.refuse(caller, failure)
            else:
                reply = FetchedChunks(request.address, request.index, tuple(payloads))
                self._outbox.reply(caller, reply)

        self._reads.start(reading, answer)


def positions_of(group: Group, state: PartitionState, stamp: int) -> PositionsReply:
    """Return where it begins, where it ends, and where messages from `stamp` on begin."""
    begin, end = state.log_start, state.decided_offset
    if not stamp:
        return PositionsReply(begin, end, begin)
    # What others have committed may not be durable here yet, and is cut at all the same.
    entry = group.log.reader.entry_above(group.id, stamp - 1)
    return PositionsReply(begin, end, end if entry is None else min(max(entry[1], begin), end))


class PositionWaiter(NamedTuple):
    """A question for the positions of a stamp, and the offset and bound to be committed first."""

    stamp: int
    behind: int
    bound: int


class StablePositions:
    """Answers requests once the batches accepted before them are committed, while this node
    leads.
    """

    __slots__ = ("_appender", "_group", "_outbox", "_promised", "_state", "_time", "_waits")

    def __init__(
        self, group: Group, appender: Appender, state: PartitionState, outbox: Outbox, time: Time
    ) -> None:
        """Begin to lead; nobody waits yet."""
        self._group = group
        self._appender = appender
        self._state = state
        self._outbox = outbox
        self._time = time
        #: The highest bound that was proposed, so that the next leader knows it too.
        self._promised = 0
        self._waits: Waits[PositionWaiter] = Waits()

    def __len__(self) -> int:
        return len(self._waits)

    def ask(self, caller: Caller, stamp: int) -> None:
        """Stamp `stamp` or higher from now on, and answer once all that is accepted is committed.

        A stamp further ahead than a client may have seen is no bound: others may come below it.
        Raises `Overloaded` where nobody may wait, and what `Group.propose` does.
        """
        bound = self._appender.clock.clamp(self._time.wall_ms(), stamp - 1)
        self._appender.clock.raise_to(bound)
        bound = self._promise(bound)
        behind = self._appender.next_offset
        if self._is_kept(behind, bound):
            self._outbox.reply(caller, positions_of(self._group, self._state, stamp))
            return
        self._waits.check_room()
        deadline = self._time.monotonic_ms() + _WAIT_MS_MAX
        self._waits.add(Wait(caller, PositionWaiter(stamp, behind, bound), deadline))

    def _promise(self, bound: int) -> int:
        """Return the bound that must be committed: a promise holds beyond this leadership.

        A lone voter leads next itself, and its clock goes on.
        """
        if not self._group.has_others:
            return 0
        if bound > max(self._state.last_stamp, self._promised):
            self._group.propose(of_control(StampsRaised(bound)))
            self._promised = bound
        return bound

    def raise_above(self, promised: int) -> None:
        """Propose an entry that is stamped above all that was `promised`, unless there is one."""
        if promised > max(self._state.last_stamp, self._promised):
            stamp = self._appender.clock.stamp(self._time.wall_ms())
            self._group.propose(of_control(StampsRaised(stamp)))
            self._promised = stamp

    def _is_kept(self, behind: int, bound: int) -> bool:
        return self._state.decided_offset >= behind and self._state.last_stamp >= bound

    def answer_committed(self) -> None:
        """More is committed: answer those who waited for it."""
        while self._waits and self._is_kept(*self._waits.first().request[1:]):
            wait = self._waits.pop()
            positions = positions_of(self._group, self._state, wait.request.stamp)
            self._outbox.reply(wait.caller, positions)

    def expire(self) -> None:
        """Refuse requests that waited for too long."""
        for wait in self._waits.ended(self._time.monotonic_ms()):
            slow = Unavailable("writes under way in this partition take long: ask again shortly")
            self._outbox.refuse(wait.caller, slow)

    def end(self, error: Refused) -> None:
        """The topic is gone: refuse all who wait."""
        while self._waits:
            self._outbox.refuse(self._waits.pop().caller, error)

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self._waits.closed(session)
