"""The public face: calls in, Readies out, no thread, clock, dice or disk of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weir_raft.config import Config, NodeContext, OwnContext
from weir_raft.core import Core, Role
from weir_raft.errors import NothingReady
from weir_raft.follower import Arriving, Follower
from weir_raft.leader import Leader
from weir_raft.membership import Change, Configuration
from weir_raft.messages import Message
from weir_raft.ready import Ready
from weir_raft.replication import Progress
from weir_raft.storage import Entry, Snapshot, Storage


class NodeLog(Protocol):
    """What a host may know of a node's log, and do to it."""

    @property
    def first_index(self) -> int:
        """The first index above what was compacted."""

    @property
    def last_index(self) -> int:
        """The index of the last entry, durable or not."""

    @property
    def durable(self) -> int:
        """The index through which this node's own disk holds the log."""

    @property
    def committed(self) -> int:
        """The index through which no entry can ever be replaced, as far as this node knows."""

    @property
    def applied(self) -> int:
        """The index through which the host has applied."""

    def term(self, index: int) -> int:
        """The term of one entry, as a Snapshot needs it; Compacted or Unavailable outside."""

    def release(self, index: int) -> None:
        """Send nobody the log through `index` any more, as far as that is applied and durable: the
        host lets go of it before a durable snapshot covers it, since this is the only member. Until
        one does, Storage has these entries again at each start.

        Members that are added and need them get a snapshot. Without effect when repeated.
        """


class NodeHistory(Protocol):
    """What a host may know of the configurations in a node's log."""

    def at(self, index: int) -> Configuration:
        """The configuration as of an index that is not compacted, as a Snapshot keeps it."""


