"""How a leader replicates: what it knows of each member, and what it sends next.

Members are probed until their logs are known to agree, then sent a window of Appends. Members that
need what is no longer in the log get a snapshot in pieces. What was not answered is asked again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from weir_raft.config import Contact
from weir_raft.messages import Append, AppendReply, InstallSnapshot, SnapshotMeta, SnapshotReply
from weir_raft.node_state import NodeState
from weir_raft.storage import Entry, Snapshot


class ProgressState(Enum):
    """How a leader sends to a member."""

    #: One message at a time, to find where the logs agree.
    PROBE = "probe"
    #: A window of messages ahead of their replies.
    REPLICATE = "replicate"
    #: What it needs is no longer in the log.
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Progress:
    """One member as its leader sees it."""

    member: int
    #: Through here its log is durable and the same as the leader's.
    match: int
    state: ProgressState
    #: Bytes sent and not acknowledged.
    inflight_bytes: int
    #: Through here entries are there or on their way.
    sent: int


class SnapshotTransfer:
    """A snapshot on its way to a member, piece by piece."""

    __slots__ = ("_asked", "position", "size", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        #: Bytes of the whole, and of what was sent.
        self.size = memoryview(snapshot.data).nbytes  # type: ignore[arg-type]
        self.position = 0
        # Whether the member was asked how much of that came.
        self._asked = False

    def ask(self) -> None:
        """The member is asked how much has come: only its reply says, a piece may be slow."""
        self._asked = True

    def is_due(self, position: int) -> bool:
        """Whether the next piece is to be sent to one that has all below `position`."""
        if position != self.position and not self._asked:
            return False
        self._asked = False
        self.position = position
        return True

    def piece(self, max_bytes: int) -> bytes:
        """Return what comes next, which counts as sent from now on."""
        begin, self.position = self.position, min(self.position + max_bytes, self.size)
        return bytes(memoryview(self.snapshot.data)[begin : self.position])  # type: ignore[arg-type]


class Member:
    """What a leader sends next to one member, and how much more it may."""

    __slots__ = (
        "_flights",
        "committed",
        "contact",
        "id",
        "inflight_bytes",
        "load",
        "match",
        "next",
        "nudge_at",
        "paused",
        "round",
        "since",
        "state",
        "transfer",
        "vouched",
    )

    def __init__(self, id: int, next_index: int, contact: Contact, now: int) -> None:
        self.id = id
        self.contact = contact
        #: When this leader first counted on it.
        self.since = now
        self.match = 0
        #: The most it ever acknowledged, whatever its disk lost since: so far commits may count it.
        self.vouched = 0
        self.next = next_index
        self.state = ProgressState.PROBE
        #: A probe is under way: nothing more is sent before its reply or the next nudge.
        self.paused = False
        self.nudge_at = 0
        #: Through here it knows the log to be committed.
        self.committed = 0
        #: The newest round of heartbeats it answered.
        self.round = 0
        #: The Load under way for it; 0: none.
        self.load = 0
        self.inflight_bytes = 0
        self._flights: deque[tuple[int, int]] = deque()  # last index and bytes of each Append
        #: The snapshot it is sent; None while the host has yet to give one.
        self.transfer: SnapshotTransfer | None = None

    def heard_since(self, time: int) -> bool:
        """Whether it was heard of later than `time`, a new leader's good faith included."""
        return self.contact.heard_at > time or self.since > time

    def sent(self, last_index: int, size: int) -> None:
        """Entries through `last_index` are on their way."""
        self.next = last_index + 1
        self.inflight_bytes += size
        self._flights.append((last_index, size))

    def acknowledged(self, index: int) -> None:
        """Its log holds the leader's durably through `index`: send on from there."""
        self.match = max(self.match, index)
        self.vouched = max(self.vouched, index)
        if self.state is ProgressState.PROBE:
            self.next = self.match + 1
            self._become(ProgressState.REPLICATE)
            return
        self.next = max(self.next, self.match + 1)
        flights = self._flights
        while flights and flights[0][0] <= index:
            self.inflight_bytes -= flights.popleft()[1]

    def probe(self, next_index: int) -> None:
        """Find out anew where the logs agree, beginning before `next_index`."""
        self.next = max(next_index, self.match + 1)
        self._become(ProgressState.PROBE)

    def forgets(self, index: int) -> None:
        """Its disk may have lost what it acknowledged behind `index`: begin there."""
        self.match = min(self.match, index)
        self.probe(index + 1)

    def need_snapshot(self) -> None:
        """Its next entry is gone: only a snapshot can help."""
        self._become(ProgressState.SNAPSHOT)

    def _become(self, state: ProgressState) -> None:
        self.state = state
        self.paused = False
        self.load = 0
        self.inflight_bytes = 0
        self._flights.clear()
        self.transfer = None

    def progress(self) -> Progress:
        """This, for the host to show."""
        return Progress(self.id, self.match, self.state, self.inflight_bytes, self.next - 1)


