"""The rules of terms, and which role acts.

    Follower ──timeout──> PreCandidate ──majority──> Candidate ──majority──> Leader
       │                                                ▲
       └──alone, or told by the leader to campaign──────┘

A term starts with a campaign and has at most one leader (§3.3, §3.4). Each of the others becomes a
Follower again on a message of a higher term, a candidate also on one of its term's leader, and a
leader that no majority answers. A role object lives as long as its role in its term, so nothing of
an earlier role or term can be read by accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from weir_raft.config import Config, NodeContext
from weir_raft.election import Candidate, PreCandidate, reply_to_request
from weir_raft.errors import (
    ChangePending,
    InvalidChange,
    NotLeader,
    NotReady,
    OutOfOrder,
    StorageError,
)
from weir_raft.follower import Follower
from weir_raft.leader import Leader
from weir_raft.membership import LINEAGE_MAX, Change, Configuration, VoteResult, first_term
from weir_raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from weir_raft.node_state import NodeState
from weir_raft.ready import Asked, Leadership
from weir_raft.storage import NOBODY, Entry, EntryKind, HardState, Snapshot, Storage


class Role(Enum):
    """What a node is at the moment."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


_ROLES = {
    Follower: Role.FOLLOWER,
    PreCandidate: Role.PRE_CANDIDATE,
    Candidate: Role.CANDIDATE,
    Leader: Role.LEADER,
}
_FROM_LEADER = (Append, Heartbeat, InstallSnapshot, TimeoutNow)


