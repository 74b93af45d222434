"""What every role stands on: it outlives roles and terms."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from weir_raft.config import Config, NodeContext, OwnContext
from weir_raft.errors import StorageError
from weir_raft.log_view import LogView
from weir_raft.membership import Configuration
from weir_raft.messages import Message
from weir_raft.ready import Load, ReadState
from weir_raft.storage import NOBODY, HardState, Snapshot, Storage


class Asked:
    """What one Ready asked to persist."""

    __slots__ = ("hard_state", "installs", "last_index", "number")

    def __init__(
        self, number: int, hard_state: HardState | None, last_index: int, installs: bool
    ) -> None:
        self.number = number
        self.hard_state = hard_state
        #: The last of its entries that still counts; 0: none.
        self.last_index = last_index
        self.installs = installs


class History:
    """The configurations in a node's log, oldest first; the newest counts. (§4.1)"""

    __slots__ = ("_known", "newest")

    def __init__(self, config: Config, storage: Storage) -> None:
        snapshot = storage.snapshot()
        first = storage.configuration() or Configuration(config.voters, (), config.learners)
        self._known = [(snapshot.index if snapshot else 0, first)]
        for index, data in storage.configurations():
            if index <= self._known[-1][0]:
                raise StorageError(f"configuration {index} is not above {self._known[-1][0]}")
            self._known.append((index, Configuration.unpack(data)))
        self.newest = self._known[-1][1]

    @property
    def index(self) -> int:
        """The index of the newest configuration's entry."""
        return self._known[-1][0]

    def at(self, index: int) -> Configuration:
        """The configuration as of entry `index`, which must not be forgotten."""
        found = self._known[0][1]
        for since, configuration in self._known:
            if since <= index:
                found = configuration
        return found

    def append(self, index: int, configuration: Configuration) -> None:
        """The log's entry `index` puts `configuration` in force."""
        self._known.append((index, configuration))
        self.newest = configuration

    def supersede(self, index: int) -> None:
        """The log's entries from `index` on are gone."""
        while len(self._known) > 1 and self._known[-1][0] >= index:
            self._known.pop()
        self.newest = self._known[-1][1]

    def restart(self, index: int, configuration: Configuration) -> None:
        """A snapshot as of `index` replaces all that was known."""
        self._known = [(index, configuration)]
        self.newest = configuration

    def forget(self, index: int) -> None:
        """Nobody asks for what was in force below `index` any more."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            del self._known[0]


class NodeState:
    """Identity, hard state, log and configuration of a node, and what it wants of its host."""

    __slots__ = (
        "asked",
        "changed",
        "clock",
        "config",
        "contacts",
        "durable_term",
        "hard_state",
        "history",
        "id",
        "loads",
        "loads_asked",
        "log",
        "outbox",
        "promises",
        "random",
        "reads",
        "snapshot",
        "term",
        "wants_snapshot",
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
        self.history = History(config, storage)
        self.hard_state = storage.hard_state()
        #: The current term: that of the hard state.
        self.term = self.hard_state.term
        #: The term of the last hard state that is durable.
        self.durable_term = self.hard_state.term
        self.changed: HardState | None = None
        self.asked: deque[Asked] = deque()
        #: Waits to be handed out by ready().
        self.outbox: list[Message] = []
        self.reads: list[ReadState] = []
        self.loads: list[Load] = []
        self.loads_asked = 0
        self.wants_snapshot: list[int] = []
        self.snapshot: Snapshot | None = None

    @property
    def fence(self) -> int:
        """The highest fence that was promised."""
        return self.promises.fence

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group."""
        return self.history.newest

    @property
    def alone(self) -> bool:
        """Whether this node's own word is a majority."""
        configuration = self.history.newest
        return configuration.voters == (self.id,) and not configuration.outgoing

    @property
    def may_lead(self) -> bool:
        """Whether this node is a voter that holds all it has applied.

        One that the newest configuration leaves out may be needed until that is committed. (§4.2.2)
        """
        history, log = self.history, self.log
        if log.back_filling:
            return False
        if history.newest.counts(self.id):
            return True
        return history.index > log.committed and history.at(history.index - 1).counts(self.id)

    def enter(self, term: int, vote: int = NOBODY) -> None:
        """Take a term, or a vote in it, that is to become durable."""
        self.hard_state = self.changed = HardState(term, vote)
        self.term = term

    def timeout(self) -> int:
        """How long to wait for a leader this time: drawn, so that votes rarely split. (§3.4)"""
        election_ms = self.config.election_ms
        return election_ms + int(election_ms * self.random())

    def take_all(self) -> None:
        """All that waited was handed out."""
        self.outbox.clear()
        self.reads.clear()
        self.loads.clear()
        self.wants_snapshot.clear()

    def supersede(self, index: int) -> None:
        """Entries from `index` on were replaced: writes under way no longer make them durable."""
        for asked in self.asked:
            asked.last_index = min(asked.last_index, index - 1)


class _Spread:
    """A fixed sequence in [0, 1), another for each id (a linear congruential generator)."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF

    def draw(self) -> float:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & ((1 << 64) - 1)
        return (self._state >> 11) / (1 << 53)
