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

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from weir_raft.errors import OutOfOrder
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
    #: This node no longer leads: act on it before anything else of this Ready. What waits for a
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

    @property
    def must_persist(self) -> bool:
        """Whether something must become durable, so that Node.persisted must be called."""
        return self.hard_state is not None or bool(self.entries) or self.snapshot is not None


#: The fields of a Ready behind its entries, where there is nothing but these.
_NOTHING_ELSE = Ready(0, None, (), (), None)[4:]


class Asked(NamedTuple):
    """What one Ready asked to persist."""

    number: int
    hard_state: HardState | None
    #: The last of its entries that still counts; 0: none.
    last_index: int
    installs: bool


class Pending:
    """What a node wants of its host: what the next Ready hands out, and what others asked for."""

    __slots__ = (
        "_acknowledged",
        "_issued",
        "_loads_asked",
        "asked",
        "hard_state",
        "installing",
        "loads",
        "lost_leadership",
        "lost_quorum",
        "messages",
        "reads",
        "snapshot",
        "wants_snapshot",
    )

    def __init__(self) -> None:
        # The numbers of the last Ready that was handed out, and that was acknowledged.
        self._issued = 0
        self._acknowledged = 0
        self._loads_asked = 0
        #: What was handed out to persist and is not acknowledged, oldest first.
        self.asked: deque[Asked] = deque()
        #: How many snapshots are to be installed and are not durable yet.
        self.installing = 0
        # What waits to be handed out, each as the field of Ready says.
        self.hard_state: HardState | None = None
        self.messages: list[Message] = []
        self.lost_leadership = False
        self.lost_quorum = False
        self.snapshot: Snapshot | None = None
        self.reads: list[ReadState] = []
        self.loads: list[Load] = []
        self.wants_snapshot: list[int] = []

    @property
    def any(self) -> bool:
        """Whether something but entries waits to be handed out."""
        if self.messages or self.hard_state or self.reads or self.snapshot:
            return True
        return bool(self.loads or self.wants_snapshot) or self.lost_leadership

    def load(self, lo: int, hi: int, max_bytes: int, member: int) -> int:
        """Ask for entries that no memory holds, and return the number of the Load."""
        self._loads_asked += 1
        self.loads.append(Load(self._loads_asked, lo, hi, max_bytes, member))
        return self._loads_asked

    def hand_out(
        self,
        entries: tuple[Entry, ...],
        committed: tuple[Entry, ...],
        became_leader: Leadership | None,
    ) -> Ready | None:
        """Return a Ready of all that waits, and of these entries; None if that is nothing."""
        news = self.messages or self.hard_state or self.reads or self.snapshot or self.loads
        if not (news or self.wants_snapshot or self.lost_leadership or became_leader):
            if not entries and not committed:
                return None
            number = self._issued = self._issued + 1
            if entries:
                asked = number, None, entries[-1].index, False
                self.asked.append(tuple.__new__(Asked, asked))  # in C, as the Ready below
            return tuple.__new__(Ready, (number, None, entries, committed, *_NOTHING_ELSE))
        hard_state, self.hard_state = self.hard_state, None
        snapshot, self.snapshot = self.snapshot, None
        number = self._issued = self._issued + 1
        if entries or hard_state or snapshot:
            last = entries[-1].index if entries else 0
            self.asked.append(Asked(number, hard_state, last, snapshot is not None))
        ready = Ready(
            number,
            hard_state,
            entries,
            committed,
            became_leader,
            tuple(self.messages),
            self.lost_leadership,
            self.lost_quorum,
            snapshot,
            tuple(self.reads),
            tuple(self.loads),
            tuple(self.wants_snapshot),
        )
        self.lost_leadership = self.lost_quorum = False
        self.messages.clear()
        self.reads.clear()
        self.loads.clear()
        self.wants_snapshot.clear()
        return ready

    def acknowledge(self, number: int) -> Asked | None:
        """Return what a Ready asked to persist, if it did; OutOfOrder as in Node.persisted."""
        asked = self.asked
        if not self._acknowledged < number <= self._issued:
            raise OutOfOrder(
                f"persisted({number}): Readies through {self._acknowledged} are acknowledged "
                f"and those through {self._issued} were handed out"
            )
        if asked and asked[0].number < number:
            raise OutOfOrder(
                f"persisted({number}) came before persisted({asked[0].number}): "
                "acknowledge in the order in which Readies were handed out"
            )
        self._acknowledged = number
        return asked.popleft() if asked and asked[0].number == number else None

    def supersede(self, index: int) -> None:
        """Entries from `index` on were replaced: writes under way no longer make them durable."""
        for at, asked in enumerate(self.asked):
            if asked.last_index >= index:
                self.asked[at] = asked._replace(last_index=index - 1)
