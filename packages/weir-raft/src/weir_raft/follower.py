"""The role every node starts in: it keeps what a leader sends, and waits."""

from __future__ import annotations

from weir_raft.config import NEVER, Contact
from weir_raft.membership import Configuration, lineage_of
from weir_raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    SnapshotMeta,
    SnapshotReply,
)
from weir_raft.node_state import NodeState
from weir_raft.storage import NOBODY, Entry, EntryKind, Snapshot


class Arriving:
    """The pieces of one snapshot, in order and without a hole."""

    __slots__ = ("_data", "meta")

    def __init__(self, meta: SnapshotMeta) -> None:
        self.meta = meta
        self._data = bytearray()

    @classmethod
    def of(cls, meta: SnapshotMeta, arriving: Arriving | None) -> Arriving:
        """Return what has come of this snapshot, if it is the one that is arriving."""
        return cls(meta) if arriving is None or arriving.meta != meta else arriving

    @property
    def position(self) -> int:
        """Bytes below here have come."""
        return len(self._data)

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""
        return self.position == self.meta.size

    def take(self, position: int, data: bytes) -> None:
        """Keep `data` if it is the next piece."""
        if position == self.position and len(data) <= self.meta.size - position:
            self._data += data

    def with_piece(self, position: int, data: bytes) -> bytes | None:
        """Return the whole, if it is complete with this piece; takes nothing."""
        is_last = position == self.position and position + len(data) == self.meta.size
        return b"".join((self._data, data)) if is_last else None

    def data(self) -> bytearray:
        """The whole, which is not joined from its pieces then: it may be large."""
        return self._data


