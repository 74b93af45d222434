"""The role that extends the log: what it knows of each member's log exists only here."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from weir_raft.context import NEVER, Contact
from weir_raft.ground import Ground
from weir_raft.member import Member
from weir_raft.messages import AppendReply, Heartbeat, HeartbeatReply, SnapshotReply, TimeoutNow
from weir_raft.quorum import VoteResult
from weir_raft.ready import ReadState
from weir_raft.sending import Sending
from weir_raft.storage import NOBODY, Entry, EntryKind, Snapshot


class Leader:
    """The leader of one term. `first_index` is its NOOP, the first entry of that term."""

    __slots__ = (
        "_beat_at",
        "_check_at",
        "_ground",
        "_reads",
        "_sending",
        "_transfer_until",
        "announced",
        "deadline",
        "fence",
        "first_index",
        "leader",
        "members",
        "transferee",
    )

    def __init__(self, ground: Ground, fence: int) -> None:
        self._ground = ground
        self.leader = ground.id
        self.first_index = ground.log.last_index + 1
        #: The highest fence that the votes carried which made this node leader.
        self.fence = fence
        #: Whether the host has been told, by Ready.became_leader.
        self.announced = False
        #: Everybody but this node who receives the log.
        self.members: dict[int, Member] = {}
        self._sending = Sending(ground, self._spares)
        self._reads: deque[tuple[int, int, int]] = deque()  # context, index, round to confirm
        #: Who is to lead next; proposals wait while it is somebody.
        self.transferee = NOBODY
        self._transfer_until = 0
        self._beat_at = ground.clock.now
        self._check_at = ground.clock.now + ground.config.election_ms
        #: When tick() has something to do.
        self.deadline = ground.clock.now
        self.reconfigured()

    def reconfigured(self) -> None:
        """Another configuration is in force: send to its members and to nobody else."""
        ground = self._ground
        members = [member for member in ground.configuration.members if member != ground.id]
        for gone in [member for member in self.members if member not in members]:
            self._sending.forget(self.members.pop(gone))
        for id in members:
            if id not in self.members:
                contact = ground.contacts.of(id)
                now = ground.clock.now
                self.members[id] = Member(id, ground.log.last_index + 1, contact, now)
        if not ground.configuration.counts(self.transferee):
            self.transferee = NOBODY
        self._sending.dirty = bool(self.members)
        self._serve()

    def hear_through(self, member: int, contact: Contact) -> None:
        """Let `contact` say from now on whether a member answers."""
        self.members[member].contact = contact

    def wake(self) -> None:
        """Look after the members with the next tick."""
        self.deadline = self._ground.clock.now

    def append(self, kind: EntryKind, data: object, size: int) -> int:
        """Put an entry at the end of the log, to be written and sent with the next Ready."""
        ground = self._ground
        self._sending.dirty = bool(self.members)
        return ground.log.append(ground.hard_state.term, kind, data, size)

    @property
    def accepts(self) -> bool:
        """Whether proposals are taken: not before all before this term is applied."""
        return self._ground.log.applied >= self.first_index and not self.transferee

    def advance(self) -> bool:
        """Commit what a majority holds durably; whether that was anything new.

        An entry of an older term may be durable on a majority and still be replaced, so it
        commits only together with an entry of this term. (§3.6.2, Figure 3.7)
        """
        log = self._ground.log
        alone = not self.members
        reached = log.durable if alone else self._ground.history.newest.committed(self._match())
        if reached < self.first_index or reached <= log.committed:
            return False
        log.commit_to(reached)
        return True

    def _match(self) -> dict[int, int]:
        # This node counts as one voter among others, by what its disk holds. (§10.2.1)
        match = {self._ground.id: self._ground.log.durable}
        for id, member in self.members.items():  # each acknowledgement comes by here
            match[id] = member.match
        return match

    def _spares(self, member: Member) -> bool:
        """Whether a majority holds an entry of this term and all that a member acknowledged, the
        member not counted, nor any other at its place: it may have been another one before.
        """
        match, needed = self._match(), self.first_index
        for one in self.members.values():
            if one.contact is member.contact:
                match[one.id] = 0
                needed = max(needed, one.vouched)
        return self._ground.history.newest.committed(match) >= needed

    def append_reply(self, message: AppendReply) -> None:
        """Note where a member's log stands."""
        member = self._heard(message.sender)
        if member is None or message.index > self._ground.log.last_index:
            return
        if message.rejected:
            self._sending.rejected(member, message)
        else:
            self._sending.acknowledged(member, message.index, message.commit)
            self._hand_over(member)

    def snapshot_reply(self, message: SnapshotReply) -> None:
        """Send the next piece of a snapshot."""
        member = self._heard(message.sender)
        if member is not None:
            self._sending.snapshot_reply(member, message)

    def heartbeat_reply(self, message: HeartbeatReply) -> None:
        """A member follows as of a round of heartbeats."""
        if self._heard(message.sender) is not None:
            self.confirm(message.sender, message.round)

    def _heard(self, sender: int) -> Member | None:
        member = self.members.get(sender)
        if member is not None and not self._ground.contacts.shared:
            member.contact.heard_at = self._ground.clock.now
        return member

    @property
    def has_to_send(self) -> bool:
        """Whether send() or begin_round() may have something to do."""
        return self._sending.dirty or bool(self._reads)

    def send(self) -> None:
        """Put what members lack, as far as their windows allow, in line to be sent."""
        if self._sending.dirty:
            self._sending.send(self.members)
            now, config = self._ground.clock.now, self._ground.config
            self.deadline = min(self.deadline, now + config.heartbeat_ms // 2)

    def has_quorum(self) -> bool:
        """Whether a majority was heard of within an election timeout. (§6.2)"""
        ground = self._ground
        since = ground.clock.now - ground.config.election_ms
        heard = {id: member.heard_since(since) for id, member in self.members.items()}
        heard[ground.id] = True
        return ground.configuration.vote_result(heard) is VoteResult.WON

    def tick(self) -> bool:
        """Say that this node leads, ask again what was not answered; False: step down."""
        ground = self._ground
        now = ground.clock.now
        if self.transferee and now >= self._transfer_until:
            self.transferee = NOBODY
        if now >= self._check_at or ground.contacts.shared:
            self._check_at = now + ground.config.heartbeat_ms
            if not self.has_quorum():
                return False
        if now >= self._beat_at and not ground.contacts.shared:
            self._beat()
        self._sending.nudge(self.members, now)
        self.schedule()
        return True

    def schedule(self) -> None:
        """Set the time of the next tick: none while links beat and everybody has everything."""
        ground = self._ground
        now, config = ground.clock.now, ground.config
        if not self.members:
            self.deadline = NEVER
        elif (
            not ground.contacts.shared or self.transferee or not self._sending.settled(self.members)
        ):
            self.deadline = now + config.heartbeat_ms // 2
        elif any(m.contact.heard_at <= now - config.election_ms for m in self.members.values()):
            # A new leader's good faith ends, too, and no beat that is missing would tell.
            self.deadline = now + config.election_ms
        else:
            self.deadline = NEVER

    def read(self, context: int) -> None:
        """Serve a read once a majority has confirmed that this node still leads. (§6.4)"""
        ground = self._ground
        index = ground.log.committed
        if ground.alone:
            ground.reads.append(ReadState(context, index))
            return
        self._reads.append((context, index, ground.clock.round + 1))

    @property
    def reading(self) -> bool:
        """Whether reads wait for a round that is not sent yet."""
        return bool(self._reads) and self._reads[-1][2] > self._ground.clock.round

    @property
    def confirming(self) -> bool:
        """Whether reads wait for any round."""
        return bool(self._reads)

    def begin_round(self) -> None:
        """Send the round of heartbeats that reads wait for."""
        if self.reading and not self._ground.contacts.shared:
            self._beat()

    def confirm(self, sender: int, round: int) -> None:
        """A member followed this leader when it answered `round`."""
        member = self.members.get(sender)
        if member is None or round <= member.round:
            return
        member.round = round
        self._serve()

    def _serve(self) -> None:
        reads, ground = self._reads, self._ground
        while reads:
            context, index, needed = reads[0]
            said = {id: True for id, member in self.members.items() if member.round >= needed}
            said[ground.id] = True
            if ground.configuration.vote_result(said) is not VoteResult.WON:
                return
            reads.popleft()
            ground.reads.append(ReadState(context, index))

    def _beat(self) -> None:
        ground = self._ground
        ground.clock.round += 1
        self._beat_at = ground.clock.now + ground.config.heartbeat_ms
        for id, member in self.members.items():
            commit = min(member.match, ground.log.committed)
            beat = Heartbeat(id, ground.id, ground.term, commit, ground.clock.round)
            ground.outbox.append(beat)

    def transfer(self, voter: int) -> None:
        """Let `voter` campaign once it has the whole log; give up after a while. (§3.10)

        Whoever asks again, for whomever, does not prolong that while: no proposal is taken in it.
        """
        ground = self._ground
        if not self.transferee:
            self._transfer_until = ground.clock.now + 2 * ground.config.election_ms
        self.transferee = voter
        self.deadline = min(self.deadline, ground.clock.now)
        self._hand_over(self.members[voter])

    def _hand_over(self, member: Member) -> None:
        if member.id == self.transferee and member.match == self._ground.log.last_index:
            self._tell_to_campaign(member.id)

    def _tell_to_campaign(self, id: int) -> None:
        self._ground.outbox.append(TimeoutNow(id, self._ground.id, self._ground.term))

    def give_up(self) -> None:
        """Let the voter with the longest log campaign: this node belongs no more. (§4.2.2)"""
        voters = [m for id, m in self.members.items() if self._ground.configuration.counts(id)]
        if voters:
            self._tell_to_campaign(max(voters, key=lambda member: member.match).id)

    def reached(self, id: int) -> None:
        """Messages to a member may have been lost, or can go out again: ask where it stands."""
        member = self.members.get(id)
        if member is not None:
            self._sending.fail(member)

    def loaded(self, number: int, entries: Sequence[Entry] | None) -> None:
        """Entries that a Load asked for were read, or could not be."""
        self._sending.loaded(number, tuple(entries or ()))

    def send_snapshot(self, id: int, snapshot: Snapshot) -> None:
        """Send what Ready.wants_snapshot asked for."""
        member = self.members.get(id)
        if member is not None:
            self._sending.begin_snapshot(member, snapshot)
