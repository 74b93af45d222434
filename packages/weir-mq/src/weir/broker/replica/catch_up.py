"""How members that are far behind catch up: by old entries from a leader's disk, or by a snapshot.

Of all groups that lag, only a few at a time have a permit for old entries. Each may have a whole
window under way: were all of a node that was away to get theirs at once, its link would hold more
than it may, and break for those too that lag by nothing.

While there is live traffic, one group at a time is sent one piece, and what took a while is
followed by a rest twice as long. So a disk, a link and a processor are free for most of the time,
and the flush of the member that is behind is never longer than a piece. A member that does not gain
by that is sent more (docs/adr 0191).

A snapshot that comes is decoded before Raft takes the message that completes it: once Raft has
taken it, nothing else is here. A large one is decoded off the loop, and the group goes on
meanwhile; what Raft is told then is the message as it came.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import msgspec

import weir_raft as raft
from weir.broker.records.entries import entry_of, unread
from weir.broker.records.snapshots import Decoder, Packing, Unpacking, taken
from weir.broker.replica.raft_storage import RaftStorage
from weir.broker.replica.requests import why_no_state
from weir.broker.runtime.live_traffic import LiveTraffic
from weir.broker.runtime.reads import Reads
from weir.codec import Buffer
from weir.errors import DamagedRange, Refused
from weir.order.clock import Time
from weir.storage.log_reader import Reading

#: Groups of a shard whose followers are being sent what lies on its disk.
PERMITS = 4
#: A permit is free when what was sent is acknowledged; so late, nobody waits for that any more.
PATIENCE_MS = 2_000
#: Within this time a group's lag is to fall by an eighth. Each time that it does not, rests are
#: halved, and so often in a row, live traffic counts no more until nobody lags.
GAIN_EVERY_MS = 5_000
HASTE_MAX = 3
#: Told the state, or why there is none.
Decoded = Callable[[object, str], None]


class Lagging(Protocol):
    """What sends a group's old entries to a member that is behind."""

    def read(self, load: raft.Load, /) -> None:
        """Read entries: the group has a permit."""


class Checkpoints(Protocol):
    """What saves checkpoints of one log."""

    def save(self) -> None:
        """Save one now, unless that is under way."""


class Served(Protocol):
    """A group whose node is given what it asked for."""

    id: int
    node: raft.Node

    def process_ready(self) -> None:
        """Do what the node has ready."""


class _Lag(msgspec.Struct):
    """How far a group was behind, in entries; and when it began to read last."""

    entries: int
    since_ms: int
    read_ms: int


class CatchUpPermits:
    """The groups of one shard that have a permit, and those in line for one."""

    __slots__ = ("_haste", "_held", "_lags", "_rests_until_ms", "_time", "line", "traffic")

    def __init__(self, time: Time, traffic: LiveTraffic) -> None:
        """Begin with nobody in line, who makes way for `traffic`."""
        self._time = time
        self.traffic = traffic
        #: When each group got its permit, the longest first.
        self._held: OrderedDict[int, int] = OrderedDict()
        #: Members that wait for a permit; `proceed` may find that some need not wait longer.
        self.line: dict[int, list[tuple[Lagging, raft.Load]]] = {}
        self._lags: dict[int, _Lag] = {}
        #: How often in a row a group did not gain enough.
        self._haste = 0
        self._rests_until_ms = 0

    def take(self, group: int, lagging: Lagging, load: raft.Load) -> None:
        """Let `lagging` read `load` now if the group has a permit or can get one, else once it gets
        one.
        """
        self._watch(group, load.hi - load.lo)
        makes_way = self._makes_way
        if self._has_room(makes_way) or (group in self._held and not makes_way):
            self._hold(group)
            lagging.read(load)
        else:
            self.line.setdefault(group, []).append((lagging, load))

    def done(self, group: int) -> None:
        """A group needs its permit no more: the next one in line has it, after a rest."""
        began = self._held.pop(group, None)
        if began is not None and self._makes_way:
            now = self._time.monotonic_ms()
            self._rests_until_ms = now + (self.traffic.rest_ms(now - began) >> self._haste)
        self.proceed()

    def forget(self, group: int) -> None:
        """A group is gone, or led by others."""
        self.line.pop(group, None)
        self._lags.pop(group, None)
        self.done(group)

    def free_overdue(self) -> None:
        """Free the permits of those who were sent something and never answered."""
        self.traffic.look()
        if not (self._held or self.line or self._lags):
            return
        now = self._time.monotonic_ms()
        for group in [one for one, began in self._held.items() if now - began >= PATIENCE_MS]:
            del self._held[group]
        self.proceed()
        if not (self._held or self.line):
            late = [one for one, lag in self._lags.items() if now - lag.read_ms >= GAIN_EVERY_MS]
            for group in late:
                del self._lags[group]
            if not self._lags:
                self._haste = 0

    def proceed(self) -> None:
        """Give permits to those in line, as far as that can be by now."""
        while self.line and self._has_room(self._makes_way):
            group = next(iter(self.line))
            self._hold(group)
            for lagging, load in self.line.pop(group):
                lagging.read(load)

    @property
    def _makes_way(self) -> bool:
        return self._haste < HASTE_MAX and self.traffic.look()

    def _has_room(self, makes_way: bool) -> bool:
        if makes_way:
            return not self._held and self._time.monotonic_ms() >= self._rests_until_ms
        return len(self._held) < PERMITS

    def _hold(self, group: int) -> None:
        self._held[group] = now = self._time.monotonic_ms()
        if (lag := self._lags.get(group)) is not None:
            lag.read_ms = now

    def _watch(self, group: int, entries: int) -> None:
        """Take note of how far a group is behind; let all hurry if it does not gain."""
        now, lag = self._time.monotonic_ms(), self._lags.get(group)
        if lag is None or now - lag.read_ms >= GAIN_EVERY_MS:  # it had caught up
            self._lags[group] = _Lag(entries, now, now)
        elif now - lag.since_ms >= GAIN_EVERY_MS:
            if entries > lag.entries - lag.entries // 8 and self._haste < HASTE_MAX:
                self._haste += 1
            lag.entries, lag.since_ms = entries, now


