"""The rules of terms, and which role acts.

    Follower ──campaign──> Candidate ──own vote durable, majority──> Leader

A term starts with a campaign and has at most one leader (§3.3, §3.4). A role object lives as long
as its role in its term, so nothing of an earlier role or term can be read by accident. With several
voters two more arrows lead back to Follower, both on a message of a higher term: messages will
enter here beside tick(), and each role will own its answers to them.
"""

from __future__ import annotations

from enum import Enum

from weir.raft.candidate import Candidate
from weir.raft.config import Config
from weir.raft.errors import NotLeader, NotReady, StorageError
from weir.raft.follower import Follower
from weir.raft.leader import Leader
from weir.raft.log_view import LogView
from weir.raft.quorum import VoteResult
from weir.raft.ready import Leadership
from weir.raft.storage import EntryKind, HardState, Storage


class Role(Enum):
    """What a node is at the moment."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


_ROLES = {Follower: Role.FOLLOWER, Candidate: Role.CANDIDATE, Leader: Role.LEADER}


class Core:
    """One node's decisions. It changes only when told to, and what it wants is taken from it."""

    __slots__ = ("_changed", "_config", "fence", "hard_state", "log", "state")

    def __init__(self, config: Config, storage: Storage) -> None:
        config.validate()
        self._config = config
        self.fence = config.fence
        self.hard_state = storage.hard_state()
        self.log = LogView(config, storage)
        last_term = self.log.term(self.log.last_index)
        if last_term > self.hard_state.term:
            raise StorageError(
                f"the log ends in term {last_term}, the hard state in {self.hard_state.term}: a "
                "vote was lost with it, so this node must not vote again; add it under a new id"
            )
        self.state: Follower | Candidate | Leader = Follower()
        self._changed: HardState | None = None

    @property
    def role(self) -> Role:
        """What this node is at the moment."""
        return _ROLES[type(self.state)]

    @property
    def has_news(self) -> bool:
        """Whether a hard state or a leadership waits to be taken."""
        state = self.state
        return self._changed is not None or (isinstance(state, Leader) and not state.announced)

    def tick(self) -> None:
        """One unit of the host's time has passed."""
        if isinstance(self.state, Follower) and self.state.tick():
            self.campaign()

    def campaign(self) -> None:
        """Open a new term as candidate and vote for this node. (§3.4)

        A candidate only waits for its own disk, and a leader has won: both stay what they are.
        """
        if isinstance(self.state, Follower):
            self.hard_state = HardState(self.hard_state.term + 1, self._config.id)
            self._changed = self.hard_state
            self.state = Candidate(self._config.voters)

    def propose(self, data: object, size: int) -> int:
        """Append `data` to the leader's log and return its index; refusals as in Node.propose."""
        state = self.state
        if not isinstance(state, Leader):
            raise NotLeader(state.leader)
        if self.log.applied < state.first_index:
            raise NotReady(
                f"entry {state.first_index}, the first of term {self.hard_state.term}, is not "
                "applied yet: propose again once it is"
            )
        if size < 0:
            raise ValueError(f"the size of an entry is its bytes, not {size}")
        self.log.admit(size)
        return self.log.append(self.hard_state.term, EntryKind.NORMAL, data, size)

    def hard_state_durable(self, hard_state: HardState) -> None:
        """Count the candidate's own vote, now that no restart can take it back. (§3.8)"""
        state = self.state
        if isinstance(state, Candidate) and hard_state == self.hard_state:
            node = self._config.id
            if state.granted(node, self.fence) is VoteResult.WON:
                self._lead(state)

    def entries_durable(self, index: int) -> None:
        """Count the leader's own log through `index`, now that its disk holds it."""
        self.log.durable_to(index)
        if isinstance(self.state, Leader):
            self.log.commit_to(self.state.durable(self._config.id, index))

    def take_hard_state(self) -> HardState | None:
        """The hard state if it changed since it was last taken."""
        hard_state, self._changed = self._changed, None
        return hard_state

    def take_leadership(self) -> Leadership | None:
        """The election won since this was last asked."""
        state = self.state
        if not isinstance(state, Leader) or state.announced:
            return None
        state.announced = True
        # The own fence may have risen between the vote and now; the host has yet to hear of either.
        return Leadership(self.hard_state.term, max(state.fence, self.fence))

    def _lead(self, won: Candidate) -> None:
        node, voters = self._config.id, self._config.voters
        self.state = Leader(node, voters, self.log.last_index + 1, won.fence)
        # Without an entry of its own term it could commit nothing it inherited. (§3.6.2, §6.4)
        self.log.append(self.hard_state.term, EntryKind.NOOP, None, 0)
