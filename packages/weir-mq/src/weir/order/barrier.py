"""The barrier of one partition, as its leader hands it out, and how far the promises of a voter, on
which it rests, may go: durable before they are given (DESIGN §5 Barrier safety). And the merge of
partitions up to their barriers, which is what a reader in total order does.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

import msgspec

from weir.errors import RemoteProtocolError
from weir.order.clock import stamp_at

#: A restarted voter keeps every promise that it may have made, so each extension may delay readers
#: in total order by as long.
EXTENSION_MS = 1_000
#: Less than this in hand, and it is time for the next extension: a flush takes its time.
_LEAST_MS = 500
#: Above every stamp: nothing is waited for.
NO_BOUND = 1 << 63
Item = TypeVar("Item")
#: Barriers of a partition that wait for data; one of the middle goes if there are more.
_PENDING_MAX = 64


class Barrier(NamedTuple):
    """All that is ever stamped at or below `stamp` lies below offset `through`, and is committed.

    A replica may use it once it has applied everything below `through` (counterexample 5).
    """

    stamp: int
    through: int


#: What is said of a partition of which nothing is known.
NO_BARRIER = Barrier(0, 0)


def barrier_at(fenced: int, committed: int, undecided: int, through: int) -> Barrier:
    """Return what a leader may say now.

    `fenced` is what a majority has promised for it, 0 for nothing; `committed` is the stamp of its
    last committed entry, 0 before one of its own term is; `undecided` is the lowest stamp that it
    has given and that is not committed, 0 if there is none; `through` lies behind its last
    committed message.
    """
    stamp = committed if committed > fenced else fenced
    if undecided and undecided <= stamp:
        stamp = undecided - 1
    return Barrier(stamp, through)


class Bound:
    """The highest stamp that one log's shard may promise to stand by, whatever happens to it.

    It lies in the log as hard state does. A node that starts again keeps to the whole of it.
    """

    __slots__ = ("_asked", "durable")

    def __init__(self, durable: int = 0) -> None:
        """Begin with what the log holds."""
        #: Up to here promises may be given.
        self.durable = durable
        self._asked = durable

    def extension(self, wall_ms: int) -> int:
        """Return the bound to write now, or 0 while there is enough in hand or under way."""
        if self._asked >= stamp_at(wall_ms + _LEAST_MS):
            return 0
        self._asked = stamp_at(wall_ms + EXTENSION_MS)
        return self._asked

    def written(self, bound: int) -> None:
        """Note that a bound is durable."""
        self.durable = max(self.durable, bound)


class _Member(msgspec.Struct):
    """A partition that counts above `floor` and up to `end`; nothing of it is at or below floor."""

    floor: int
    end: int = NO_BOUND
    #: The highest barrier that was reported and may be used.
    reached: int = 0
    #: Whether the domain's barrier does without it for now.
    is_left: bool = False

    @property
    def bound(self) -> int:
        """Up to here nothing new comes of it."""
        reached = max(self.floor, self.reached)
        return NO_BOUND if reached >= self.end else reached


class Roster:
    """A register a partition, never one a node (counterexample 4); the domain's barrier is the
    least of them, and a partition that nobody reports keeps its last value.

    A register of T says that all that is ever stamped at or below T of its partition is here.

    Where order is best effort, one that is silent is left (TOC S3.2): the others' barrier goes on
    without it, and it counts again once its register has come up to that, or rises at all where
    all others have ended.
    """

    __slots__ = ("_frontier", "_members")

    def __init__(self, partitions: Iterable[int]) -> None:
        """Begin with the partitions that the domain was founded with."""
        self._members = {partition: _Member(0) for partition in partitions}
        #: None once it may have changed: it is asked for far more often than it does.
        self._frontier: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, partition: int) -> bool:
        return partition in self._members

    def join(self, partition: int, floor: int) -> None:
        """Count a partition in: it was created to stamp above `floor` (counterexample 6)."""
        self._members.setdefault(partition, _Member(floor))
        self._frontier = None

    def end(self, partition: int, stamp: int) -> None:
        """Count a partition out above `stamp`: it was sealed there."""
        member = self._members[partition]
        member.end = min(member.end, stamp)
        self._frontier = None

    def report(self, partition: int, stamp: int) -> None:
        """Note that nothing at or below `stamp` comes of a partition any more, but what is here."""
        member = self._members[partition]
        if stamp > member.reached:
            # Registers only rise: while another one is the least, this one changes nothing.
            if self._frontier is not None and self._frontier[1] == partition:
                self._frontier = None
            member.reached = stamp
            # If all others have ended, a member that reports something is as far as any of them.
            if member.is_left and (member.bound >= self.barrier or self.barrier == NO_BOUND):
                member.is_left = False
                self._frontier = None

    def leave(self, partition: int) -> bool:
        """Do without a partition that holds the barrier back, until it is at the barrier again;
        False where no other one is further.
        """
        member = self._members[partition]
        others = (one for one in self._members.values() if one is not member and not one.is_left)
        if member.is_left or all(one.bound <= member.bound for one in others):
            return False
        member.is_left = True
        self._frontier = None
        return True

    @property
    def left(self) -> list[int]:
        """The partitions that the barrier does without."""
        return [partition for partition, member in self._members.items() if member.is_left]

    def register(self, partition: int) -> int:
        """All that is ever stamped at or below it is here, of one partition."""
        return self._members[partition].bound

    @property
    def frontier(self) -> tuple[int, int]:
        """The first place, as (stamp, partition), at which something may still come.

        Of the partitions that hold the barrier where it is, the first one may have messages at the
        stamp behind it; of those in front of it, all that is stamped so is here.
        """
        if self._frontier is None:
            counted = ((p, one) for p, one in self._members.items() if not one.is_left)
            bounds = ((member.bound, p) for p, member in counted)
            barrier, partition = min(bounds, default=(0, -1))
            self._frontier = barrier + 1, partition
        return self._frontier

    @property
    def barrier(self) -> int:
        """All at or below it is here, of every partition."""
        return self.frontier[0] - 1

    def behind(self) -> list[int]:
        """The partitions that hold the barrier where it is: those to hear of first."""
        barrier = self.barrier
        if barrier == NO_BOUND:
            return []
        members = self._members.items()
        return [p for p, one in members if one.bound == barrier and not one.is_left]


class Silence:
    """Since when each partition that is waited for has told nothing new, in seconds."""

    __slots__ = ("_patience", "_since", "late")

    def __init__(self, patience: float) -> None:
        """Be patient for so many seconds."""
        self._patience = patience
        self._since: dict[int, tuple[int, float]] = {}
        #: How many messages came too late of those that were left.
        self.late = 0

    def begin(self) -> None:
        """Somebody waits from now on."""
        self._since.clear()

    def look(self, roster: Roster, now: float) -> tuple[list[int], float]:
        """Return those that hold the barrier back and are silent by `now`, and in how many seconds
        the next one may be.
        """
        silent, rest = list[int](), self._patience
        for partition in roster.behind():
            register = roster.register(partition)
            known, since = self._since.get(partition, (-1, now))
            if known != register:
                self._since[partition] = register, now
            elif now - since >= self._patience:
                silent.append(partition)
            else:
                rest = min(rest, since + self._patience - now)
        return silent, rest


class Merged(NamedTuple, Generic[Item]):
    """A batch in its turn: (stamp, partition, offset) is its place in the one order."""

    stamp: int
    partition: int
    offset: int
    size: int
    item: Item


class _Input:
    """How far one partition was received, and its barriers that lie behind that."""

    __slots__ = ("held", "next", "pending")

    def __init__(self, offset: int) -> None:
        self.next = offset
        self.pending: deque[Barrier] = deque()
        #: Bytes that wait for the barrier.
        self.held = 0


class Merge(Generic[Item]):
    """Takes batches and barriers of partitions, each in its own order; gives the one order.

    Several batches of a partition may have one stamp, and what is received may be cut between them:
    a batch stamped T says that all below T of its partition is here, and `received` that all at T
    is. `take` lets go all that nothing can come in front of, also in the middle of a stamp.

    `bytes_max`: a partition that holds so much gets no more until some of it goes. Each gets as
    much for itself, so one that is ahead never keeps back one that is waited for. Once `take` has
    returned, the partition that is waited for has room, however much is stamped alike: it holds
    nothing, or what is at the frontier, which would have gone.
    """

    def __init__(self, roster: Roster, start: Mapping[int, int], bytes_max: int) -> None:
        """Begin at the offsets of `start`."""
        self.roster = roster
        self._bytes_max = bytes_max
        self._inputs = {partition: _Input(offset) for partition, offset in start.items()}
        self._heap: list[tuple[int, int, int, int, Item]] = []
        self._highest = 0
        #: The place of what was taken last.
        self._taken = (0, -1)

    def add(self, partition: int, offset: int) -> None:
        """Take a partition that joined the roster, from `offset` on."""
        self._inputs.setdefault(partition, _Input(offset))

    def next(self, partition: int) -> int:
        """The offset from which on a partition was not received."""
        return self._inputs[partition].next

    def wants(self, partition: int) -> bool:
        """Whether there is room for more of a partition."""
        return self._inputs[partition].held < self._bytes_max

    @property
    def held(self) -> int:
        """Bytes that wait for the barrier."""
        return sum(one.held for one in self._inputs.values())

    @property
    def highest(self) -> int:
        """The highest stamp that waits for the barrier; 0 if nothing waits."""
        return self._highest if self._heap else 0

    def holds(self, partition: int) -> bool:
        """Whether something of a partition waits for the barrier."""
        return self._inputs[partition].held > 0

    def __contains__(self, partition: int) -> bool:
        return partition in self._inputs

    def is_late(self, partition: int, stamp: int) -> bool:
        """Whether a batch would lie in front of what was taken. That comes of a partition alone
        that was left (`Roster.leave`): it is not pushed, but skipped.
        """
        return (stamp, partition) < self._taken

    def push(
        self, partition: int, stamp: int, offset: int, behind: int, size: int, item: Item
    ) -> None:
        """Take the batch [offset, behind) of a partition, `size` bytes.

        Raises `RemoteProtocolError` unless it begins where what was received ends, or if it is
        stamped where nothing of its partition was to come any more.
        """
        one = self._inputs[partition]
        if offset != one.next:
            raise RemoteProtocolError(
                f"partition {partition}: offset {offset} came where {one.next} is next"
            )
        register = self.roster.register(partition)
        if stamp <= register:
            raise RemoteProtocolError(
                f"partition {partition}: offset {offset} is stamped {stamp}, and all at or below "
                f"{register} was said to be here"
            )
        heapq.heappush(self._heap, (stamp, partition, offset, size, item))
        one.held += size
        self._highest = max(self._highest, stamp)
        self._reached(partition, one, behind)
        # Stamps do not fall with offsets. Were only barriers counted, one whose room is full before
        # the next barrier's offset would wait for itself. More may come at this very stamp.
        self.roster.report(partition, stamp - 1)

    def received(self, partition: int, stamp: int) -> None:
        """Note that all that is stamped at or below `stamp` of a partition was received."""
        self.roster.report(partition, stamp)

    def skip(self, partition: int, behind: int) -> None:
        """Note that nothing up to `behind` is for us: filtered, void, or past retention."""
        one = self._inputs[partition]
        if behind > one.next:
            self._reached(partition, one, behind)

    def barrier(self, partition: int, barrier: Barrier) -> None:
        """Take a partition's barrier, and use it once all below its offset was received."""
        one = self._inputs[partition]
        if barrier.through <= one.next:
            self.roster.report(partition, barrier.stamp)
            return
        if len(one.pending) == _PENDING_MAX:
            # The oldest is the next to be of use, the newest says most.
            del one.pending[_PENDING_MAX // 2]
        one.pending.append(barrier)

    def _reached(self, partition: int, one: _Input, behind: int) -> None:
        one.next = behind
        while one.pending and one.pending[0].through <= behind:
            self.roster.report(partition, one.pending.popleft().stamp)

    def take(self) -> list[Merged[Item]]:
        """Return what nothing can come in front of, in the one order."""
        # What was received of a partition lies in front of what may still come of it.
        frontier, heap = self.roster.frontier, self._heap
        taken: list[Merged[Item]] = []
        while heap and heap[0][:2] <= frontier:
            merged = Merged(*heapq.heappop(heap))
            self._inputs[merged.partition].held -= merged.size
            taken.append(merged)
        if taken:
            self._taken = taken[-1][:2]
        return taken
