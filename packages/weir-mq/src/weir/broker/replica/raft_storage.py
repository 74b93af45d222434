"""One group's log as Raft reads and writes it: what recovery found, and the log since."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

import weir_raft as raft
from weir.broker.api.settings import Replication
from weir.broker.records.entries import Payload, entry_of, read_back, stored_in, unread
from weir.broker.records.snapshots import pack, unpack
from weir.codec import Buffer
from weir.model.limits import KIB
from weir.model.slices import united
from weir.storage.errors import LogDamaged
from weir.storage.format.frame import Kind
from weir.storage.format.record import HardState, Record
from weir.storage.group_index import Stored
from weir.storage.log import Log
from weir.storage.log_reader import Reading
from weir.storage.recovery import RecoveredGroup

#: Raft refuses proposals beyond this; the shard's byte budget refuses publishes long before.
_PENDING_BYTES_MAX = 1 << 40
#: Handed out to be applied at once: less than the loop may stand still for.
_APPLY_BYTES_MAX = 512 * KIB


#: MessagePack: an array of two, and the head of so many bytes.
_PAIR = b"\x92"
_BIN32_MARK = 0xC6
_BIN32 = struct.Struct(">BI")


class RaftStorage:
    """Reads one group's stored log. What blocks is for the start, and for a lone node, alone."""

    __slots__ = ("_group", "_log", "_recovered", "_rotten", "_snapshot", "damage", "has_copies",
                 "unreadable")  # fmt: skip

    def __init__(
        self, log: Log, group: int, recovered: RecoveredGroup | None,
        snapshot: raft.Snapshot | None, has_copies: bool = False,
    ) -> None:  # fmt: skip
        """See what recovery found of a group, and its newest snapshot; None where it is new. Other
        nodes are to hold the group, too, if it `has_copies`.
        """
        #: Whatever is known of that in this log.
        self.has_copies = has_copies
        self._log = log
        self._group = group
        self._recovered = recovered
        self._snapshot = snapshot
        #: How many entries are known to be lost that somebody may ask for, and how many of them
        #: could be filled in.
        self.unreadable = recovered.unreadable if recovered else 0
        self._rotten = len(recovered.rotten) if recovered else 0
        #: What recovery found the group to have lost that it needs to go on.
        self.damage = recovered.damage if recovered else None

    @property
    def promised(self) -> int:
        """The highest fence that may have been promised before this start."""
        return self._log.found_bound

    @property
    def fence(self) -> int:
        """The fence that was durable."""
        state = self._recovered.hard_state if self._recovered else None
        return state.fence if state else 0

    def hard_state(self) -> raft.HardState:
        """Return term and vote."""
        state = self._recovered.hard_state if self._recovered else None
        found = raft.HardState(state.term, state.vote) if state else raft.HardState()
        if self.damage is None:
            return found
        # It is never used, for a damaged group does not vote; but no entry may be of a later term.
        return raft.HardState(max(found.term, self.term(self.last_index())))

    @property
    def log(self) -> int:
        """The number of the log."""
        return self._log.settings.log

    @property
    def base(self) -> tuple[int, int]:
        """Index and term of the last entry that is gone from the log."""
        return self._log.reader.base(self._group)

    def rotted(self, count: int) -> None:
        """So many more were found to be lost that could be filled in."""
        self.unreadable += count
        self._rotten += count

    def doubt(self) -> None:
        """Count as lost what others may have superseded in a group that has other voters."""
        if self._recovered is not None and (doubtful := self._recovered.doubtful):
            self._log.reader.disbelieve(self._group, doubtful)
            self.unreadable += len(doubtful)
            self._recovered = msgspec.structs.replace(self._recovered, doubtful=())

    def mended(self) -> None:
        """What could be filled in is there again."""
        self.unreadable -= self._rotten
        self._rotten = 0

    # -- snapshots ---------------------------------------------------------------------------

    def snapshot(self) -> raft.Snapshot | None:
        """Return the newest durable snapshot of this group; without its state, if this very process
        saved it. The log beside it begins behind `base`.
        """
        found, (index, term) = self._snapshot, self.base
        if found is None or index >= found.index:
            return found
        return replace(found, base_index=index, base_term=term)

    def saved_term(self, index: int) -> int | None:
        """Return the term of an entry if the newest durable snapshot ends with it."""
        found = self._snapshot
        return found.term if found is not None and found.index == index else None

    def saved(self, snapshot: raft.Snapshot) -> None:
        """Take note of a newer snapshot that is durable: checkpointed, or installed."""
        self._snapshot = snapshot

    def configuration(self) -> raft.Configuration | None:
        """Return the configuration as of the snapshot; None for that which the group began with."""
        return self._snapshot.configuration if self._snapshot else None

    def configurations(self) -> Sequence[tuple[int, bytes]]:
        """Return index and data of the CONFIGURATION entries above the snapshot, in order."""
        first = self._snapshot.index + 1 if self._snapshot else 1
        found = []
        for index in self._log.reader.of_kind(self._group, Kind.CONFIGURATION, first):
            stored = self._log.reader.stored(self._group, index)
            assert stored is not None  # it was found in this very index
            try:
                found.append((index, self._log.reader.load(stored)))
            except LogDamaged:
                if self.damage is None:
                    raise
                # It takes no part: what it knows of the others is needed for nothing.
        return found

    # -- entries -----------------------------------------------------------------------------

    def last_index(self) -> int:
        """Return the index of the last entry that recovery found in the log, or of the last one
        that is gone from it if there is none.
        """
        return max(self._recovered.last_index if self._recovered else 0, self.base[0])

    def term(self, index: int) -> int:
        """Return the term of a stored entry."""
        if self._snapshot and index == self._snapshot.index:
            return self._snapshot.term
        term = self._log.reader.term_of(self._group, index)
        if term is not None:
            return term
        base, before = self.base
        if index == base:
            return before
        if index < base:
            raise raft.Compacted(f"entry {index} of group {self._group} is gone")
        raise raft.Unavailable(f"group {self._group} has no entry {index}")

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[raft.Entry]:
        """Load entries [lo, hi): at least one, then as many as fit in `max_bytes`."""
        placed: list[Stored] = []
        size = 0
        for index in range(lo, hi):
            stored = self._log.reader.stored(self._group, index)
            if stored is None:
                raise raft.Unavailable(f"group {self._group} has no entry {index}")
            size += stored.length
            if placed and size > max_bytes:
                break
            placed.append(stored)
        return [
            entry_of(stored.index, stored.term, read_back(stored.kind, payload))
            for stored, payload in zip(placed, self._log.reader.load_all(placed), strict=True)
        ]

    def cached(self, lo: int, hi: int, max_bytes: int) -> list[raft.Entry] | None:
        """Return entries [lo, hi) as far as they lie in memory and fit; None if none does."""
        found = self._log.reader.cached(self._group, lo, hi, max_bytes)
        if found is None:
            return None
        return [
            entry_of(raw.index, raw.term, unread(raw.kind, raw.payload, raw.size)) for raw in found
        ]

    def reading(self, load: raft.Load) -> Reading | None:
        """Plan to read entries for a member that is behind; None if they are not there any more."""
        return self._log.reader.read_raw(self._group, load.lo, load.hi, load.max_bytes)