class Core:
    """One node's decisions. It changes only when told to, and what it wants is taken from it."""

    __slots__ = ("log", "node_state", "state")

    def __init__(self, config: Config, storage: Storage, context: NodeContext) -> None:
        config.validate()
        self.node_state = NodeState(config, storage, context)
        self.log = self.node_state.log
        last_term, _ = self.log.end
        if last_term > self.node_state.term:
            raise StorageError(
                f"the log ends in term {last_term}, the hard state in {self.node_state.term}: a "
                "vote was lost with it, so this node must not vote again; add it under a new id"
            )
        self.state: Follower | PreCandidate | Candidate | Leader = Follower(self.node_state)

    @property
    def role(self) -> Role:
        """What this node is at the moment."""
        return _ROLES[type(self.state)]

    def queue_messages(self) -> None:
        """Let a leader put what members lack into the outbox: once for all that was proposed."""
        state = self.state
        if isinstance(state, Leader):
            state.send()

    @property
    def has_news(self) -> bool:
        """Whether something but entries waits to be taken."""
        state = self.state
        return self.node_state.pending.any or (isinstance(state, Leader) and not state.announced)

    # Time and elections

    def tick(self) -> None:
        """Time has passed: do what is due."""
        state = self.state
        if self.node_state.clock.now < state.deadline:
            return
        if isinstance(state, Leader):
            if not state.tick():
                self.node_state.pending.lost_quorum = True
                self._follow(self.node_state.term)
        else:
            self._seek()

    def campaign(self) -> None:
        """Seek election; without effect on a candidate or a leader. (§3.4)"""
        if isinstance(self.state, Follower):
            self._seek()

    def _seek(self) -> None:
        node_state = self.node_state
        if not node_state.may_lead:
            # Timed out, but not a voter, or without entries that its state was made of.
            self.state = Follower(node_state)
            self.state.deadline = node_state.clock.now + node_state.timeout()
        elif node_state.alone:
            self._stand()
        else:
            self.state = PreCandidate(node_state)
            self.state.ask()
            self._pre_voted(self.state, node_state.id, granted=True)

    def _pre_voted(self, state: PreCandidate, voter: int, *, granted: bool) -> None:
        result = state.voted(voter, granted)
        if result is VoteResult.WON:
            self._stand()
        elif result is VoteResult.LOST:
            self.state = Follower(self.node_state)

    def _stand(self, *, forced: bool = False) -> None:
        node_state = self.node_state
        node_state.enter(node_state.term + 1, node_state.id)
        self.state = Candidate(node_state, forced=forced)

    def _voted(self, state: Candidate, voter: int, *, granted: bool, fence: int) -> None:
        result = state.voted(voter, granted, fence)
        if result is VoteResult.WON:
            self.state = Leader(self.node_state, state.fence)
            if self.node_state.history.is_forced:
                # First of all entries of the lineage: a snapshot that has any of them has it.
                self.configure(self.state, self.node_state.configuration)
            # Without an entry of its own term it could commit nothing it inherited. (§3.6.2, §6.4)
            self.state.append(EntryKind.NOOP, None, 0)
        elif result is VoteResult.LOST:
            self.state = Follower(self.node_state)

    def _follow(self, term: int, leader: int = NOBODY) -> None:
        node_state = self.node_state
        if isinstance(self.state, Leader):
            node_state.pending.lost_leadership |= self.state.announced
        if term > node_state.term:
            node_state.enter(term)
        self.state = Follower(node_state, leader)

    def follow(self, term: int, leader: int) -> bool:
        """Follow `leader` of `term`, as a shared link says; False if that is over here."""
        node_state, state = self.node_state, self.state
        if node_state.is_foreign(term):
            return False
        if term < node_state.term or (term == node_state.term and isinstance(state, Leader)):
            return False
        if term > node_state.term or not isinstance(state, Follower):
            self._follow(term, leader)
        else:
            state.leader = leader
        return True

    # Messages

    def step(self, message: Message) -> None:
        """Take a message of another member. (Figure 3.1, "Rules for Servers")

        Those of another lineage say nothing: who leads there need not have what is committed here.
        """
        term = self.node_state.hard_state.term
        if message.term != term and self.node_state.is_foreign(message.term):
            return
        if isinstance(message, VoteRequest):
            if self._protected(message):
                return
            if message.term > term and not message.pre:
                self._follow(message.term)
            reply_to_request(self.node_state, self.state, message)
            return
        if message.term > term:
            if isinstance(message, VoteReply) and message.pre and message.granted:
                self._pre_vote(message)
                return
            from_leader = isinstance(message, _FROM_LEADER)
            self._follow(message.term, message.sender if from_leader else NOBODY)
        elif message.term < term:
            self._tell_stale(message)
            return
        if isinstance(message, _FROM_LEADER):
            self._from_leader(message)
        else:
            self._reply(message)

    def _protected(self, message: VoteRequest) -> bool:
        """Whether a leader was heard of too lately to let anybody depose it. (§4.2.3)"""
        if message.term <= self.node_state.term or message.forced:
            return False
        state = self.state
        if isinstance(state, Leader):
            return state.has_quorum()
        return isinstance(state, Follower) and state.protects_leader

    def _tell_stale(self, message: Message) -> None:
        """A leader of an earlier term learns that it is over; nobody else needs to."""
        if isinstance(message, _FROM_LEADER):
            node_state = self.node_state
            node_state.pending.messages.append(
                AppendReply(message.sender, node_state.id, node_state.term, 0, rejected=True)
            )

    def _from_leader(self, message: Append | Heartbeat | InstallSnapshot | TimeoutNow) -> None:
        state = self.state
        if isinstance(state, Leader):
            return
        if not isinstance(state, Follower):
            self._follow(message.term, message.sender)
            state = self.state
            assert isinstance(state, Follower)
        state.leader = message.sender
        if isinstance(message, Append):
            state.append(message)
        elif isinstance(message, Heartbeat):
            state.heartbeat(message)
        elif isinstance(message, InstallSnapshot):
            state.install(message)
        elif self.node_state.may_lead:
            self._stand(forced=True)

    def _reply(self, message: Message) -> None:
        state = self.state
        if isinstance(message, VoteReply):
            if isinstance(state, Candidate) and not message.pre:
                self._voted(state, message.sender, granted=message.granted, fence=message.fence)
            elif message.pre:
                self._pre_vote(message)
        elif isinstance(state, Leader):
            if isinstance(message, AppendReply):
                state.append_reply(message)
                self._commit(state)
            elif isinstance(message, HeartbeatReply):
                state.heartbeat_reply(message)
            elif isinstance(message, SnapshotReply):
                state.snapshot_reply(message)

    def _pre_vote(self, message: VoteReply) -> None:
        state = self.state
        # A grant names the term it would be for, a refusal the term of the one who refuses.
        wanted = self.node_state.term + 1 if message.granted else self.node_state.term
        if isinstance(state, PreCandidate) and message.term == wanted:
            self._pre_voted(state, message.sender, granted=message.granted)

    # The leader's duties

    def configure(self, state: Leader, configuration: Configuration) -> int:
        """Append a configuration, which is in force from now on, and return its index."""
        data = configuration.pack()
        index = state.append(EntryKind.CONFIGURATION, data, len(data))
        self.node_state.history.append(index, configuration, self.node_state.lineage)
        state.reconfigured()
        return index

    def _commit(self, state: Leader) -> None:
        if not state.commit() or not state.members:
            return
        node_state = self.node_state
        if node_state.history.index > self.log.committed:
            return
        if node_state.history.newest.outgoing:
            self.configure(state, node_state.history.newest.left())
        elif not node_state.history.newest.counts(node_state.id):
            state.give_up()
            self._follow(node_state.term)

    # What the host asks for

    def propose(self, data: object, size: int) -> int:
        """Append `data` to the leader's log and return its index; refusals as in Node.propose."""
        state = self.state
        if not (isinstance(state, Leader) and state.accepts):
            raise self._refusal()
        if size < 0:
            raise ValueError(f"the size of an entry is its bytes, not {size}")
        self.log.admit(size)
        return state.append(EntryKind.NORMAL, data, size)

    def change(self, change: Change) -> int:
        """Append the configuration that `change` leads to and return its index."""
        state, node_state = self.state, self.node_state
        if not (isinstance(state, Leader) and state.accepts):
            raise self._refusal()
        if node_state.configuration.joint or node_state.history.index > self.log.committed:
            raise ChangePending("a change of the configuration is under way: wait until it is done")
        return self.configure(state, node_state.configuration.changed(change))

    def force(self, lineage: int, voters: tuple[int, ...]) -> None:
        """Go on as one of these voters alone; refusals as in Lineages.force."""
        node_state = self.node_state
        configuration = Configuration(voters)
        configuration.validate()
        if node_state.id not in voters or not 0 < lineage <= LINEAGE_MAX:
            raise InvalidChange(
                f"{node_state.id} cannot go on in lineage {lineage} with voters {voters}"
            )
        if lineage < node_state.lineage:
            raise InvalidChange(f"lineage {node_state.lineage} has begun: {lineage} is over")
        if lineage <= node_state.history.lineage:
            return  # somebody led in it already
        if lineage == node_state.lineage and node_state.history.is_forced:
            return  # it was told before
        self._follow(max(first_term(lineage), node_state.term))
        node_state.history.force(lineage, configuration)
        self.state.deadline = node_state.clock.now
        if not node_state.alone:
            self.state.deadline += node_state.timeout()

    def retire(self, lineage: int) -> None:
        """Lead and vote in no lineage below this one; refusals as in Lineages.retire."""
        if not 0 < lineage <= LINEAGE_MAX:
            raise InvalidChange(f"there is no lineage {lineage}")
        if lineage > self.node_state.lineage:
            self._follow(first_term(lineage))

    def read(self, context: int) -> None:
        """Ask for a ReadState; refusals as in Node.read_index."""
        state = self._leading()
        if self.log.committed < state.first_index:
            raise NotReady(
                f"entry {state.first_index}, the first of term {self.node_state.term}, is not "
                "committed yet: ask again once it is"
            )
        state.read(context)

    def transfer(self, voter: int) -> None:
        """Hand the leadership over; refusals as in Node.transfer_leadership."""
        state = self._leading()
        if voter == self.node_state.id:
            return
        if not self.node_state.configuration.counts(voter):
            raise InvalidChange(f"{voter} is no voter, so it cannot lead")
        state.transfer(voter)

    def ask_again(self) -> None:
        """Ask the leader how it is with this member."""
        if isinstance(self.state, Follower):
            self.state.ask_again()

    def send_snapshot(self, voter: int, snapshot: Snapshot) -> None:
        """Send what wants_snapshot asked for; OutOfOrder if it does not meet the log."""
        log = self.log
        if snapshot.base_index + 1 < log.first_index or snapshot.index > log.applied:
            raise OutOfOrder(
                f"a snapshot as of {snapshot.index} over {snapshot.base_index} does not meet a log "
                f"from {log.first_index} that is applied through {log.applied}"
            )
        if isinstance(self.state, Leader):
            self.state.send_snapshot(voter, snapshot)

    def _leading(self) -> Leader:
        state = self.state
        if not isinstance(state, Leader):
            raise NotLeader(state.leader)
        return state

    def _refusal(self) -> NotLeader | NotReady:
        """Return why nothing is appended to the log."""
        state = self.state
        if not isinstance(state, Leader):
            return NotLeader(state.leader)
        if state.transferee:
            return NotReady(f"leadership is handed to {state.transferee}: propose there soon")
        return NotReady(
            f"entry {state.first_index}, the first of term {self.node_state.term}, is not "
            "applied yet: propose again once it is"
        )

    # What the host has done

    def persisted(self, asked: Asked) -> None:
        """All that a Ready asked to persist is durable."""
        if asked.hard_state is not None:
            self._hard_state_durable(asked.hard_state)
        if asked.installs:
            self.node_state.pending.installing -= 1
        if asked.last_index:
            self.log.durable_to(asked.last_index)
        state = self.state
        if isinstance(state, Leader):
            self._commit(state)
        elif isinstance(state, Follower):
            state.answer()

    def _hard_state_durable(self, hard_state: HardState) -> None:
        """Count or send the vote of this term, now that no restart can take it back. (§3.8)"""
        node_state, state = self.node_state, self.state
        node_state.durable_term = hard_state.term
        if hard_state != node_state.hard_state:
            return
        if isinstance(state, Candidate):
            state.ask()
            self._voted(state, node_state.id, granted=True, fence=node_state.fence)
        elif isinstance(state, Follower) and state.owes_vote:
            voter, state.owes_vote = state.owes_vote, NOBODY
            node_state.pending.messages.append(
                VoteReply(
                    voter, node_state.id, node_state.term, granted=True, fence=node_state.fence
                )
            )

    def loaded(self, number: int, entries: Sequence[Entry] | None) -> None:
        """Entries that a Load asked for were read."""
        if isinstance(self.state, Leader):
            self.state.loaded(number, entries)

    def take_leadership(self) -> Leadership | None:
        """The election won since this was last asked."""
        state = self.state
        if not isinstance(state, Leader) or state.announced:
            return None
        state.announced = True
        # The own fence may have risen between the vote and now; the host has yet to hear of either.
        return Leadership(self.node_state.term, max(state.fence, self.node_state.fence))
