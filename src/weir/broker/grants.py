"""The leader's side of consumer clusters in mode `shared`: pull, grant, ack (DESIGN §5 Consume).

A pull picks a range, the grant is an entry, and messages leave only after it is committed: so no
grant is made after an ack committed, whoever leads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weir.broker.caps import Caps
from weir.broker.clusters import Grant
from weir.broker.control import GrantsReleased, MessagesGranted
from weir.broker.entries import of_control
from weir.broker.group import Group
from weir.broker.intake import Intake
from weir.broker.leases import Leases
from weir.broker.outbox import Caller, Outbox
from weir.broker.ranges import Ranges
from weir.broker.reads import Reads
from weir.broker.state import PartitionState
from weir.broker.waits import Wait, Waits
from weir.codec.fields import Buffer
from weir.errors import BadRequest, Refused, Unavailable
from weir.log.reading import Reading
from weir.model.ids import Address
from weir.model.limits import (
    FETCH_BYTES_MAX,
    GRANT_MS_MAX,
    WAIT_MS_MAX,
    WATCHED_MAX,
)
from weir.model.stamp import milliseconds_of, stamp_at
from weir.model.topic import check_name
from weir.order.clock import Time
from weir.wire.messages import Granted, Pull

#: What a watch would be granted, were it a pull.
_ANY = Pull(Address(0, 0, 0), "", WATCHED_MAX, 1)


@dataclass(slots=True)
class _Queue:
    """One cluster's pulls in line, and the ranges of its grants that are proposed.

    `watches` are pulls of no message: they are told when there is something that nobody pulls.
    `freed` was granted and could not be read: it may be granted again before its lease ends.
    """

    pulls: Waits[Pull] = field(default_factory=Waits)
    watches: Waits[Pull] = field(default_factory=Waits)
    proposed: list[tuple[int, int]] = field(default_factory=list)
    freed: Ranges = field(default_factory=Ranges)

    def __bool__(self) -> bool:
        return bool(self.pulls or self.watches or self.proposed or self.freed)

    def told(self, messages: int) -> list[Wait[Pull]]:
        """Take out as many watches as there are messages that nobody pulls.

        One message does not wake a thousand consumers; if those who were told do not come for it,
        the next are told at the next tick.
        """
        return [self.watches.pop() for _ in range(min(messages, len(self.watches)))]

    def taken(self) -> Iterator[Wait[Pull]]:
        """Take out all who wait, one by one."""
        for line in (self.pulls, self.watches):
            while line:
                yield line.pop()

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self.pulls.closed(session)
        self.watches.closed(session)

    def is_proposed(self, first: int, behind: int) -> bool:
        """Return whether some of [first, behind) is being granted."""
        return any(first < b and a < behind for a, b in self.proposed)


def _holders(state: PartitionState) -> dict[int, set[str]]:
    """Return in which clusters each consumer holds messages."""
    found: dict[int, set[str]] = {}
    for name, cluster in state.clusters.items():
        for consumer in cluster.held:
            found.setdefault(consumer, set()).add(name)
    return found


class Grants:
    """Grants messages of one partition to consumers while this node leads it."""

    __slots__ = ("_caps", "_changing", "_doubtful", "_draining", "_group", "_intake", "_leases",
                 "_members", "_outbox", "_promised", "_queues", "_reads", "_state",
                 "_time")  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, intake: Intake, reads: Reads, outbox: Outbox,
        time: Time,
    ) -> None:  # fmt: skip
        """Begin to lead; grants of earlier leaders are in the state."""
        self._group = group
        self._state = state
        self._intake = intake
        self._reads = reads
        self._outbox = outbox
        self._time = time
        self._leases = Leases(state.clusters, state.last_stamp, time.monotonic_ms())
        self._caps = Caps(state.clusters, self._leases, time)
        #: Only of clusters that somebody pulls for: a name costs nothing once it found nothing.
        self._queues: dict[str, _Queue] = {}
        self._promised: dict[int, tuple[Wait[Pull], Reading]] = {}
        #: Clusters with a change under way, and how many.
        self._changing: Counter[str] = Counter()
        #: The clusters in which each peer waits or was granted messages, so that one that goes
        #: costs what it had.
        self._members = _holders(state)
        #: Entries that could not be read: each is granted alone, so that it keeps back no other.
        self._doubtful = Ranges()
        self._draining = False

    @property
    def waiting(self) -> bool:
        """Whether somebody waits."""
        return any(queue.pulls or queue.watches for queue in self._queues.values())

    def pull(self, caller: Caller, request: Pull) -> None:
        """Put a pull in line, and grant what can be granted; one of no message is only told of it.

        Raises `BadRequest`, `BadName`, `Overloaded`, and `Unavailable` once the node stops.
        """
        if self._draining:
            raise Unavailable("this node is stopping: pull from another, or again shortly")
        check_name(request.cluster, "cluster")
        if not 0 < request.lease_ms <= GRANT_MS_MAX:
            raise BadRequest(f"a pull asks for a lease of 1 to {GRANT_MS_MAX:,} ms")
        now = self._time.monotonic_ms()
        self._caps.check_name(request.cluster, self._queues.keys())
        queue = self._queues.get(request.cluster)
        if queue is None:
            queue = _Queue()
        if request.max_messages:
            self._caps.check_grant(request.cluster, caller.session, len(queue.proposed))
        line = queue.pulls if request.max_messages else queue.watches
        line.check_room()
        self._queues[request.cluster] = queue
        self._members.setdefault(caller.session, set()).add(request.cluster)
        line.add(Wait(caller, request, now + min(request.wait_ms, WAIT_MS_MAX)))
        self._serve(request.cluster, queue)
        self._end(request.cluster, queue, now)

    def wake(self) -> None:
        """New messages are committed: serve the clusters in turn, none waits for another."""
        for name, queue in list(self._queues.items()):
            self._serve(name, queue)

    def tick(self) -> None:
        """Grant again what expired; answer pulls whose time is up with nothing."""
        now = self._time.monotonic_ms()
        for name, queue in list(self._queues.items()):
            self._serve(name, queue)
            self._end(name, queue, now)

    def drain(self) -> None:
        """Answer all who wait with nothing, and grant nothing any more: the node stops."""
        self._draining = True
        for name, queue in list(self._queues.items()):
            for waiter in queue.taken():
                self._answer_nothing(name, queue, waiter)
            self._retire(name, queue)

    def closed(self, session: int) -> None:
        """A consumer is gone: its grants go to others at once."""
        names = self._members.pop(session, set())
        for name in names:
            if (queue := self._queues.get(name)) is not None:
                queue.closed(session)
                self._retire(name, queue)
        clusters = self._state.clusters
        if any(name in clusters and session in clusters[name].held for name in names):
            self._release(session)

    def granted(self, index: int, record: MessagesGranted, grant: Grant | None) -> None:
        """A grant is committed: its messages may leave, if an ack before it left any."""
        promise = self._promised.pop(index, None)
        if promise is None:
            return  # proposed by an earlier leader
        waiter, reading = promise
        queue = self._queues[record.cluster]
        queue.proposed.remove((record.first, record.next))
        if grant is None:
            self._put_back(record.cluster, queue, waiter)
            return
        self._retire(record.cluster, queue)
        due_ms = self._time.monotonic_ms() + waiter.request.lease_ms
        self._leases.begin(record.cluster, index, due_ms)
        if not self._outbox.knows(waiter.caller.session):
            # It went while this was proposed; only an entry behind the grant can end it.
            self._release(waiter.caller.session)
            return
        self._members.setdefault(waiter.caller.session, set()).add(record.cluster)
        # As of the commit: an ack behind it takes from `left` while the messages are being read.
        ((first, behind),) = grant.left
        attempts = grant.attempts

        def answer(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            reached = record.first if failure else min(reading.reached(payloads), behind)
            if reached > first:
                reply = Granted(
                    waiter.request.address, index, record.deadline, first, reached, attempts,
                    record.stamp, batches=tuple(payloads),
                )  # fmt: skip
                self._outbox.reply(waiter.caller, reply)
            else:
                text = f"the messages from offset {reached} on cannot be read"
                self._outbox.refuse(waiter.caller, failure or Unavailable(text))
            self._doubtful.discard(record.first, reached)
            if reached < behind:
                self._free(record.cluster, index, reached, behind)

        self._reads.start(reading, answer)

    def released(self, consumer: int) -> None:
        """A consumer that is gone is known to be: what it held goes to those who wait."""
        for name in self._state.clusters:
            self._leases.end(name, consumer)
        self.wake()

    def start_moved(self, start: int) -> None:
        """Messages below `start` are gone: nobody is granted them again."""
        for name, queue in list(self._queues.items()):
            queue.freed.discard(0, start)
            self._retire(name, queue)
        self._doubtful.discard(0, start)

    # -- changes of clusters -----------------------------------------------------------------

    def consumers(self, name: str) -> int:
        """Return how many peers wait in a cluster, or are here and hold messages of it."""
        queue, state = self._queues.get(name), self._state.clusters.get(name)
        peers = queue.pulls.sessions | queue.watches.sessions if queue is not None else set()
        held = state.held if state is not None else {}
        return len(peers.union(filter(self._outbox.knows, held)))

    def check_name(self, name: str) -> None:
        """Raise `Overloaded` if a cluster is one too many beside those that begin just now."""
        beginning = self._queues.keys() | self._changing.keys()
        self._caps.check_name(name, beginning)

    def hold(self, name: str) -> None:
        """Grant a cluster nothing while a change of it is under way."""
        self._changing[name] += 1

    def let_go(self, name: str, forget: bool) -> None:
        """A change is done: grant again, from the new place. With `forget`, nothing was read."""
        self._changing[name] -= 1
        if not self._changing[name]:
            del self._changing[name]
        if (queue := self._queues.get(name)) is not None:
            if forget:
                queue.freed = Ranges()
            self._serve(name, queue)
            self._retire(name, queue)

    def end(self, error: Refused) -> None:
        """The topic is gone: refuse all who wait, and grant nothing any more."""
        self._draining = True
        for name, queue in list(self._queues.items()):
            for waiter in queue.taken():
                self._outbox.refuse(waiter.caller, error)
            self._retire(name, queue)

    def lose(self, error: Refused) -> None:
        """This node leads no more: what it proposed to grant may be granted, but not by it."""
        promised, self._promised = self._promised, {}
        for waiter, _ in promised.values():
            self._outbox.refuse(waiter.caller, error)
        self.end(error)

    # -- the line ----------------------------------------------------------------------------

    def _serve(self, name: str, queue: _Queue) -> None:
        if not self._group.accepts:
            return
        state = self._state.clusters.get(name)
        if name in self._changing or (state is not None and state.paused):
            return
        while queue.pulls and not self._caps.is_full(name, len(queue.proposed)):
            request = queue.pulls.first().request
            reading, first, behind = self._pick(name, queue, request)
            if reading is None:
                return
            waiter = queue.pulls.pop()
            wall = self._time.wall_ms()
            stamp = self._intake.clock.stamp(wall)
            deadline = stamp_at(milliseconds_of(stamp) + request.lease_ms)
            record = MessagesGranted(name, waiter.caller.session, first, behind, deadline, stamp)
            queue.proposed.append((first, behind))
            queue.freed.discard(first, behind)
            self._promised[self._group.propose(of_control(record))] = (waiter, reading)
        if queue.watches and not self._caps.is_full(name, len(queue.proposed)):
            reading, first, behind = self._pick(name, queue, _ANY)
            for waiter in queue.told(0 if reading is None else behind - first):
                nothing = Granted(waiter.request.address, 0, 0, first, behind)
                self._outbox.reply(waiter.caller, nothing)

    def _put_back(self, name: str, queue: _Queue, waiter: Wait[Pull]) -> None:
        """All that was picked for a pull is done: it is the first in line again."""
        if self._draining:
            self._answer_nothing(name, queue, waiter)
        elif self._outbox.knows(waiter.caller.session):
            queue.pulls.add(waiter, front=True)
            self._serve(name, queue)
        self._retire(name, queue)

    def _end(self, name: str, queue: _Queue, now_ms: int) -> None:
        for line in (queue.pulls, queue.watches):
            for waiter in line.ended(now_ms):
                self._answer_nothing(name, queue, waiter)
        self._retire(name, queue)

    def _answer_nothing(self, name: str, queue: _Queue, waiter: Wait[Pull]) -> None:
        self._outbox.reply(waiter.caller, Granted(waiter.request.address, 0, 0, 0, 0))
        session = waiter.caller.session
        waits = queue.pulls.holds(session) or queue.watches.holds(session)
        if name not in self._state.clusters and not waits:
            self._members.get(session, set()).discard(name)

    def _retire(self, name: str, queue: _Queue) -> None:
        if not queue:
            self._queues.pop(name, None)

    # -- what to grant -----------------------------------------------------------------------

    def _pick(self, name: str, queue: _Queue, request: Pull) -> tuple[Reading | None, int, int]:
        """Return the first range to grant: what was granted before comes before what is new."""
        size = min(max(request.max_bytes, 1), FETCH_BYTES_MAX)
        for first, limit in self._candidates(name, queue):
            behind = min(first + request.max_messages, limit)
            if self._doubtful.covers(first, first + 1):
                size = 1  # this entry alone
            else:
                _, behind = self._doubtful.gap_from(first, behind)
            reading = self._read(first, behind, size)
            if reading is not None:
                return reading, first, min(behind, reading.next_offset)
        return None, 0, 0

    def _candidates(self, name: str, queue: _Queue) -> Iterator[tuple[int, int]]:
        """Yield ranges that may be granted: freed ones, those of ended leases, new messages."""
        state = self._state.clusters.get(name)
        frontier = self._state.log_start
        if state is not None:
            ended = self._leases.ended(name, state, self._time.monotonic_ms())
            for runs in (queue.freed, *(grant.left for grant in ended)):
                yield from (run for run in runs if not queue.is_proposed(*run))
            frontier = state.frontier
        frontier = max([frontier, *(behind for _, behind in queue.proposed)])
        if frontier < self._state.next_offset:
            yield frontier, self._state.next_offset

    def _read(self, first: int, behind: int, size: int) -> Reading | None:
        """Plan to read the whole entries that hold [first, behind), those within `size` bytes."""
        group = self._group
        return group.log.read(group.id, first, size, group.node.commit_index, behind)

    def _free(self, name: str, fence: int, first: int, behind: int) -> None:
        """Offsets of a grant could not be read from `first` on: let them be granted again now.

        The entry at `first` is to blame. What fails alone again rests until its lease ends, so
        that those behind it have their turn.
        """
        cluster, queue = self._state.clusters.get(name), self._queues.setdefault(name, _Queue())
        grant = cluster.grants.get(fence) if cluster is not None else None
        entry = self._read(first, behind, 1)
        suspect = behind if entry is None else min(entry.next_offset, behind)
        known = self._doubtful.covers(first, suspect)
        self._doubtful.add(first, suspect)
        first = suspect if known else first
        for run in grant.left.within(first, behind) if grant is not None else ():
            queue.freed.add(*run)
        self._serve(name, queue)
        self._retire(name, queue)

    def _release(self, session: int) -> None:
        """Give back what a peer that is gone holds; where that cannot be, its leases end it."""
        if self._group.accepts:
            self._group.propose(of_control(GrantsReleased(session)))