class Replication:
    """The members that a leader of one term sends to: what they hold, and what they lack."""

    __slots__ = ("_cut", "_cut_at", "_first_index", "_loading", "_node_state", "dirty", "members")

    def __init__(self, node_state: NodeState, first_index: int) -> None:
        self._node_state = node_state
        # The first entry of the leader's term.
        self._first_index = first_index
        #: Everybody but this node who receives the log.
        self.members: dict[int, Member] = {}
        #: Whether send() may find something.
        self.dirty = False
        self._loading: dict[int, Member] = {}
        # Members stand at the same place as a rule, and share what is cut for the first of them.
        self._cut_at = 0
        self._cut: tuple[tuple[Entry, ...], int] | None = None

    def reconfigured(self) -> None:
        """Another configuration is in force: send to its members and to nobody else."""
        node_state = self._node_state
        members = [member for member in node_state.configuration.members if member != node_state.id]
        for gone in [member for member in self.members if member not in members]:
            # What is being read for it is not sent either.
            self._loading.pop(self.members.pop(gone).load, None)
        for id in members:
            if id not in self.members:
                contact = node_state.contacts.of(id)
                now = node_state.clock.now
                self.members[id] = Member(id, node_state.log.last_index + 1, contact, now)
        self.dirty = bool(self.members)

    def match(self) -> dict[int, int]:
        """Through where each log is durable and the same as the leader's, its own included."""
        # This node counts as one voter among others, by what its disk holds. (§10.2.1)
        match = {self._node_state.id: self._node_state.log.durable}
        for id, member in self.members.items():  # each acknowledgement comes by here
            match[id] = member.match
        return match

    def _spares(self, member: Member) -> bool:
        """Whether a majority holds an entry of this term and all that a member acknowledged, the
        member not counted, nor any other at its place: it may have been another one before.
        """
        match, needed = {self._node_state.id: self._node_state.log.durable}, self._first_index
        for id, one in self.members.items():
            if one.contact is not member.contact:
                match[id] = one.match
            elif one.vouched > needed:
                needed = one.vouched
        return self._node_state.history.newest.committed(match) >= needed

    @property
    def all_current(self) -> bool:
        """Whether all who can be reached have everything and know what is committed."""
        members = self.members.values()
        return all(self._is_current(member) or not member.contact.up for member in members)

    def _is_current(self, member: Member) -> bool:
        log = self._node_state.log
        return (
            member.match == log.last_index
            and member.committed >= log.committed
            and member.state is ProgressState.REPLICATE
        )

    def send(self) -> None:
        """Fill every member's window."""
        self.dirty = False
        self._cut_at = 0
        for member in self.members.values():
            if not member.contact.up:
                continue
            if member.state is ProgressState.REPLICATE:
                self._replicate(member)
            elif member.state is ProgressState.PROBE and not member.paused:
                self._probe(member)
        self._cut = None

    def _replicate(self, member: Member) -> None:
        log, window = self._node_state.log, self._node_state.config.max_inflight_bytes
        while member.next <= log.last_index and member.inflight_bytes < window:
            if member.load or (member.next < log.first_index and not self._holds(member)):
                return
            cut = self._outgoing(member.next)
            if cut is None:
                self._load(member)
                return
            entries, size = cut
            self._append(member, entries)
            member.sent(entries[-1].index, size)

    def _probe(self, member: Member) -> None:
        if self._holds(member):
            # What must be read from a disk waits until it is known to be wanted.
            cut = self._outgoing(member.next)
            self._append(member, cut[0] if cut else ())
            member.paused = True

    def _holds(self, member: Member) -> bool:
        """Whether the log still has what this member needs next; else it needs a snapshot."""
        if member.next >= self._node_state.log.first_index:
            return True
        member.need_snapshot()
        self._want_snapshot(member)
        return False

    def _outgoing(self, lo: int) -> tuple[tuple[Entry, ...], int] | None:
        if self._cut_at != lo:
            self._cut = self._node_state.log.outgoing(lo, self._node_state.config.max_append_bytes)
            self._cut_at = lo
        return self._cut

    def _append(self, member: Member, entries: tuple[Entry, ...]) -> None:
        node_state, prev = self._node_state, member.next - 1
        term, log = node_state.term, node_state.log
        spared, commit = self._spares(member), log.committed
        message = Append(
            member.id, node_state.id, term, prev, log.term(prev), entries, commit, spared
        )
        node_state.pending.messages.append(message)
        member.nudge_at = node_state.clock.now + node_state.config.heartbeat_ms

    def acknowledged(self, member: Member, index: int, committed: int) -> None:
        """A member's log is known to hold the leader's durably through `index`."""
        member.committed = max(member.committed, committed)
        if member.state is ProgressState.SNAPSHOT and not self._caught_up(member, index):
            return
        member.acknowledged(index)
        if member.match == member.next - 1:
            # Nothing is on the way, so that news of the commit may wait for a while.
            member.nudge_at = self._node_state.clock.now + self._node_state.config.heartbeat_ms // 2
        self.dirty = self.dirty or member.next <= self._node_state.log.last_index

    def _caught_up(self, member: Member, index: int) -> bool:
        """Whether a member that was to get a snapshot can be sent entries again."""
        if index + 1 >= self._node_state.log.first_index:
            member.probe(index + 1)
            return True
        transfer = member.transfer
        if transfer is not None and index >= transfer.snapshot.base_index:
            # It has installed this one, and meanwhile what follows is gone here: a newer one.
            member.need_snapshot()
            self._want_snapshot(member)
        return False

    def rejected(self, member: Member, message: AppendReply) -> None:
        """A member has no such entry: look for one that it has. (§3.5, end)"""
        if member.state is ProgressState.REPLICATE:
            if message.index <= member.match:
                self._tell_again(member, message)
                return  # an old refusal: it has acknowledged more since
            member.probe(member.match + 1)
        elif member.state is ProgressState.PROBE and message.index == member.next - 1:
            log = self._node_state.log
            agreed = min(message.hint_index, message.index - 1)
            if agreed >= log.first_index:
                agreed = log.last_of_term(agreed, message.hint_term)
            # A cut tail looks like a write that was torn: who lost one does not know of it, and
            # would refuse for ever what is behind that which it acknowledged.
            member.forgets(agreed)
        else:
            return
        self.dirty = True

    def _tell_again(self, member: Member, message: AppendReply) -> None:
        """A member that has everything asks how it is with it: whether it is spared may be news."""
        last = self._node_state.log.last_index
        same = message.index == message.hint_index == member.match == last
        if same and self._holds(member) and message.hint_term == self._node_state.log.term(last):
            self._append(member, ())

    def nudge(self, now: int) -> None:
        """Ask again what was not answered, and tell what is committed; without any entries."""
        for member in self.members.values():
            if now < member.nudge_at or not member.contact.up:
                continue
            if member.state is ProgressState.SNAPSHOT:
                self._nudge_snapshot(member)
            elif not self._is_current(member) and not member.load and self._holds(member):
                self._append(member, ())

    def fail(self, member: Member) -> None:
        """What was on the way to a member is lost, perhaps: find out anew."""
        if member.state is ProgressState.REPLICATE:
            member.probe(member.match + 1)
        elif member.state is ProgressState.SNAPSHOT:
            member.need_snapshot()  # another one, when it is back: this one may be large
        else:
            member.paused = False
        # It may have started again, and know less than it did.
        member.committed = 0
        member.nudge_at = 0
        self.dirty = True

    def _load(self, member: Member) -> None:
        node_state = self._node_state
        hi, size = node_state.log.stored_end, node_state.config.max_append_bytes
        member.load = node_state.pending.load(member.next, hi, size, member.id)
        self._loading[member.load] = member

    def loaded(self, number: int, entries: tuple[Entry, ...]) -> None:
        """Send what was read, if it is still wanted; nothing read is asked for again later."""
        member = self._loading.pop(number, None)
        if member is None or member.load != number:
            return
        member.load = 0
        if not entries:
            member.nudge_at = self._node_state.clock.now + self._node_state.config.heartbeat_ms
            return
        if entries[0].index == member.next and self._holds(member):
            self._append(member, entries)
            member.sent(entries[-1].index, sum(entry.size for entry in entries))
        self.dirty = True

    def _want_snapshot(self, member: Member) -> None:
        self._node_state.pending.wants_snapshot.append(member.id)
        member.nudge_at = self._node_state.clock.now + self._node_state.config.election_ms

    def begin_snapshot(self, member: Member, snapshot: Snapshot) -> None:
        """Send the first piece, unless the member needs none any more or has begun with one."""
        if member.state is ProgressState.SNAPSHOT and member.transfer is None:
            member.transfer = SnapshotTransfer(snapshot)
            self._send_piece(member, member.transfer)

    def _send_piece(self, member: Member, transfer: SnapshotTransfer) -> None:
        position = transfer.position
        data = transfer.piece(self._node_state.config.snapshot_chunk_bytes)
        self._install(member, transfer, position, data)

    def _install(
        self, member: Member, transfer: SnapshotTransfer, position: int, data: bytes
    ) -> None:
        node_state, snapshot, size = self._node_state, transfer.snapshot, transfer.size
        configuration = snapshot.configuration or node_state.history.at(snapshot.index)
        meta = SnapshotMeta(
            snapshot.index,
            snapshot.term,
            configuration,
            snapshot.base_index,
            snapshot.base_term,
            size,
        )
        done, spared = position + len(data) == size, self._spares(member)
        node_state.pending.messages.append(
            InstallSnapshot(
                member.id, node_state.id, node_state.term, meta, position, data, done, spared
            )
        )
        member.nudge_at = node_state.clock.now + node_state.config.election_ms

    def _nudge_snapshot(self, member: Member) -> None:
        transfer = member.transfer
        if transfer is None:
            self._want_snapshot(member)
            return
        transfer.ask()
        self._install(member, transfer, transfer.position, b"")

    def snapshot_reply(self, member: Member, message: SnapshotReply) -> None:
        """Send the next piece, or again what did not come; without a snapshot, start anew."""
        transfer = member.transfer
        if member.state is not ProgressState.SNAPSHOT or transfer is None:
            return
        if message.rejected:
            # It is ahead of this snapshot: a newer one will do, which it is asked for in a while.
            member.transfer = None
            member.nudge_at = self._node_state.clock.now + self._node_state.config.heartbeat_ms
        elif transfer.is_due(message.position):
            self._send_piece(member, transfer)
