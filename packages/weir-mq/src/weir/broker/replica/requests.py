"""Waiters for a group: for the commit of a proposal, or for a round of ReadIndex; and the errors
for callers and operators when the group does not answer here: the cause, and what to do.

A read must not be stale: it is served once a round of heartbeats has shown that this node still led
after it came, and all that was committed before is applied (dissertation §6.4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import weir_raft as raft
from weir.broker.api.settings import Member
from weir.broker.runtime.outbox import Caller, Outbox
from weir.errors import Damaged, Halted, NotLeader, Overloaded, Refused, Unavailable, UnknownVersion
from weir.model.ids import REGISTRY_GROUP, node_of
from weir.model.limits import RETRY_AFTER_MS

Proposed = TypeVar("Proposed")
Entry_contra = TypeVar("Entry_contra", contravariant=True)
Waiter = TypeVar("Waiter")


def elsewhere(leader: int) -> NotLeader:
    """Return the refusal that sends a caller to the leader of a group: a voter, 0 if unknown."""
    node = node_of(leader)
    where = f"node {node} leads" if node else "no leader is known yet: try again shortly"
    return NotLeader(f"this node does not lead this group: {where}", node)


def refusal_of(error: raft.RaftError) -> Refused:
    """Return the refusal for a caller whose proposal Raft refused."""
    if isinstance(error, raft.NotLeader):
        return elsewhere(error.leader_hint)
    if isinstance(error, raft.Overloaded):
        return Overloaded(f"too much is under way in this group: {error}", RETRY_AFTER_MS)
    return Unavailable("this group changes its leader: try again shortly")


def no_registry() -> Unavailable:
    """Return why nothing can be said or changed of topics and nodes from here."""
    return Unavailable(
        "this node cannot reach the registry's leader: more than half of the nodes must run and "
        "reach each other. `weir node status` shows what it sees; try again shortly"
    )


def unfounded(members: Iterable[Member], node: int, linked: Iterable[int]) -> Unavailable:
    """Return why a node that was founded in a set, and never met it, knows no nodes yet."""
    there = {node, *linked}
    away = [f"node {one.node} at {one.host}:{one.port}" for one in members if one.node not in there]
    missing = f"does not reach {', '.join(away)}" if away else "waits for a leader of the registry"
    return Unavailable(
        f"this node is not connected to its set yet, and {missing}: "
        "start them, and see this node's status"
    )


def no_leader(node: int) -> NotLeader:
    """Return why a partition does not answer here: `node` leads it, or nobody as far as known."""
    if node:
        return NotLeader(f"node {node} leads this partition: ask it", node)
    return NotLeader(
        "this partition has no leader now: more than half of the nodes that hold it must run and "
        "reach each other. `weir node status` shows which are down; try again shortly",
        0,
    )


def out_of_reach(node: int) -> NotLeader:
    """Return why a request was not passed on."""
    return NotLeader(
        f"node {node} leads this, as far as is known here, and is not reached from here: ask it, "
        "or see `weir node status`",
        node,
    )


class ReplicaHalt(Damaged):
    """A committed entry, or a state, cannot be applied to what is here. It is never skipped: what
    it meant would be missing here for ever, and there alone.
    """

    def __init__(self, group: int, what: str, error: Exception) -> None:
        """Name the group, what it is that cannot be applied, and what came of it."""
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, Halted | UnknownVersion):
            cause = "it was written by a newer release of weir: upgrade this node"
        else:
            cause = "either a leader broke the rules, or this release of weir has a bug"
        later = " at the next start of this node" if group == REGISTRY_GROUP else ""
        super().__init__(
            f"the replica of group {group} has stopped, for {what} cannot be applied ({said}): "
            f"{cause}. It neither votes nor serves from here on, and all other groups go on. "
            f"Where the other replicas go on without it, it is filled anew from them{later}; where "
            "they do not, restore what it holds from a backup. Until then its log frees no space"
        )


def why_no_state(error: Exception) -> str:
    """Return why a snapshot that came is not taken."""
    if isinstance(error, UnknownVersion) and error.is_newer:
        return (
            f"a snapshot came that was written by a newer release of weir (level {error.version}, "
            f"this one reads up to {error.newest}): upgrade this node"
        )
    if isinstance(error, Halted):
        return f"a snapshot came that is not for this node: {error}"
    return "a snapshot came that cannot be decoded"


class Reader(Protocol):
    """A caller that waits until a group may be read."""

    def readable(self, error: Refused | None, /) -> None:
        """What is applied here holds all that was confirmed to anybody when this was asked for; or
        an `error` says why that will not be.
        """


class ProposalLog(Protocol[Entry_contra]):
    """What appends entries for a leader: a group, or the registry."""

    def propose(self, entry: Entry_contra, /) -> int:
        """Propose an entry; return its index. Raises `NotLeader`, `Unavailable`, `Overloaded`."""


class Proposals(Generic[Proposed, Waiter]):
    """Entries on their way to being applied, by Raft index, and the caller of each.

    They belong to one term: the next leader applies entries that it did not propose, and no caller
    here waits for those.
    """

    __slots__ = ("_log", "_waiters")

    def __init__(self, log: ProposalLog[Proposed]) -> None:
        """Begin with none; entries are appended to `log`."""
        self._log = log
        self._waiters: dict[int, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        """Yield the waiters, in the order of their entries."""
        return iter(self._waiters.values())

    def propose(self, entry: Proposed, waiter: Waiter) -> None:
        """Propose what somebody asked for. Raises what `log` does; then nobody waits for it."""
        index = self._log.propose(entry)
        self._waiters[index] = waiter

    def applied(self, index: int) -> Waiter | None:
        """Return who asked for the entry at `index`, once; None if it was not proposed here."""
        return self._waiters.pop(index, None)

    def lose(self) -> Sequence[Waiter]:
        """Forget all, for another leads, who alone knows what became of them; return who must be
        told so.
        """
        waiters, self._waiters = self._waiters, {}
        return list(waiters.values())


class GroupWaits:
    """What waits for one group to go on: reads, for their round or for an entry to be applied, and
    the machine, for its own disk.
    """

    __slots__ = ("_asked", "_next", "confirmed", "durable_index")

    def __init__(self) -> None:
        """Begin with none."""
        #: The last entry of which the machine is told that the own disk has it; 0 for none.
        self.durable_index = 0
        self._next = 1
        self._asked: dict[int, Reader] = {}
        #: Reads whose round is over, and the entry that each waits for. Indices rise, for rounds
        #: end in the order in which they began.
        self.confirmed: deque[tuple[int, Reader]] = deque()

    def begin(self, node: raft.Node, reader: Reader) -> bool:
        """Ask for a round, or answer at once where no other node could know better; return whether
        the node has something to send.
        """
        known = node.configuration
        if node.role is raft.Role.LEADER and known.voters == (node.leader,) and not known.outgoing:
            reader.readable(None)
            return False
        context, self._next = self._next, self._next + 1
        self._asked[context] = reader
        try:
            node.read_index(context)
        except (raft.NotLeader, raft.NotReady) as error:
            del self._asked[context]
            reader.readable(refusal_of(error))
            return False
        return True

    def confirm(self, read: raft.ReadState) -> None:
        """A round is over."""
        reader = self._asked.pop(read.context, None)
        if reader is not None:
            self.confirmed.append((read.index, reader))

    def applied(self, index: int) -> None:
        """Serve what may be served once entry `index` is applied."""
        while self.confirmed and self.confirmed[0][0] <= index:
            self.confirmed.popleft()[1].readable(None)

    def lose(self, error: NotLeader) -> None:
        """This node no longer leads: callers must ask the next leader."""
        self.durable_index = 0
        asked, self._asked = self._asked, {}
        confirmed, self.confirmed = self.confirmed, deque()
        for reader in (*(reader for _, reader in confirmed), *asked.values()):
            reader.readable(error)


class Readable(Protocol):
    """A group that may be read on this node."""

    @property
    def is_read_as_it_lies(self) -> bool:
        """Whether it is damaged, and nobody else has it."""

    def read(self, reader: Reader) -> None:
        """Tell `reader` once what is applied here holds all that was confirmed by now."""


class _Assured(NamedTuple):
    """A caller that is answered once it is sure that no other node has led since."""

    outbox: Outbox
    caller: Caller
    #: A function, for each kind of request has an answer of its own, which is made only then.
    tell: Callable[[], None]

    def readable(self, error: Refused | None) -> None:
        """Answer, or refuse."""
        try:
            if error is not None:
                raise error
            self.tell()
        except Refused as refused:
            self.outbox.refuse(self.caller, refused)


def assured(group: Readable, outbox: Outbox, caller: Caller, tell: Callable[[], None]) -> None:
    """Let `tell` answer `caller` once no other node can have led `group` before now; or refuse it.

    What nobody else has of a damaged group is read as it lies. A grant needs no such round: its
    messages leave when its entry is committed.
    """
    if group.is_read_as_it_lies:
        tell()
    else:
        group.read(_Assured(outbox, caller, tell))
