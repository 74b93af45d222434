"""What every role stands on: it outlives roles and terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weir_raft.config import NEVER, Config, NodeContext, OwnContext
from weir_raft.log_view import LogView
from weir_raft.membership import Configuration, History, VoteResult, lineage_of
from weir_raft.ready import Pending
from weir_raft.storage import NOBODY, HardState, Storage


class NodeState:
    """Identity, hard state, log and configuration of a node, and what it wants of its host."""

    __slots__ = (
        "clock",
        "config",
        "contacts",
        "durable_term",
        "hard_state",
        "heard_at",
        "heard_commit",
        "history",
        "id",
        "log",
        "pending",
        "promises",
        "random",
        "term",
    )

    def __init__(
        self, config: Config, storage: Storage, context: NodeContext | None = None
    ) -> None:
        if context is None:
            context = OwnContext()
        self.config = config
        self.id = config.id
        self.promises = context.promises
        self.promises.raise_to(config.fence)
        self.random: Callable[[], float] = config.random or _Spread(config.id).draw
        self.clock = context.clock
        self.contacts = context.contacts
        self.log = LogView(config, storage)
        snapshot = storage.snapshot()
        self.history = History(
            snapshot.index if snapshot else 0,
            storage.configuration() or Configuration(config.voters, (), config.learners),
            storage.configurations(),
            self._lineage_at,
        )
        self.hard_state = storage.hard_state()
        #: The current term: that of the hard state.
        self.term = self.hard_state.term
        #: The term of the last hard state that is durable.
        self.durable_term = self.hard_state.term
        #: When a leader was last heard of, and through where it had committed: what a copy that is
        #: forced knows of the rest.
        self.heard_at = -NEVER
        self.heard_commit = 0
        #: What the host is to be told, and has yet to make durable.
        self.pending = Pending()

    @property
    def fence(self) -> int:
        """The highest fence that was promised."""
        return self.promises.fence

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group."""
        return self.history.newest

    @property
    def lineage(self) -> int:
        """The lineage of the current term."""
        return lineage_of(self.term)

    def is_foreign(self, term: int) -> bool:
        """Whether a term is of another lineage than this node, whose log says nothing of that one:
        what was committed there may not be here, or the other way round. A node that was never
        told anything belongs to none yet.
        """
        return self.term > 0 and lineage_of(term) != lineage_of(self.term)

    def vote_result(self, votes: Mapping[int, bool]) -> VoteResult:
        """How an election stands. Where the voters were forced, all of them have to agree: any may
        know of a committed entry that a majority of them lacks.
        """
        if not self.history.is_forced:
            return self.configuration.vote_result(votes)
        said = [votes.get(voter) for voter in self.configuration.voters]
        if False in said:
            return VoteResult.LOST
        return VoteResult.PENDING if None in said else VoteResult.WON

    @property
    def alone(self) -> bool:
        """Whether this node's own word is a majority."""
        configuration = self.history.newest
        return configuration.voters == (self.id,) and not configuration.outgoing

    @property
    def may_lead(self) -> bool:
        """Whether this node is a voter that holds all it has applied.

        One that the newest configuration leaves out may be needed until that is committed. (§4.2.2)
        A configuration of an earlier lineage than the term's says nothing of who votes now.
        """
        history, log = self.history, self.log
        if log.back_filling:
            return False
        if self.lineage > history.lineage and not history.is_forced:
            return False
        if history.newest.counts(self.id):
            return True
        return history.index > log.committed and history.at(history.index - 1).counts(self.id)

    def _lineage_at(self, index: int) -> int:
        return lineage_of(self.log.term(index)) if index else 0

    def enter(self, term: int, vote: int = NOBODY) -> None:
        """Take a term, or a vote in it, that is to become durable."""
        self.hard_state = self.pending.hard_state = HardState(term, vote)
        self.term = term

    def timeout(self) -> int:
        """How long to wait for a leader this time: drawn, so that votes rarely split. (§3.4)"""
        election_ms = self.config.election_ms
        return election_ms + int(election_ms * self.random())


class _Spread:
    """A fixed sequence in [0, 1), another for each id (a linear congruential generator)."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF

    def draw(self) -> float:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & ((1 << 64) - 1)
        return (self._state >> 11) / (1 << 53)
