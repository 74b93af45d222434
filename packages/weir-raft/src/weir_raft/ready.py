"""What the library asks of its host, and in what order.

A host's whole duty is this loop, in which writing may lag behind by any number of Readies:

    while (ready := node.take()) is not None:
        stop acting as a leader if ready.lost_leadership, start if ready.became_leader
        send ready.messages
        write ready.hard_state, ready.snapshot, then ready.entries; later sync, then
            node.persisted(ready.number)
        restore ready.snapshot; apply ready.committed; then node.applied(its last index)
        serve ready.reads whose index is applied; begin what loads and wants_snapshot ask for

Nothing may be told to a client because it was proposed or written: only because it came out in
`committed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weir_raft.messages import Message
from weir_raft.storage import Entry, HardState, Snapshot


@dataclass(frozen=True, slots=True)
class Leadership:
    """An election won in `term`, with the highest `fence` that any of its votes carried."""

    term: int
    fence: int


@dataclass(frozen=True, slots=True)
class ReadState:
    """The leadership was confirmed after read_index(context): serve it once `index` is applied."""

    context: int
    index: int


@dataclass(frozen=True, slots=True)
class Load:
    """Read entries [lo, hi) as Storage.entries does, off the loop; then call Node.loaded."""

    number: int
    lo: int
    hi: int
    max_bytes: int
    #: Who needs them.
    member: int


class Ready(NamedTuple):
    """One step's work for the host. The comment on each field is the ordering contract."""

    #: Readies count from 1, one by one. Those with `must_persist` are acknowledged through
    #: Node.persisted in this order; for the others the acknowledgement may be left out.
    number: int
    #: Write before the entries of this and of every later Ready; durable before this Ready is
    #: acknowledged. It replaces the one before it and is never behind it. None: unchanged.
    hard_state: HardState | None
    #: Append in this order; durable, hard state included, before this Ready is acknowledged. One
    #: sync may cover many Readies. The first may lie at or below entries of earlier Readies:
    #: it replaces that entry and all behind it.
    entries: tuple[Entry, ...]
    #: Apply in this order, each once, before those of any later Ready; then call Node.applied.
    #: They are durable on a majority already and need not wait for this Ready's own writes.
    #: A committed entry comes in a later Ready than the one that asked to append it.
    committed: tuple[Entry, ...]
    #: This node leads from here on. Take note before writing `entries`, whose first is the new
    #: leader's NOOP: whatever the host stamps on entries must be above the fence from now on.
    became_leader: Leadership | None
    #: Send at once, in order, before or while this Ready is written. What others may only hear
    #: once something is durable here is in a Ready after its acknowledgement.
    messages: tuple[Message, ...] = ()
    #: This node no longer leads: act on it before anything else of this Ready. Who waits for a
    #: proposal or a read is told to try elsewhere; whether it commits is not known here.
    lost_leadership: bool = False
    #: The leadership was lost because no majority answered for an election timeout.
    lost_quorum: bool = False
    #: Replace the state machine by this, before `committed`, and the log by one that is empty
    #: behind the snapshot's base, before `entries`; durable before this Ready is acknowledged.
    snapshot: Snapshot | None = None
    #: Reads asked for by Node.read_index that may be served now.
    reads: tuple[ReadState, ...] = ()
    #: Entries that some follower needs and no memory holds.
    loads: tuple[Load, ...] = ()
    #: Members that need a snapshot: call Node.send_snapshot for each.
    wants_snapshot: tuple[int, ...] = ()

    @classmethod
    def plain(cls, number: int, entries: tuple[Entry, ...], committed: tuple[Entry, ...]) -> Ready:
        """Return one of entries alone, as nearly all are."""
        return tuple.__new__(cls, (number, None, entries, committed, *_NOTHING_ELSE))

    @property
    def must_persist(self) -> bool:
        """Whether something must become durable, so that Node.persisted must be called."""
        return self.hard_state is not None or bool(self.entries) or self.snapshot is not None


#: The fields of a Ready behind its entries, where there is nothing but these.
_NOTHING_ELSE = Ready(0, None, (), (), None)[4:]