class CatchUp:
    """What members of one group that are behind are sent, on behalf of its Raft node; and the
    snapshot that it is sent itself.
    """

    __slots__ = ("_checkpoints", "_group", "_packing", "_permits", "_reads", "_storage",
                 "incoming", "sent")  # fmt: skip

    def __init__(
        self,
        group: Served,
        storage: RaftStorage,
        reads: Reads,
        permits: CatchUpPermits,
        checkpoints: Checkpoints,
    ) -> None:
        """Read by `reads`, which charge the shard's budget. Once a checkpoint that is asked for is
        durable, Raft knows what is gone from the log.
        """
        self._group = group
        self.incoming = Incoming(storage.log, reads)
        #: By member, through which index it was given entries, until it acknowledges them.
        self.sent: dict[int, int] = {}
        #: The members for which a state is being packed.
        self._packing: set[int] = set()
        self._permits = permits
        self._storage = storage
        self._reads = reads
        self._checkpoints = checkpoints

    def load(self, load: raft.Load) -> None:
        """Read entries off the loop once this group has a permit."""
        self._permits.take(self._group.id, self, load)

    def acknowledged(self, member: int, index: int) -> None:
        """A member has all through `index`."""
        if index >= self.sent.get(member, index + 1):
            del self.sent[member]
            if not self.sent:
                self._permits.done(self._group.id)

    def lose(self) -> None:
        """This node no longer leads: the next leader brings the others up to date."""
        self.sent.clear()
        self._permits.forget(self._group.id)

    def read(self, load: raft.Load) -> None:
        """Read entries, since the group has a permit."""
        reading = self._storage.reading(load)
        if reading is None:
            # Dropped while no other node had the group: a new member needs a snapshot instead.
            self._checkpoints.save()
            self._permits.done(self._group.id)
            self._group.node.loaded(load.number, None)
        else:
            # Publishes hold room until they are committed, which may wait for this very member.
            self._reads.start(reading, partial(self._loaded, load, reading), at_once=True)

    def _loaded(
        self, load: raft.Load, reading: Reading, payloads: Sequence[Buffer], failure: Refused | None
    ) -> None:
        entries = None
        if failure is None:
            # A reading ends before what cannot be read: what comes before that goes out.
            rows = zip(reading.entries, payloads, strict=False)
            entries = [
                entry_of(at.index, at.term, unread(at.kind, (payload,), at.length))
                for at, payload in rows
            ]
            self.sent[load.member] = max(self.sent.get(load.member, 0), entries[-1].index)
        elif isinstance(failure, DamagedRange):
            # The state that came of it is whole: a snapshot of that may do instead.
            self._checkpoints.save()
        self._group.node.loaded(load.number, entries)
        self._group.process_ready()

    def snapshot(self, voter: int, state: raft.Snapshot) -> None:
        """Send the state; the member is sent all entries too that lie in the log.

        It is packed off the loop, once: Raft asks again for what takes long.
        """
        if voter not in self._packing:
            self._packing.add(voter)
            packing = Packing(self._storage.log, taken(state.data))
            self._reads.start(packing, partial(self._packed, voter, state), at_once=True)

    def _packed(
        self, voter: int, state: raft.Snapshot, found: Sequence[Buffer], failure: Refused | None
    ) -> None:
        self._packing.discard(voter)
        first = self._group.node.log.first_index - 1
        index, term = max((first, self._group.node.log.term(first)), self._storage.base)
        if failure is not None or index > state.index:
            return  # what comes behind it is gone by now: a newer one will do
        snapshot = replace(state, data=found[0], base_index=index, base_term=term)
        self._group.node.send_snapshot(voter, snapshot)
        self._group.process_ready()


class Incoming:
    """The snapshot that one group is being sent, as far as it is whole."""

    __slots__ = ("_log", "_reads", "is_decoding", "state")

    def __init__(self, log: int, reads: Reads) -> None:
        """Expect none; `reads` decodes what is large."""
        self._log = log
        self._reads = reads
        #: Whether one is being decoded off the loop.
        self.is_decoding = False
        #: What came of the one that Raft is about to take.
        self.state: object = None

    def decode(self, data: Buffer, decoder: Decoder) -> str:
        """Decode a small one here and now; return why it cannot be, or nothing."""
        work = Unpacking(self._log, data, decoder)
        work.run(None)
        self.state = work.state
        return "" if work.error is None else why_no_state(work.error)

    def decode_aside(self, data: Buffer, decoder: Decoder, then: Decoded) -> None:
        """Decode a large one off the loop; never two at once."""
        assert not self.is_decoding
        self.is_decoding = True
        work = Unpacking(self._log, data, decoder)

        def done(_: Sequence[Buffer], failure: Refused | None) -> None:
            self.is_decoding = False
            error = failure or work.error
            then(work.state, "" if error is None else why_no_state(error))

        self._reads.start(work, done, at_once=True)
