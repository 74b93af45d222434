"""The role that extends the log: what it knows of each member's log exists only here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from weir_raft.config import NEVER, Contact
from weir_raft.membership import VoteResult
from weir_raft.messages import AppendReply, Heartbeat, HeartbeatReply, SnapshotReply, TimeoutNow
from weir_raft.node_state import NodeState
from weir_raft.ready import ReadState
from weir_raft.replication import Member, Replication
from weir_raft.storage import NOBODY, Entry, EntryKind, Snapshot


class Leader:
    """The leader of one term. `first_index` is its NOOP, the first entry of that term."""

    __slots__ = (
        "_beat_at",
        "_check_at",
        "_node_state",
        "_reads",
        "_replication",
        "_transfer_until",
        "announced",
        "deadline",
        "fence",
        "first_index",
        "leader",
        "members",
        "transferee",
    )

    def __init__(self, node_state: NodeState, fence: int) -> None:
        self._node_state = node_state
        self.leader = node_state.id
        self.first_index = node_state.log.last_index + 1
        #: The highest fence that the votes carried which made this node leader.
        self.fence = fence
        #: Whether the host has been told, by Ready.became_leader.
        self.announced = False
        self._replication = Replication(node_state, self.first_index)
        #: Everybody but this node who receives the log.
        self.members = self._replication.members
        self._reads: deque[tuple[int, int, int]] = deque()  # context, index, round to confirm
        #: Who is to lead next; proposals wait while it is somebody.
        self.transferee = NOBODY
        self._transfer_until = 0
        self._beat_at = node_state.clock.now
        self._check_at = node_state.clock.now + node_state.config.election_ms
        #: When tick() has something to do.
        self.deadline = node_state.clock.now
        self.reconfigured()

    def reconfigured(self) -> None:
        """Another configuration is in force: send to its members and to nobody else."""
        self._replication.reconfigured()
        if not self._node_state.configuration.counts(self.transferee):
            self.transferee = NOBODY
        self._serve()

    def hear_through(self, member: int, contact: Contact) -> None:
        """Let `contact` say from now on whether a member answers."""
        self.members[member].contact = contact

    def wake(self) -> None:
        """Look after the members with the next tick."""
        self.deadline = self._node_state.clock.now

    def append(self, kind: EntryKind, data: object, size: int) -> int:
        """Put an entry at the end of the log, to be written and sent with the next Ready."""
        node_state = self._node_state
        self._replication.dirty = bool(self.members)
        return node_state.log.append(node_state.hard_state.term, kind, data, size)

    @property
    def accepts(self) -> bool:
        """Whether proposals are taken: not before all before this term is applied."""
        return self._node_state.log.applied >= self.first_index and not self.transferee

    def commit(self) -> bool:
        """Commit what a majority holds durably; whether that was anything new.

        An entry of an older term may be durable on a majority and still be replaced, so it
        commits only together with an entry of this term. (§3.6.2, Figure 3.7)
        """
        node_state = self._node_state
        log = node_state.log
        if self.members:
            reached = node_state.history.newest.committed(self._replication.match())
        else:
            reached = log.durable
        if reached < self.first_index or reached <= log.committed:
            return False
        log.commit_to(reached)
        return True

    def append_reply(self, message: AppendReply) -> None:
        """Note where a member's log stands."""
        member = self._heard(message.sender)
        if member is None or message.index > self._node_state.log.last_index:
            return
        if message.rejected:
            self._replication.rejected(member, message)
        else:
            self._replication.acknowledged(member, message.index, message.commit)
            if self.transferee:
                self.hand_over()

    def snapshot_reply(self, message: SnapshotReply) -> None:
        """Send the next piece of a snapshot."""
        member = self._heard(message.sender)
        if member is not None:
            self._replication.snapshot_reply(member, message)

    def heartbeat_reply(self, message: HeartbeatReply) -> None:
        """A member follows as of a round of heartbeats."""
        if self._heard(message.sender) is not None:
            self.confirm(message.sender, message.round)

    def _heard(self, sender: int) -> Member | None:
        member = self.members.get(sender)
        if member is not None and not self._node_state.contacts.shared:
            member.contact.heard_at = self._node_state.clock.now
        return member

    def send(self) -> None:
        """Put what members lack, as far as their windows allow, in line to be sent, and begin the
        round that reads wait for.
        """
        if self._replication.dirty:
            self._replication.send()
            now, config = self._node_state.clock.now, self._node_state.config
            self.deadline = min(self.deadline, now + config.heartbeat_ms // 2)
        if self._reads:
            self.begin_round()

    def has_quorum(self) -> bool:
        """Whether a majority was heard of within an election timeout. (§6.2)"""
        node_state = self._node_state
        since = node_state.clock.now - node_state.config.election_ms
        heard = {id: member.heard_since(since) for id, member in self.members.items()}
        heard[node_state.id] = True
        return node_state.configuration.vote_result(heard) is VoteResult.WON

    def tick(self) -> bool:
        """Say that this node leads, ask again what was not answered; False: step down."""
        node_state = self._node_state
        now = node_state.clock.now
        if self.transferee and now >= self._transfer_until:
            self.transferee = NOBODY
        elif self.transferee and self._is_hand_over_late:
            self.hand_over()
        if now >= self._check_at or node_state.contacts.shared:
            self._check_at = now + node_state.config.heartbeat_ms
            if not self.has_quorum():
                return False
        if now >= self._beat_at and not node_state.contacts.shared:
            self._beat()
        self._replication.nudge(now)
        self.schedule()
        return True

    def schedule(self) -> None:
        """Set the time of the next tick: none while links beat and everybody has everything."""
        node_state = self._node_state
        now, config = node_state.clock.now, node_state.config
        links_beat = node_state.contacts.shared and not self.transferee
        if not self.members:
            self.deadline = NEVER
        elif not (links_beat and self._replication.all_current):
            self.deadline = now + config.heartbeat_ms // 2
        elif any(m.contact.heard_at <= now - config.election_ms for m in self.members.values()):
            # A new leader's good faith ends, too, and no beat that is missing would tell.
            self.deadline = now + config.election_ms
        else:
            self.deadline = NEVER

    def read(self, context: int) -> None:
        """Serve a read once a majority has confirmed that this node still leads. (§6.4)"""
        node_state = self._node_state
        index = node_state.log.committed
        if node_state.alone:
            node_state.pending.reads.append(ReadState(context, index))
            return
        self._reads.append((context, index, node_state.clock.round + 1))

    @property
    def reading(self) -> bool:
        """Whether reads wait for a round that is not sent yet."""
        return bool(self._reads) and self._reads[-1][2] > self._node_state.clock.round

    @property
    def confirming(self) -> bool:
        """Whether reads wait for any round."""
        return bool(self._reads)

    def begin_round(self) -> None:
        """Send the round of heartbeats that reads wait for."""
        if self._reads and self.reading and not self._node_state.contacts.shared:
            self._beat()

    def confirm(self, sender: int, round: int) -> None:
        """A member followed this leader when it answered `round`."""
        member = self.members.get(sender)
        if member is None or round <= member.round:
            return
        member.round = round
        self._serve()

    def _serve(self) -> None:
        reads, node_state = self._reads, self._node_state
        while reads:
            context, index, needed = reads[0]
            said = {id: True for id, member in self.members.items() if member.round >= needed}
            said[node_state.id] = True
            if node_state.configuration.vote_result(said) is not VoteResult.WON:
                return
            reads.popleft()
            node_state.pending.reads.append(ReadState(context, index))

    def _beat(self) -> None:
        node_state = self._node_state
        node_state.clock.round += 1
        self._beat_at = node_state.clock.now + node_state.config.heartbeat_ms
        for id, member in self.members.items():
            commit = min(member.match, node_state.log.committed)
            beat = Heartbeat(id, node_state.id, node_state.term, commit, node_state.clock.round)
            node_state.pending.messages.append(beat)

    def transfer(self, voter: int) -> None:
        """Let `voter` campaign once it has the whole log; give up after a while. (§3.10)

        Whoever asks again, for whomever, does not prolong that while: no proposal is taken in it.
        """
        node_state = self._node_state
        if not self.transferee:
            self._transfer_until = node_state.clock.now + 2 * node_state.config.election_ms
        self.transferee = voter
        self.deadline = min(self.deadline, node_state.clock.now)
        self.hand_over()

    def hand_over(self) -> None:
        """Let the next leader campaign, if it has the whole log, and the host has applied that:
        then whoever proposed something knows what became of it.

        The own disk may hang, and nothing is applied that it does not have: after an election
        timeout the host is not waited for.
        """
        log = self._node_state.log
        member = self.members.get(self.transferee)
        if member is None or member.match != log.last_index:
            return
        if log.applied == log.last_index or self._is_hand_over_late:
            self._tell_to_campaign(member.id)

    @property
    def _is_hand_over_late(self) -> bool:
        node_state = self._node_state
        return node_state.clock.now >= self._transfer_until - node_state.config.election_ms

    def _tell_to_campaign(self, id: int) -> None:
        self._node_state.pending.messages.append(
            TimeoutNow(id, self._node_state.id, self._node_state.term)
        )

    def give_up(self) -> None:
        """Let the voter with the longest log campaign: this node belongs no more. (§4.2.2)"""
        voters = [m for id, m in self.members.items() if self._node_state.configuration.counts(id)]
        if voters:
            self._tell_to_campaign(max(voters, key=lambda member: member.match).id)

    def reached(self, id: int) -> None:
        """Messages to a member may have been lost, or can go out again: ask where it stands."""
        member = self.members.get(id)
        if member is not None:
            self._replication.fail(member)

    def loaded(self, number: int, entries: Sequence[Entry] | None) -> None:
        """Entries that a Load asked for were read, or could not be."""
        self._replication.loaded(number, tuple(entries or ()))

    def send_snapshot(self, id: int, snapshot: Snapshot) -> None:
        """Send what Ready.wants_snapshot asked for."""
        member = self.members.get(id)
        if member is not None:
            self._replication.begin_snapshot(member, snapshot)