class Follower:
    """A member that follows `leader` in the current term, or looks for one."""

    __slots__ = (
        "_acked",
        "_contact",
        "_heard_at",
        "_matched",
        "_node_state",
        "_owes",
        "_target",
        "arriving",
        "deadline",
        "leader",
        "owes_vote",
    )

    def __init__(self, node_state: NodeState, leader: int = NOBODY) -> None:
        self._node_state = node_state
        self.leader = leader
        #: Through here the log is the same as the leader's, durable or not.
        self._matched = 0
        #: The last match the leader was told, and whether and from where on it waits for another.
        self._acked = 0
        self._owes = False
        self._target = 0
        #: Whom to tell about a vote as soon as it is durable.
        self.owes_vote = NOBODY
        #: The snapshot that has begun to come.
        self.arriving: Arriving | None = None
        self._contact: Contact | None = None
        self._heard_at = node_state.clock.now if leader else -NEVER
        #: When to campaign if nothing is heard until then; a lone voter waits for nobody. (§3.4)
        self.deadline = node_state.clock.now + (0 if node_state.alone else node_state.timeout())

    def heard(self) -> None:
        """The leader is there, or a vote was given: wait for a whole timeout again."""
        clock = self._node_state.clock
        self._heard_at = self._node_state.heard_at = clock.now
        if self._contact is None:
            self.deadline = clock.now + self._node_state.timeout()

    def rely_on(self, contact: Contact) -> None:
        """Hear of the leader through a shared link from now on, and keep no time meanwhile."""
        self._contact = contact
        self.deadline = NEVER

    def rely_no_more(self, wait_ms: int) -> None:
        """The link says nothing any more: campaign after `wait_ms`, and protect nobody."""
        self.note_contact()
        self._contact = None
        self._heard_at = -NEVER
        self.deadline = self._node_state.clock.now + wait_ms

    def note_contact(self) -> None:
        """Keep when the leader was last heard of through a shared link."""
        if self._contact is not None:
            node_state = self._node_state
            node_state.heard_at = max(node_state.heard_at, self._contact.heard_at)

    @property
    def protects_leader(self) -> bool:
        """Whether a leader was heard of so lately that nobody should depose it. (§4.2.3)"""
        if not self.leader:
            return False
        heard_at = self._heard_at
        if self._contact is not None:
            heard_at = max(heard_at, self._contact.heard_at)
        return self._node_state.clock.now - heard_at < self._node_state.config.election_ms

    def append(self, message: Append) -> None:
        """Keep the leader's entries if they follow on what is here. (§3.5)"""
        self.heard()
        log = self._node_state.log
        self._node_state.heard_commit = max(self._node_state.heard_commit, message.commit)
        prev, entries = message.prev_index, message.entries
        end = prev + len(entries)
        if entries and (entries[0].index != prev + 1 or entries[-1].index != end):
            return
        # Whatever leads now has all that is committed, so that far there is nothing to compare.
        sure = min(log.committed, log.last_index)
        if prev > log.last_index or (prev > sure and log.term(prev) != message.prev_term):
            self._reject(message, sure)
            return
        if prev != log.last_index:
            entries = self._unknown(entries, sure)
        if entries:
            self._keep(entries)
        self._matched = max(self._matched, end, sure)
        log.commit_to(min(message.commit, self._matched))
        self._target = end
        self._owes = True
        self.answer()

    def answer(self) -> None:
        """Tell the leader what is durable here and known to be the same as its own log. (§3.8)

        Never more: a repeated Append says nothing of entries behind its own.
        """
        node_state, log = self._node_state, self._node_state.log
        if (
            not self.leader
            or node_state.durable_term != node_state.term
            or node_state.pending.installing
        ):
            return
        index = min(log.durable, self._matched)
        if index <= self._acked and not (self._owes and index >= self._target):
            return
        self._acked = index
        self._owes = self._owes and index < self._target
        node_state.pending.messages.append(
            AppendReply(self.leader, node_state.id, node_state.term, index, commit=log.committed)
        )

    def heartbeat(self, message: Heartbeat) -> None:
        """The leader is there; so am I."""
        self.heard()
        node_state = self._node_state
        # A leader names no more here than this node has acknowledged to it.
        node_state.log.commit_to(min(message.commit, node_state.log.last_index))
        reply = HeartbeatReply(message.sender, node_state.id, node_state.term, message.round)
        node_state.pending.messages.append(reply)

    def install(self, message: InstallSnapshot) -> None:
        """Collect a snapshot's pieces; the whole replaces state and log. (§5.2)"""
        self.heard()
        meta, log = message.snapshot, self._node_state.log
        if self._has(meta):
            sure = min(log.committed, log.last_index)
            self._matched = max(self._matched, sure, meta.base_index)
            self._target, self._owes = self._matched, True
            self.answer()
            return
        limit = self._node_state.config.max_snapshot_bytes
        if meta.index < log.committed or meta.size > limit:
            self._reply_snapshot(message, 0, rejected=True)
            return
        arriving = self.arriving = Arriving.of(meta, self.arriving)
        arriving.take(message.position, message.data)
        if arriving.complete:
            self._restore(meta, arriving.data())
        else:
            self._reply_snapshot(message, arriving.position, rejected=False)

    def _has(self, meta: SnapshotMeta) -> bool:
        """Whether the leader can go on with the log as it is here, without the snapshot.

        What is here may be acknowledged already, and must not go again for what is sent anyway.
        """
        log, base = self._node_state.log, meta.base_index
        if base <= min(log.committed, log.last_index):
            return True
        if meta.index <= log.last_index and log.term(meta.index) == meta.term:
            log.commit_to(meta.index)
            return True
        return base <= log.last_index and log.term(base) == meta.base_term

    def _restore(self, meta: SnapshotMeta, data: bytearray) -> None:
        node_state = self._node_state
        self.arriving = None
        snapshot = Snapshot(
            meta.index, meta.term, data, meta.configuration, meta.base_index, meta.base_term
        )
        node_state.pending.supersede(1)
        node_state.log.restore(snapshot)
        node_state.history.restart(meta.index, meta.configuration, lineage_of(meta.term))
        node_state.pending.snapshot = snapshot
        node_state.pending.installing += 1
        self._matched = self._target = meta.base_index
        self._acked, self._owes = 0, True

    def _unknown(self, entries: tuple[Entry, ...], sure: int) -> tuple[Entry, ...]:
        """Of the leader's entries those that are not here yet, or others in their place."""
        log = self._node_state.log
        for place, entry in enumerate(entries):
            index = entry.index
            if index > log.last_index or (index > sure and log.term(index) != entry.term):
                return entries[place:]
        return ()

    def _keep(self, entries: tuple[Entry, ...]) -> None:
        node_state = self._node_state
        first = entries[0].index
        if first <= node_state.log.last_index:
            node_state.pending.supersede(first)
            node_state.history.supersede(first)
        node_state.log.extend(entries)
        for entry in entries:
            # What a snapshot already covers may be filled in below it, and is not in force.
            if entry.kind is EntryKind.CONFIGURATION and entry.index > node_state.history.index:
                assert isinstance(entry.data, bytes)
                configuration = Configuration.unpack(entry.data)
                node_state.history.append(entry.index, configuration, lineage_of(entry.term))

    def ask_again(self) -> None:
        """Let the leader say again how it is with this member, though nothing else is to be said:
        a refusal at an entry at which both agree, which no Append can meet.
        """
        node_state, last = self._node_state, self._node_state.log.last_index
        term = node_state.log.term(last)
        if self.leader:
            reply = AppendReply(self.leader, node_state.id, node_state.term, last, True, last, term)
            node_state.pending.messages.append(reply)

    def _reject(self, message: Append, sure: int) -> None:
        """Say where the logs could agree instead, whole terms at a time. (§3.5, end)"""
        node_state, log = self._node_state, self._node_state.log
        hint = min(message.prev_index, log.last_index)
        hint = max(log.last_of_term(hint, message.prev_term), sure)
        node_state.pending.messages.append(
            AppendReply(
                message.sender,
                node_state.id,
                node_state.term,
                message.prev_index,
                rejected=True,
                hint_index=hint,
                hint_term=log.term(hint),
            )
        )

    def _reply_snapshot(self, message: InstallSnapshot, position: int, *, rejected: bool) -> None:
        node_state = self._node_state
        node_state.pending.messages.append(
            SnapshotReply(message.sender, node_state.id, node_state.term, position, rejected)
        )
