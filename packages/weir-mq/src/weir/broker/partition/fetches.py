"""Reads from one partition: by offset, with long poll, and of chunks by the index of their entries.

A poll is a notify waited for. A replica that does not lead serves what it has applied: that is
committed, whether the replica lags or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from weir.broker.replica.group import Group
from weir.broker.replica.requests import assured, no_leader
from weir.broker.runtime.outbox import Caller, Outbox, Wait, Waits
from weir.broker.runtime.reads import Reads, without
from weir.broker.state.ranges import Ranges
from weir.broker.state.state import PartitionState
from weir.codec.fields import Buffer
from weir.errors import BadRequest, DamagedRange, OffsetOutOfRange, Refused, Unavailable, ValueLost
from weir.model.ids import node_of
from weir.model.limits import CHUNKS_PER_FETCH_MAX, FETCH_BYTES_MAX, WAIT_MS_MAX
from weir.order.clock import Time
from weir.protocol.client.messages import Fetch, FetchChunks, Fetched, FetchedChunks


class FetchedPartition(Protocol):
    """A partition, as far as its fetches know it."""

    def begin_waiting(self) -> None:
        """Be told that time passes and messages come, until nobody waits."""

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

        Raises `OffsetOutOfRange`, and `Overloaded` or `Unavailable` where nobody may wait.
        """
        if request.offset > self._state.next_offset and not request.replica:
            # Others may have handed out what this leader's own disk does not hold yet, and whoever
            # led before the others chose another leader may not know of that one, nor of what was
            # read there.
            assured(self._group, self._outbox, caller, partial(self._fetch, caller, request))
        else:
            self._fetch(caller, request)

    def _fetch(self, caller: Caller, request: Fetch) -> None:
        start, behind = self._state.log_start, self._state.next_offset
        ahead = request.offset > behind and not request.replica
        if request.offset < start or ahead:
            raise OffsetOutOfRange(
                f"offset {request.offset} is not there: this partition holds {start} to {behind}",
                min(max(request.offset, start), behind),
            )
        wait_ms = min(request.wait_ms, WAIT_MS_MAX)
        if request.offset < self._state.decided_offset:
            self._serve(caller, request)
        elif wait_ms > 0:
            if self._draining:
                raise Unavailable("this node is stopping: wait at another, or again shortly")
            self._parked.check_room()
            self._partition.begin_waiting()
            self._parked.add(Wait(caller, request, self._time.monotonic_ms() + wait_ms))
        else:
            self._answer(caller, request, request.offset, ())

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

    def expire(self) -> None:
        """Answer those whose time is up, with nothing."""
        for waiter in self._parked.ended(self._time.monotonic_ms()):
            self._answer(waiter.caller, waiter.request, waiter.request.offset, ())

    def drain(self) -> None:
        """Answer all with nothing, and let nobody wait any more: the node stops."""
        self._draining = True
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
        reading = self._group.log.reader.read(
            self._group.id,
            request.offset,
            min(max(request.max_bytes, 1), FETCH_BYTES_MAX),
            # What an entry means, and who belongs to the order by it, is known once it is applied.
            self._group.node.applied_index,
            self._state.decided_offset,
        )
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
                self._answer(caller, request, behind, tuple(payloads), tuple(voids))

        self._reads.start(reading, answer)

    def _answer_nothing(self, caller: Caller, request: Fetch) -> None:
        """There is nothing in the log: of what is committed, that means that it is lost."""
        if not self._state.log_start <= request.offset < self._state.next_offset:
            self._answer(caller, request, request.offset, ())
            return
        if request.replica and self._group.leader != self._group.voter:
            # What a snapshot covers may be on its way here still: who leads has it.
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
    ) -> None:
        committed, order = self._state.decided_offset, self._partition.order()
        self._outbox.reply(
            caller,
            Fetched(request.address, request.offset, behind, committed, batches, *order, voids),
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
            request.index,
            min(request.count, CHUNKS_PER_FETCH_MAX),
            min(max(request.max_bytes, 1), FETCH_BYTES_MAX),
            self._group.node.commit_index,
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
