"""The public face: calls in, Readies out, no thread, clock, dice or disk of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from weir.raft.config import Config
from weir.raft.core import Core, Role
from weir.raft.errors import NothingReady, NotLeader, OutOfOrder
from weir.raft.membership import Change, Configuration
from weir.raft.messages import Message
from weir.raft.progress import Progress
from weir.raft.ready import Ready
from weir.raft.storage import Entry, HardState, Snapshot, Storage


class _Asked(NamedTuple):
    """What one Ready asked to persist; last_index 0: no entries."""

    number: int
    hard_state: HardState | None
    last_index: int


class Node:
    """One voter of one Raft group, driven by its host as ready.py describes. Not thread-safe."""

    __slots__ = ("_acknowledged", "_asked", "_core", "_issued")

    def __init__(self, config: Config, storage: Storage) -> None:
        """Restore from `storage`, all of it durable; the host has loaded its snapshot already.

        Raises InvalidConfig, UnsupportedConfiguration, or StorageError for a damaged past.
        """
        self._core = Core(config, storage)
        self._issued = 0
        self._acknowledged = 0
        self._asked: deque[_Asked] = deque()

    @property
    def role(self) -> Role:
        """What this node is at the moment."""
        return self._core.role

    @property
    def term(self) -> int:
        """The current term; 0 before the first election."""
        return self._core.hard_state.term

    @property
    def leader(self) -> int:
        """The leader of the current term, or 0 while none is known."""
        return self._core.state.leader

    @property
    def fence(self) -> int:
        """The highest value this voter was given; its durability is the host's."""
        return self._core.fence

    @property
    def first_index(self) -> int:
        """The first index above what was compacted."""
        return self._core.log.first_index

    @property
    def last_index(self) -> int:
        """The index of the last entry, durable or not."""
        return self._core.log.last_index

    @property
    def commit_index(self) -> int:
        """The index through which no entry can ever be replaced, as far as this node knows."""
        return self._core.log.committed

    @property
    def applied_index(self) -> int:
        """The index through which the host has applied."""
        return self._core.log.applied

    def term_at(self, index: int) -> int:
        """The term of one entry, as a Snapshot needs it; Compacted or Unavailable outside."""
        return self._core.log.term(index)

    def campaign(self) -> None:
        """Seek election in a new term; without effect on a candidate or a leader."""
        self._core.campaign()

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group, by the newest configuration in the log."""
        config = self._core._config
        return Configuration(config.voters, (), config.learners)

    def step(self, message: Message) -> None:
        """Take a message of another member."""

    def change(self, change: Change) -> int:
        """Append the next configuration and return its index."""
        raise NotLeader(self.leader)

    def read_index(self, context: int) -> None:
        """Ask when a read is safe: Ready.reads says so with this `context`."""
        raise NotLeader(self.leader)

    def transfer_leadership(self, voter: int) -> None:
        """Hand the leadership to `voter` once its log is complete."""
        raise NotLeader(self.leader)

    def send_snapshot(self, voter: int, snapshot: Snapshot) -> None:
        """Send `snapshot` to a member that Ready.wants_snapshot named."""

    def loaded(self, number: int, entries: Sequence[Entry] | None) -> None:
        """Answer a Load; None if it could not be read."""

    def progress(self) -> tuple[Progress, ...]:
        """What a leader knows of the others; empty if it does not lead."""
        return ()

    def tick(self, elapsed_ms: int = 100) -> None:
        """Let time pass: a lone follower campaigns at once."""
        self._core.tick()

    def raise_fence(self, value: int) -> None:
        """Keep `value` if it is the highest yet. Opaque here; votes of later terms carry it.

        The host makes it durable before it acts on it, and restores it through Config.fence.
        """
        self._core.fence = max(self._core.fence, value)

    def propose(self, data: object, size: int) -> int:
        """Append `data` of `size` bytes to the log and return its index; it is not committed yet.

        Raises NotLeader, NotReady until an entry of the own term is applied, or Overloaded.
        """
        return self._core.propose(data, size)

    @property
    def has_ready(self) -> bool:
        """Whether there is work for the host."""
        core = self._core
        log = core.log
        return log.staged < log.last_index or log.has_unhanded or core.has_news

    def ready(self) -> Ready:
        """The next work for the host, each piece handed out once; NothingReady if there is none."""
        core = self._core
        # First, because it may read Storage and fail; nothing else has been taken by then.
        committed = core.log.take_unhanded()
        entries = core.log.take_unstaged()
        hard_state = core.take_hard_state()
        leadership = core.take_leadership()
        if not (committed or entries or hard_state or leadership):
            raise NothingReady("ask has_ready before ready()")
        number = self._issued = self._issued + 1
        if entries or hard_state:
            last = entries[-1].index if entries else 0
            self._asked.append(_Asked(number, hard_state, last))
        return Ready(number, hard_state, entries, committed, leadership)

    def persisted(self, ready_number: int) -> None:
        """Note that all this Ready asked to persist, hard state and entries, is durable.

        In order, none left out that asked for something, none twice: else OutOfOrder. May come any
        number of Readies later.
        """
        asked = self._asked
        if not self._acknowledged < ready_number <= self._issued:
            raise OutOfOrder(
                f"persisted({ready_number}): Readies through {self._acknowledged} are acknowledged "
                f"and those through {self._issued} were handed out"
            )
        if asked and asked[0].number < ready_number:
            raise OutOfOrder(
                f"persisted({ready_number}) came before persisted({asked[0].number}): "
                "acknowledge in the order in which Readies were handed out"
            )
        self._acknowledged = ready_number
        if asked and asked[0].number == ready_number:
            _, hard_state, last_index = asked.popleft()
            if hard_state is not None:
                self._core.hard_state_durable(hard_state)
            if last_index:
                self._core.entries_durable(last_index)

    def applied(self, index: int) -> None:
        """Note that the host has applied through `index`; OutOfOrder if it was not handed out."""
        self._core.log.applied_to(index)

    def compact(self, index: int) -> None:
        """Forget the log through `index`, once a durable snapshot covers it; Storage may then too.

        OutOfOrder while it is not covered, applied and durable; without effect when repeated.
        """
        self._core.log.compact(index)
