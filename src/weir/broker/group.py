"""One Raft group on this shard: the node, its place in the log, and the machine it drives.

This is the only place where Raft, log and state machine meet. The order of things is Raft's: see
`weir.raft.ready`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from weir import raft
from weir.broker.entries import NOOP, Payload
from weir.log.errors import LogDamaged
from weir.log.frame import Kind
from weir.log.log import Log
from weir.log.record import HardState, Record


class Machine(Protocol):
    """A state machine that committed entries drive."""

    def lead(self, leadership: raft.Leadership) -> None:
        """This node leads the group from here on."""

    def apply(self, index: int, payload: Payload) -> None:
        """Apply one committed entry; each exactly once, in order."""

    def encode(self) -> object:
        """Return the whole state for a snapshot, as MessagePack can hold it."""

    @property
    def first_needed(self) -> int:
        """The index below which no entry is needed any more once a snapshot holds the state."""


class Past(Protocol):
    """What a group's node reads back (`raft.Storage`), as far as the group itself uses it."""

    def saved(self, snapshot: raft.Snapshot) -> None:
        """A newer snapshot is durable."""

    def snapshot(self) -> raft.Snapshot | None:
        """The newest durable snapshot."""

    @property
    def damage(self) -> LogDamaged | None:
        """What the group lost that it needs to go on."""


class Token(NamedTuple):
    """Which Ready a flush has made durable."""

    group: int
    ready: int


class Group:
    """Moves one group forward: proposals into the log, committed entries into the machine."""

    __slots__ = ("_advancing", "_past", "id", "log", "machine", "node")

    machine: Machine

    def __init__(self, id: int, node: raft.Node, log: Log, past: Past) -> None:
        """Take a node restored from `past`; `run` must come before anything else."""
        self.id = id
        self.node = node
        self.log = log
        self._past = past
        self._advancing = False

    def run(self, machine: Machine) -> None:
        """Drive `machine`, whose state is that of the node's snapshot, and seek to lead.

        A damaged group is driven nowhere: it neither votes nor leads, and is read as it lies.
        """
        self.machine = machine
        if self.damage is None:
            self.node.campaign()
            self.advance()

    @property
    def damage(self) -> LogDamaged | None:
        """What this group lost that it needs to go on; None if it lost nothing."""
        return self._past.damage

    @property
    def kept_index(self) -> int:
        """Through which index the next checkpoint is to hold this group's state.

        That of a damaged group stays as the last one found it.
        """
        if self.damage is None:
            return self.node.applied_index
        snapshot = self._past.snapshot()
        return snapshot.index if snapshot else 0

    def snapshot(self) -> raft.Snapshot | None:
        """Return the state as of `kept_index`; None if nothing was applied yet."""
        if self.damage is not None:
            return self._past.snapshot()
        index = self.node.applied_index
        if not index:
            return None
        return raft.Snapshot(index, self.node.term_at(index), self.machine.encode())

    def propose(self, payload: Payload) -> int:
        """Append an entry and stage its bytes; return its index. Raises `raft.NotLeader` ..."""
        index = self.node.propose(payload, payload.size)
        self.advance()
        return index

    def begins_own_term(self, index: int) -> bool:
        """Whether a NOOP opened the term that this node leads in, and not an earlier one's.

        After a restart the NOOPs of earlier terms are applied again, before entries that count.
        """
        node = self.node
        return node.role is raft.Role.LEADER and node.term_at(index) == node.term

    def persisted(self, ready: int) -> None:
        """Take note that a Ready is durable; apply what is committed by it."""
        self.node.persisted(ready)
        self.advance()

    def saved(self, index: int, term: int) -> None:
        """A durable checkpoint holds the state as of `index`: let go of entries nobody needs."""
        if self.damage is not None:
            return
        self._past.saved(raft.Snapshot(index, term, None))
        # Raft asks for no entry below its snapshot any more; readers go on by the log alone.
        self.node.compact(index)
        self.log.drop_below(self.id, min(self.machine.first_needed, index + 1))

    def advance(self) -> None:
        """Stage and apply all that Raft has ready.

        A machine may propose while it applies: the loop that is running takes that up, for a
        second one inside it could apply later entries before earlier ones.
        """
        if self._advancing:
            return
        self._advancing = True
        try:
            while self.node.has_ready:
                self._do(self.node.ready())
        finally:
            self._advancing = False

    def _do(self, ready: raft.Ready) -> None:
        if ready.became_leader:
            self.machine.lead(ready.became_leader)
        if ready.must_persist:
            self._stage(ready)
        for entry in ready.committed:
            self.machine.apply(entry.index, _content(entry))
            self.node.applied(entry.index)

    def _stage(self, ready: raft.Ready) -> None:
        records = [] if ready.hard_state is None else [self._hard_state(ready.hard_state)]
        records += [self._record(entry) for entry in ready.entries]
        for record in records[:-1]:
            self.log.append(record)
        self.log.append(records[-1], Token(self.id, ready.number))

    def _hard_state(self, state: raft.HardState) -> Record:
        data = HardState(state.term, state.vote, self.node.fence).pack()
        return Record(self.id, state.term, 0, Kind.HARD_STATE, (data,), len(data))

    def _record(self, entry: raft.Entry) -> Record:
        payload = _content(entry)
        batches = payload.batches
        return Record(
            self.id,
            entry.term,
            entry.index,
            payload.kind,
            payload.buffers,
            payload.size,
            batches[0].offset if batches else -1,
            batches[-1].next_offset if batches else -1,
            batches[-1].stamp if batches else -1,
        )


def _content(entry: raft.Entry) -> Payload:
    if entry.kind is raft.EntryKind.NOOP:
        return NOOP
    assert isinstance(entry.data, Payload)  # only propose() and the recovery put data there
    return entry.data