class Lineages:
    """How often the members of a node's group were forced, and forcing them."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def current(self) -> int:
        """The lineage of the current term: messages of another one are not taken."""
        return self._node.core.node_state.lineage

    @property
    def begun(self) -> int:
        """The lineage of the newest configuration in the log: below `current` until somebody who
        was forced has led.
        """
        return self._node.core.node_state.history.lineage

    @property
    def is_forced(self) -> bool:
        """Whether voters were forced here of which none has led yet."""
        return self._node.core.node_state.history.is_forced

    @property
    def heard(self) -> tuple[int, int]:
        """How long ago a leader was last heard of, in ms (-1: never since the start), and through
        where the log was committed by what it said.
        """
        node_state, state = self._node.core.node_state, self._node.core.state
        if isinstance(state, Follower):
            state.note_contact()
        at, commit = node_state.heard_at, max(node_state.heard_commit, node_state.log.committed)
        return (-1 if at < 0 else node_state.clock.now - at), commit

    def force(self, lineage: int, voters: tuple[int, ...]) -> None:
        """Go on as one of `voters` alone, in a lineage above that of all others, whatever the log
        says who votes: what a majority of those had may be lost.

        Each of them must be told, and the first election is won with the votes of all: so nothing
        that any of them knows to be committed goes. Who is not among them takes no part any more,
        and what it says later is not taken. What was told is in memory until somebody has led: a
        node that starts again before is told anew. Without effect once somebody has. Raises
        InvalidChange for a lineage that is over, or without this node among the voters.
        """
        self._node.context.active.add(self._node.context.group)
        self._node.touched = True
        self._node.core.force(lineage, voters)

    def retire(self, lineage: int) -> None:
        """Take no part any more in lineages below this one, which others were forced into: what is
        here stays as it is, and this node leads nobody. Durable with the next Ready. Raises
        InvalidChange for what is no lineage.
        """
        self._node.context.active.add(self._node.context.group)
        self._node.touched = True
        self._node.core.retire(lineage)


class Node:
    """One member of one Raft group, driven by its host as ready.py describes. Not thread-safe."""

    __slots__ = (
        "_active",
        "_group",
        "_pending",
        "context",
        "core",
        "history",
        "lineages",
        "log",
        "touched",
    )

    def __init__(
        self, config: Config, storage: Storage, context: NodeContext | None = None
    ) -> None:
        """Restore from `storage`, all of it durable; the host has loaded its snapshot already.

        `context` is what `Multi.context` returns for a node of many groups; others leave it out.
        Raises InvalidConfig, or StorageError for a damaged past.
        """
        #: What it was made with.
        self.context: NodeContext = OwnContext() if context is None else context
        #: For this library alone.
        self.core = Core(config, storage, self.context)
        #: How far the log goes, is durable here, committed and applied.
        self.log: NodeLog = self.core.log
        #: The configurations in the log.
        self.history: NodeHistory = self.core.node_state.history
        #: How often its members were forced.
        self.lineages = Lineages(self)
        self._pending = self.core.node_state.pending
        self._active = self.context.active
        self._group = self.context.group
        #: Whether take() may find something: what happened since it found nothing, or not all, may
        #: have led to work. A host that asks this first spares itself most calls.
        self.touched = True

    @property
    def role(self) -> Role:
        """What this node is at the moment."""
        return self.core.role

    @property
    def term(self) -> int:
        """The current term; 0 before the first election."""
        return self.core.node_state.term

    @property
    def leader(self) -> int:
        """The leader of the current term, or 0 while none is known."""
        return self.core.state.leader

    @property
    def fence(self) -> int:
        """The highest value this voter was given; its durability is the host's."""
        return self.core.node_state.fence

    @property
    def accepts(self) -> bool:
        """Whether propose() is open: leading, an entry of the own term applied, none handed over.

        It may still refuse with Overloaded.
        """
        state = self.core.state
        return isinstance(state, Leader) and state.accepts

    @property
    def configuration(self) -> Configuration:
        """Who belongs to the group, by the newest configuration in the log."""
        return self.core.node_state.configuration

    def progress(self) -> tuple[Progress, ...]:
        """What a leader knows of the others; empty if it does not lead."""
        state = self.core.state
        if not isinstance(state, Leader):
            return ()
        return tuple(member.progress() for member in state.members.values())

    def campaign(self) -> None:
        """Seek election; without effect on a candidate or a leader, and if it may not lead."""
        self._active.add(self._group)
        self.touched = True
        self.core.campaign()

    def tick(self, elapsed_ms: int = 100) -> None:
        """Let time pass: whoever waited long enough acts. Not for nodes of a Multi."""
        self._active.add(self._group)
        self.touched = True
        self.core.node_state.clock.now += elapsed_ms
        self.core.tick()

    def step(self, message: Message) -> None:
        """Take a message of another member; late, lost, repeated and reordered ones do no harm."""
        self._active.add(self._group)
        self.touched = True
        self.core.step(message)

    @property
    def arriving(self) -> Arriving | None:
        """The snapshot that has begun to come, if one has: a host may look at the whole before it
        takes the last piece. A piece of another one takes its place.
        """
        state = self.core.state
        return state.arriving if isinstance(state, Follower) else None

    def raise_fence(self, value: int) -> None:
        """Keep `value` if it is the highest yet. Opaque here; votes of later terms carry it.

        The host makes it durable before it acts on it, and restores it through Config.fence. The
        groups of one Multi keep one value.
        """
        self.core.node_state.promises.raise_to(value)

    def propose(self, data: object, size: int) -> int:
        """Append `data` of `size` bytes to the log and return its index; it is not committed yet.

        Raises NotLeader, NotReady until an entry of the own term is applied and while leadership is
        handed over, or Overloaded.
        """
        self._active.add(self._group)
        self.touched = True
        return self.core.propose(data, size)

    def change(self, change: Change) -> int:
        """Append the configuration that `change` leads to and return its index.

        If voters change it is a joint one, which is left by itself (§4.3). Raises as propose()
        does, ChangePending until an earlier change is done, or InvalidChange.
        """
        self._active.add(self._group)
        self.touched = True
        return self.core.change(change)

    def read_index(self, context: int) -> None:
        """Ask for a linearizable read: `context` comes back in Ready.reads, or leadership is lost.

        Raises NotLeader, or NotReady until an entry of the own term is committed. (§6.4)
        """
        self._active.add(self._group)
        self.touched = True
        self.core.read(context)
        self.context.asking.add(self._group)

    def transfer_leadership(self, voter: int) -> None:
        """Stop taking proposals and let `voter` campaign once it has all, and all is applied here.

        That lasts two election timeouts at most, however often this is asked for meanwhile. After
        the first one, what is applied here does not count: the own disk may hang.
        Raises NotLeader or InvalidChange. (§3.10)
        """
        self._active.add(self._group)
        self.touched = True
        self.core.transfer(voter)

    def ask_again(self) -> None:
        """Let the leader say again how it is with this follower: `Append.spared` may be news, of
        which it does not tell who has everything. Without effect where it is not known who leads.
        """
        self._active.add(self._group)
        self.touched = True
        self.core.ask_again()

    def send_snapshot(self, voter: int, snapshot: Snapshot) -> None:
        """Send `snapshot` to a member that Ready.wants_snapshot named.

        Its data are bytes, its base not below what was compacted; its configuration may be left
        out. OutOfOrder if it does not meet the log. Without effect if it is no longer wanted.
        """
        self._active.add(self._group)
        self.touched = True
        self.core.send_snapshot(voter, snapshot)

    def loaded(self, number: int, entries: Sequence[Entry] | None) -> None:
        """Answer a Load: at least the first of its entries, or None if they cannot be read."""
        self._active.add(self._group)
        self.touched = True
        self.core.loaded(number, entries)

    @property
    def has_ready(self) -> bool:
        """Whether there is work for the host."""
        core = self.core
        log = core.log
        core.queue_messages()
        return log.staged < log.last_index or core.has_news or log.has_unhanded

    def ready(self) -> Ready:
        """The next work for the host, each piece handed out once; NothingReady if there is none."""
        ready = self.take()
        if ready is None:
            raise NothingReady("ask has_ready before ready()")
        return ready

    def take(self) -> Ready | None:
        """What ready() returns, or None if there is none: one call for each turn of a host."""
        core = self.core
        log, state = core.log, core.state
        if isinstance(state, Leader) and state.members:
            state.send()
        # First, because it may read Storage and fail; nothing else has been taken by then.
        committed = log.take_unhanded() if log.handed < log.committed else ()
        entries = log.take_unstaged() if log.staged < log.last_index else ()
        self.touched = log.handed < log.committed and log.handed < log.durable
        pending = self._pending
        announces = isinstance(state, Leader) and not state.announced
        if pending.snapshot is not None:
            log.restored()
        became_leader = core.take_leadership() if announces else None
        return pending.hand_out(entries, committed, became_leader)

    def persisted(self, ready_number: int) -> None:
        """Note that all this Ready asked to persist, hard state and entries, is durable.

        In order, none left out that asked for something, none twice: else OutOfOrder. May come any
        number of Readies later.
        """
        asked = self._pending.acknowledge(ready_number)
        self._active.add(self._group)
        self.touched = True
        if asked is not None:
            self.core.persisted(asked)

    def applied(self, index: int) -> None:
        """Note that the host has applied through `index`; OutOfOrder if it was not handed out."""
        self._active.add(self._group)
        core = self.core
        core.log.applied_to(index)
        state = core.state
        if isinstance(state, Leader) and state.transferee:
            self.touched = True
            state.hand_over()

    def compact(self, index: int) -> None:
        """Forget the log through `index`, once a durable snapshot covers it; Storage may then too.

        Members that need what is gone get a snapshot. OutOfOrder while it is not covered, applied
        and durable; without effect when repeated.
        """
        self.core.log.compact(index)
        self.core.node_state.history.forget(index)