def installed(groups: Mapping[int, RecoveredGroup]) -> dict[int, raft.Snapshot]:
    """Return the snapshots that other replicas sent and no checkpoint holds yet, by group."""
    found = {}
    for group, recovered in groups.items():
        if (at := recovered.snapshot) is not None:
            packed, state = unpack(at.data)
            configuration = raft.Configuration.unpack(packed)
            found[group] = raft.Snapshot(at.index, at.term, unpack(state), configuration)
    return found


def pack_installed(snapshot: raft.Snapshot) -> tuple[Buffer, ...]:
    """Return what the log keeps of a snapshot that came over a link, to be read by the next start:
    MessagePack of the configuration and of the state as it came, which may be large and is not
    copied.
    """
    assert snapshot.configuration is not None  # those that travel have one
    assert isinstance(snapshot.data, bytes | bytearray)
    configuration, size = pack(snapshot.configuration.pack()), len(snapshot.data)
    return _PAIR + configuration + _BIN32.pack(_BIN32_MARK, size), snapshot.data


def node_for(
    voter: int,
    founders: tuple[int, ...],
    storage: RaftStorage,
    settings: Replication,
    dice: Callable[[], float] | None,
    context: raft.NodeContext,
) -> raft.Node:
    """Return the Raft node of a group on this node, which it knows as `voter`.

    `founders` voted when it was new; none are known to a node that joined later. One of a damaged
    group counts all it has as applied, and has a context of its own: it is only read, and asked for
    nothing.
    """
    snapshot = storage.snapshot()
    applied = snapshot.index if snapshot else 0
    config = raft.Config(
        id=voter,
        voters=founders,
        fence=max(storage.fence, storage.promised),
        applied=applied if storage.damage is None else storage.last_index(),
        max_pending_bytes=_PENDING_BYTES_MAX,
        max_apply_bytes=_APPLY_BYTES_MAX,
        max_append_bytes=settings.append_bytes_max,
        max_inflight_bytes=settings.inflight_bytes_max,
        snapshot_chunk_bytes=settings.snapshot_chunk_bytes,
        heartbeat_ms=settings.heartbeat_ms,
        election_ms=settings.election_ms,
        random=dice,
    )
    return raft.Node(config, storage, context if storage.damage is None else None)


class Token(msgspec.Struct, frozen=True):
    """Which Ready a flush has made durable, and of which node: its group may be gone by then, and
    another node in its place.
    """

    group: int
    node: raft.Node
    ready: int


def stage(log: Log, group: int, node: raft.Node, ready: raft.Ready) -> None:
    """Stage a Ready's hard state, snapshot and entries, in this order; the flush that makes all of
    it durable carries its `Token`.
    """
    token = Token(group, node, ready.number)
    records = [] if ready.hard_state is None else [_voted(group, ready.hard_state, node.fence)]
    if (snapshot := ready.snapshot) is not None:
        for record in records:
            log.append(record)
        at, base = (snapshot.index, snapshot.term), (snapshot.base_index, snapshot.base_term)
        data = pack_installed(snapshot)
        log.install(group, *at, *base, data, None if ready.entries else token)
        records = []
    for entry in ready.entries:
        payload = entry.data if isinstance(entry.data, Payload) else stored_in(entry)
        batches = payload.batches
        first, behind, stamp = -1, -1, -1
        if batches:
            last = batches[-1]
            first, behind, stamp = batches[0].offset, last.next_offset, last.stamp
        tags = batches[0].tags if len(batches) == 1 else united([one.tags for one in batches])
        records.append(
            Record(
                group, entry.term, entry.index, payload.kind, payload.buffers, payload.size,
                first, behind, stamp, tags,
            )
        )  # fmt: skip
    for record in records[:-1]:
        log.append(record)
    if records:
        log.append(records[-1], token)


def _voted(group: int, state: raft.HardState, fence: int) -> Record:
    data = HardState(state.term, state.vote, fence).pack()
    return Record(group, state.term, 0, Kind.HARD_STATE, (data,), len(data))
