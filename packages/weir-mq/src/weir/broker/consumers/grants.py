"""The leader's side of consumer clusters: pull, grant, ack (DESIGN §5 Consume).

A pull picks messages, as the cluster's mode has it (`weir.broker.consumers.picker`); the grant is
an entry, and messages leave only after it is committed: so no grant is made after an ack committed,
under any leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from weir.broker.consumers.ended_sessions import EndedSessions
from weir.broker.consumers.leases import BegunMessages, GrantLimits, Leases
from weir.broker.consumers.modes import Pickers
from weir.broker.consumers.picker import (
    ANYBODY,
    Pick,
    Picker,
    PickerContext,
    PullQueue,
    Run,
    Unwanted,
)
from weir.broker.records.entries import Payload, of_control
from weir.broker.records.partition import (
    ClusterOpened,
    ClusterRecord,
    FilteredClusterOpened,
    GrantsReleased,
    MessagesGranted,
    UnwantedSkipped,
)
from weir.broker.replica.group import Group
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.filtering import matching_runs
from weir.broker.runtime.outbox import Caller, Outbox, Wait
from weir.broker.runtime.reads import Reads, batches_in, without
from weir.broker.state.clusters import ClusterState, Grant
from weir.broker.state.ranges import Ranges
from weir.broker.state.state import PartitionState
from weir.codec import Buffer
from weir.errors import BadRequest, Refused, StaleGrant, Unavailable
from weir.model.batch import Batch
from weir.model.limits import GRANT_MS_MAX, WAIT_MS_MAX
from weir.model.slices import Part
from weir.model.topic import Mode, check_name
from weir.order.clock import HybridClock, Time, milliseconds_of, stamp_at
from weir.protocol.client.messages import Granted, Pull


def _holders(state: PartitionState) -> dict[int, set[str]]:
    """Return in which clusters each consumer holds messages."""
    found: dict[int, set[str]] = {}
    for name, cluster in state.clusters.items():
        for consumer in cluster.held:
            found.setdefault(consumer, set()).add(name)
    return found


class NextDeadline:
    """When time may bring something to those who wait in a partition's clusters, as it was found
    last: there may be many, and each pull asks.
    """

    __slots__ = ("ms",)

    def __init__(self) -> None:
        """It is not known."""
        #: In monotonic time, or earlier than that; 0: it is to be found.
        self.ms = 0

    def forget(self) -> None:
        """Something has happened that may bring it forward."""
        self.ms = 0


class Grants:
    """Grants messages of one partition to consumers while this node leads it."""

    __slots__ = ("_changing", "_context", "_draining", "_limits", "_members", "_outbox",
                 "_paused", "_promised", "_queues", "_sifting", "begun", "ended", "leases",
                 "next_deadline", "pickers")  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, clock: HybridClock, reads: Reads, outbox: Outbox,
        time: Time,
    ) -> None:  # fmt: skip
        """Begin to lead; grants of earlier leaders are in the state."""
        self._outbox = outbox
        self.leases = Leases(state.clusters, state.last_stamp, time)
        self.begun = BegunMessages(state.clusters)
        self._context = PickerContext(
            self, group, state, self.leases, reads, time, clock, Ranges(), self.begun
        )
        #: What decides in each cluster that was pulled for.
        self.pickers = Pickers(self._context)
        self._limits = GrantLimits(state.clusters, self.leases, time)
        #: Only of clusters that somebody pulls for: a name costs nothing once it found nothing.
        self._queues: dict[str, PullQueue] = {}
        self._promised: Proposals[Payload, tuple[Wait[Pull], Pick]] = Proposals(group)
        #: Clusters with a change under way, and how many.
        self._changing: Counter[str] = Counter()
        #: Clusters that the registry says are paused.
        self._paused: frozenset[str] = frozenset()
        #: The clusters in which each peer waits or was granted messages, so that one that goes
        #: costs what it had.
        self._members = _holders(state)
        self.ended = EndedSessions(time)
        self._draining = False
        #: How many pulls wait again if nothing of what is being read for them is wanted.
        self._sifting = 0
        self.next_deadline = NextDeadline()

    @property
    def due_ms(self) -> int | None:
        """See `_due_ms`; None if nobody waits."""
        deadline = self.next_deadline
        if deadline.ms and self._queues:
            return deadline.ms
        if self._sifting or self.pickers.with_unwanted():
            return 0
        deadline.ms = min(map(self._due_ms_of, self._queues), default=0)
        return deadline.ms if self._queues else None

    def _due_ms_of(self, name: str) -> int:
        if self.pickers.is_looking(name):
            return 0
        return _due_ms(self._queues[name], name, self._context.state)

    def pull(self, caller: Caller, request: Pull) -> None:
        """Put a pull in line, and grant what can be granted; one of no message is only told of it.

        Raises `BadRequest`, `BadName`, `Overloaded`, `StaleGrant`, and `Unavailable` once the node
        stops.
        """
        if self._draining:
            raise Unavailable("this node is stopping: pull from another, or again shortly")
        name = check_name(request.cluster, "cluster")
        if not 0 < request.lease_ms <= GRANT_MS_MAX:
            raise BadRequest(f"a pull asks for a lease of 1 to {GRANT_MS_MAX:,} ms")
        if any(first >= behind for first, behind in request.begun or ()):
            raise BadRequest("a run of messages that a client works on is empty")
        now = self._context.time.monotonic_ms()
        self._limits.check_name(name, self._queues.keys())
        queue = self._queues.get(name)
        if queue is None:
            queue = PullQueue()
        tags = frozenset(request.tags)
        self.check_mode(name, request.mode, tags)
        if request.max_messages:
            self._limits.check_grant(name, caller.session, len(queue.proposed))
        waits = queue.pulls if request.max_messages else queue.watches
        waits.check_room()
        if request.token and (request.offsets_only or request.max_messages):
            self.ended.show(caller.session, request.token, request.offsets_only)
        self._queues[name] = queue
        self.pickers.begin(name, request.mode, tags)
        self._members.setdefault(caller.session, set()).add(name)
        if request.begun and not (request.max_messages or request.wait_ms):
            self._begin(name, request.begun)
        else:
            self.begun.report(name, caller.session, request.begun)
        waits.add(Wait(caller, request, now + min(request.wait_ms, WAIT_MS_MAX), now))
        self._serve(name, queue)
        self._end(name, queue, now)
        deadline = self.next_deadline
        if deadline.ms and name in self._queues:  # it concerns no other cluster
            deadline.ms = 0 if tags else min(deadline.ms, self._due_ms_of(name))

    def withdraw(self, session: int, name: str) -> None:
        """Answer a peer's pulls that wait in a cluster with nothing; what is proposed comes."""
        if (queue := self._queues.get(name)) is not None:
            self._answer_nothing(name, queue, queue.withdrawn(session))

    def wake(self) -> None:
        """New messages are committed: serve the clusters in turn, none waits for another."""
        self.next_deadline.forget()
        for name, queue in list(self._queues.items()) if self._queues else ():
            self._serve(name, queue)

    def serve(self, name: str) -> None:
        """Something happened by which a cluster may be granted more."""
        self.next_deadline.forget()
        if (queue := self._queues.get(name)) is not None:
            self._serve(name, queue)
            self._end(name, queue, self._context.time.monotonic_ms())

    def serve_all(self) -> None:
        """Grant again what expired; answer pulls whose time is up with nothing."""
        self.next_deadline.forget()
        for name in list(self._queues):
            self.serve(name)
        for name in self.pickers.with_unwanted():
            self._tell_unwanted(name)

    def drain(self) -> None:
        """Answer all who wait with nothing, and grant nothing any more: the node stops."""
        self._draining = True
        for name, queue in list(self._queues.items()):
            self._answer_nothing(name, queue, queue.pop_all())

    def closed(self, session: int) -> None:
        """A consumer is gone: its grants go to others at once, or are kept for it for a while."""
        names = self._members.get(session, set())
        for name in names:
            self.pickers.closed(name, session)
            if (queue := self._queues.get(name)) is not None:
                queue.closed(session)
                self._retire(name, queue)
        clusters = self._context.state.clusters
        holds = any(name in clusters and session in clusters[name].held for name in names)
        if holds and self.ended.keep(session):
            return
        self.ended.forget(session)
        self._members.pop(session, None)
        if holds:
            self.ended.gone.add(session)
            self._release(session, self.begun.all_lost_by(session))
        for name in names:
            self.begun.forget(name, session)

    # -- entries -----------------------------------------------------------------------------

    def granted(self, index: int, record: MessagesGranted, grant: Grant | None) -> None:
        """A grant is committed: its messages may leave, if an ack before it left any."""
        self.next_deadline.forget()
        promise = self._promised.applied(index)
        if promise is None:
            return  # proposed by an earlier leader
        waiter, pick = promise
        pick.reading.release()  # what reads now pins it again
        name, session = record.cluster, waiter.caller.session
        queue, picker = self._queues[name], self.pickers[name]
        queue.proposed.remove((pick.first, pick.behind))
        picker.granted(pick, grant)
        if grant is None:
            self._put_back(name, waiter)
            return
        self._retire(name, queue)
        due_ms = self._context.time.monotonic_ms() + waiter.request.lease_ms
        self.leases.begin(name, index, due_ms)
        if not self._outbox.knows(session):
            # It went while this was proposed; only an entry behind the grant can end it.
            self.pickers.handed_out(name, index, 0)
            if session not in self.ended:
                self._release(session, [])
            return
        self._members.setdefault(session, set()).add(name)
        self.begun.granted(name, session, waiter.request.begun)
        self._hand_out(index, record, grant, waiter, pick)

    def _hand_out(
        self, index: int, record: MessagesGranted, grant: Grant, waiter: Wait[Pull], pick: Pick
    ) -> None:
        # As of the commit: an ack behind it takes from `left` while the messages are being read.
        runs, attempts = tuple(grant.left), grant.attempts
        first, behind, reading = runs[0][0], runs[-1][1], pick.reading
        # As they are now: of what goes past retention while it is read, they are forgotten.
        voids = Ranges(self._context.state.voids.within(first, behind))
        wanted, is_bare = frozenset(waiter.request.tags), waiter.request.offsets_only
        is_read = bool(wanted) or not is_bare  # the relay that asked has the messages
        self._sifting += bool(wanted)

        def answer(payloads: Sequence[Buffer], failure: Refused | None) -> None:
            reached = behind
            if is_read:
                self._sifting -= bool(wanted)
                reached = pick.first if failure else min(reading.reached(payloads), behind)
                self._context.doubtful.discard(pick.first, reached)
            if reached > first:
                some = tuple((a, min(b, reached)) for a, b in runs if a < reached)
                ahead_ms = milliseconds_of(record.stamp) - self._context.time.wall_ms()
                # What was aborted between them is nothing to a consumer.
                kept = without(payloads, voids) if voids else payloads
                if wanted:
                    kept, some = self._sift(record.cluster, wanted, kept, some, reading.skipped)
                if some:
                    reply = Granted(
                        waiter.request.address, index, record.deadline, some[0][0], some[-1][1],
                        attempts, record.stamp, some if len(some) > 1 else (),
                        () if is_bare else tuple(kept), max(ahead_ms, 0),
                    )  # fmt: skip
                    self._outbox.reply(waiter.caller, reply)
                elif record.cluster in self.pickers:
                    self._put_back(record.cluster, waiter)
                else:
                    self._outbox.reply(waiter.caller, Granted(waiter.request.address, 0, 0, 0, 0))
            else:
                text = f"the messages from offset {reached} on cannot be read"
                self._outbox.refuse(waiter.caller, failure or Unavailable(text))
            self.pickers.handed_out(record.cluster, index, reached)
            if reached < behind:
                self.pickers.unread(record.cluster, index, reached, behind)
            if reached < behind or self.pickers.keep_order(record.cluster):
                self.serve(record.cluster)

        if is_read:
            self._context.reads.start(reading, answer)
        else:
            answer((), None)

    def _sift(
        self, name: str, wanted: frozenset[str], payloads: Sequence[Buffer], runs: Sequence[Run],
        passed: Sequence[Run],
    ) -> tuple[list[Buffer], tuple[Run, ...]]:  # fmt: skip
        """See `_sifted`; propose that what is unwanted is done."""
        group, slices = self._context.group.id, self._context.reads.slices
        unwanted = self.pickers[name].unwanted if name in self.pickers else None
        if unwanted is not None and unwanted.tags != wanted:
            unwanted = None  # the cluster was deleted meanwhile, and another begun
        found = _sifted(payloads, runs, wanted, partial(slices.part, group=group), unwanted)
        if unwanted is not None:
            for run in passed:  # as delayed messages are, whose tags nobody looked at before
                unwanted.add_of(runs, *run)
            self._tell_unwanted(name)
        return found

    def _tell_unwanted(self, name: str) -> None:
        """Propose that messages without a tag of a cluster are done, unless that cannot be now."""
        self.next_deadline.forget()
        picker = self.pickers[name]
        picker.unwanted.is_urgent = False
        if not picker.unwanted or name in self._changing or not self._context.group.accepts:
            return
        runs = picker.unwanted.take()
        try:
            self._open_first(name, picker)
            self._context.group.propose(of_control(UnwantedSkipped(name, runs)))
        except Refused:
            picker.unwanted.put_back(runs)

    def _open_first(self, name: str, picker: Picker) -> None:
        """Propose the mode and the tags of a cluster that has none. If it has, by an entry that is
        not applied yet, this one changes nothing. Raises `Refused`.
        """
        cluster, tags = self._context.state.clusters.get(name), picker.unwanted.tags
        if cluster is not None and cluster.mode is not None:
            return
        if tags:
            opened: ClusterRecord = FilteredClusterOpened(name, picker.mode, tuple(sorted(tags)))
        elif picker.mode is not Mode.SHARED:
            opened = ClusterOpened(name, picker.mode)
        else:
            return
        self._context.group.propose(of_control(opened))

    def acked(self, name: str) -> None:
        """Messages of a cluster are done; where order matters, others may be granted by that."""
        if self.pickers.keep_order(name):
            self.serve(name)

    def returned(self, name: str, fence: int, delay_ms: int, session: int) -> None:
        """Messages were given back, under a fencing number of their own: they rest for a while. By
        `session`, if it is known, which works on them no more.
        """
        cluster, queue = self._context.state.clusters[name], self._queues.get(name)
        if queue is not None:
            queue.rests(session, [*cluster.grants[fence].left])
        self.leases.begin(name, fence, self._context.time.monotonic_ms() + delay_ms)
        self.serve(name)

    def released(self, consumer: int) -> None:
        """A consumer that is gone is known to be: what it held goes to those who wait."""
        self.ended.gone.discard(consumer)
        for name in self._context.state.clusters:
            self.leases.end(name, consumer)
        self.wake()

    def moved(self, name: str, fence: int, grant: Grant, begun: Sequence[Run] | None) -> None:
        """A grant is with another session of its consumer, which works on what is `begun`."""
        self._members.setdefault(grant.consumer, set()).add(name)
        self.pickers.has_left(name, fence, [*grant.left][-1][1])
        self.begun.report(name, grant.consumer, begun)
        if not self._outbox.knows(grant.consumer):
            self._release(grant.consumer, [])

    def start_moved(self, start: int) -> None:
        """Messages below `start` are gone: nobody is granted them again."""
        self.pickers.start_moved(start)
        self._context.doubtful.discard(0, start)

    # -- changes of clusters -----------------------------------------------------------------

    def consumers(self, name: str) -> int:
        """Return how many peers wait in a cluster, or are here and hold messages of it."""
        queue, state = self._queues.get(name), self._context.state.clusters.get(name)
        peers = queue.pulls.sessions | queue.watches.sessions if queue is not None else set()
        held = state.held if state is not None else {}
        return len(peers.union(filter(self._outbox.knows, held)))

    def check_name(self, name: str) -> None:
        """Raise `Overloaded` if a cluster is one too many beside those that begin just now."""
        beginning = self._queues.keys() | self._changing.keys()
        self._limits.check_name(name, beginning)

    def check_mode(self, name: str, mode: Mode, tags: frozenset[str]) -> None:
        """Raise `BadRequest` if a cluster has another mode, or other tags."""
        if name in self._context.state.cursors:
            raise BadRequest(f"cluster {name!r} reads this topic in total order: take a turn")
        self.pickers.check_mode(name, mode, tags)

    def opens(self, name: str, mode: Mode, tags: frozenset[str]) -> None:
        """A mode is proposed for a cluster: until `resume` it is granted nothing, and nobody may
        ask for it in another mode.
        """
        self.suspend(name)
        self.pickers.begin(name, mode, tags)

    def is_changing(self, name: str) -> bool:
        """Whether a change of a cluster is under way."""
        return name in self._changing

    def may_begin(self, name: str) -> bool:
        """Whether something is under way by which a cluster may have begun, or be gone."""
        queue = self._queues.get(name)
        return name in self._changing or (queue is not None and bool(queue.proposed))

    def suspend(self, name: str) -> None:
        """Grant a cluster nothing while a change of it is under way."""
        self._changing[name] += 1

    def resume(self, name: str, forget: bool) -> None:
        """A change is done: grant again, from the new place. With `forget`, nothing was read."""
        self._changing[name] -= 1
        if not self._changing[name]:
            del self._changing[name]
        if forget:
            self.pickers.begin_anew(name, name in self._queues or name in self._changing)
        elif name not in self._queues:
            self._forget(name)
        self.serve(name)

    def pause(self, names: frozenset[str]) -> None:
        """Grant these nothing, and no others more than their own state says."""
        self._paused = names

    def end(self, error: Refused) -> None:
        """The topic is gone: refuse all who wait, and grant nothing any more."""
        self._draining = True
        for name, queue in list(self._queues.items()):
            for waiter in queue.pop_all():
                self._outbox.refuse(waiter.caller, error)
            self._retire(name, queue)

    def lose(self, error: Refused) -> None:
        """This node leads no more: what it proposed to grant may be granted, but not by it."""
        for waiter, pick in self._promised.lose():
            pick.reading.release()
            self._outbox.refuse(waiter.caller, error)
        self.end(error)
        self.pickers.forget_all()

    # -- the line ----------------------------------------------------------------------------

    def _serve(self, name: str, queue: PullQueue) -> None:
        if not self._context.group.accepts:
            return
        state = self._context.state.clusters.get(name)
        if name in self._changing or name in self._paused or (state is not None and state.paused):
            return
        picker = self.pickers[name]
        passed: set[int] = set()  # peers that work already on what could be granted
        while queue.pulls and not self._limits.is_full(name, len(queue.proposed)):
            peer = picker.next_peer(queue)
            if passed and peer == ANYBODY:
                peer = queue.pulls.other(passed)
            if peer is None or peer in passed:
                break
            if not self._grant_first(name, queue, peer, passed):
                if picker.unwanted.is_urgent:
                    self._tell_unwanted(name)
                return
        if picker.unwanted.is_urgent:
            self._tell_unwanted(name)
        if queue.watches and not self._limits.is_full(name, len(queue.proposed)):
            (first, behind), told = picker.pop_watches(queue)
            for waiter in told:
                nothing = Granted(waiter.request.address, 0, 0, first, behind)
                self._outbox.reply(waiter.caller, nothing)

    def _grant_first(self, name: str, queue: PullQueue, peer: int, passed: set[int]) -> bool:
        """Decide on the first pull of a peer, or of all; False if there is nothing to grant."""
        picker, waiter = self.pickers[name], queue.pulls.first(peer)
        cluster = self._context.state.clusters.get(name)
        pick = picker.pick(queue, waiter.request)
        if pick is not None and _is_outdated(self.leases, name, cluster, waiter):
            picker.gave_up(pick)
            self._answer_nothing(name, queue, [queue.pulls.pop(peer)])
        elif pick is not None:
            return self._propose(name, queue, queue.pulls.pop(peer), pick)
        elif (failure := picker.failure) is not None:
            self._outbox.refuse(queue.pulls.pop(peer).caller, failure)
        elif picker.is_barred:
            passed.add(waiter.caller.session)
        else:
            return False
        return True

    def _propose(self, name: str, queue: PullQueue, waiter: Wait[Pull], pick: Pick) -> bool:
        picker, session = self.pickers[name], waiter.caller.session
        stamp = self._context.clock.stamp(self._context.time.wall_ms())
        deadline = stamp_at(milliseconds_of(stamp) + waiter.request.lease_ms)
        record = MessagesGranted(
            name, session, pick.first, pick.behind, deadline, stamp, list(pick.runs),
            self._counted(name, picker.mode, pick),
        )  # fmt: skip
        try:
            self._open_first(name, picker)
            self._tell_unwanted(name)
            self._promised.propose(of_control(record), (waiter, pick))
        except Refused as error:
            picker.gave_up(pick)
            self._outbox.refuse(waiter.caller, error)
            return False
        pick.reading.pin()  # it is read at the commit, and where it lies may be given up before
        queue.proposed.append((pick.first, pick.behind))
        picker.took(session, waiter.request, pick)
        return True

    def _counted(self, name: str, mode: Mode, pick: Pick) -> list[tuple[int, int]]:
        """Return what had an attempt of that which a grant takes from consumers."""
        cluster = self._context.state.clusters.get(name)
        if cluster is None or pick.first >= cluster.frontier:
            return []
        # In order it takes all that lies behind, too.
        parts = [(pick.first, cluster.frontier)] if mode is Mode.ORDERED else pick.parts
        fences = {fence for part in parts for fence, *_ in cluster.holders.within(*part)}
        return self.begun.of_grants(name, sorted(fences))

    def _begin(self, name: str, runs: Iterable[tuple[int, int]]) -> None:
        """The consumer that holds messages which were tried before begins to work on them. It may
        ask on another connection than it pulled on, or have pulled while another node led.

        Raises `StaleGrant` if nobody holds any: they were lost with a connection.
        """
        if not self.begun.begin(name, runs, self.ended.gone):
            raise StaleGrant("no grant has the reported messages any more: pull again")

    def _put_back(self, name: str, waiter: Wait[Pull]) -> None:
        """All that was picked for a pull is done: it is the first in line again."""
        self.next_deadline.forget()
        queue = self._queues.setdefault(name, PullQueue())
        if self._draining:
            self._answer_nothing(name, queue, [waiter])
        elif self._outbox.knows(waiter.caller.session):
            queue.pulls.add(waiter, front=True)
            self._serve(name, queue)
        self._retire(name, queue)

    def _end(self, name: str, queue: PullQueue, now_ms: int) -> None:
        for waits in (queue.pulls, queue.watches) if not self.pickers.is_looking(name) else ():
            self._answer_nothing(name, queue, waits.ended(now_ms))
        self._retire(name, queue)

    def _answer_nothing(self, name: str, queue: PullQueue, waiters: Iterable[Wait[Pull]]) -> None:
        for waiter in waiters:
            self._outbox.reply(waiter.caller, Granted(waiter.request.address, 0, 0, 0, 0))
            session = waiter.caller.session
            if name not in self._context.state.clusters and not queue.holds(session):
                self._members.get(session, set()).discard(name)
        self._retire(name, queue)

    def _retire(self, name: str, queue: PullQueue) -> None:
        if not queue:
            self._queues.pop(name, None)
            self._forget(name)

    def _forget(self, name: str) -> None:
        """No consumer waits in a cluster: forget it if it has not begun."""
        if name not in self._context.state.clusters and name not in self._changing:
            self.pickers.forget(name)

    def _release(self, session: int, counted: list[tuple[str, int, int]]) -> None:
        """Give back what a peer that is gone holds; where that cannot be, its leases end it."""
        if self._context.group.accepts:
            self._context.group.propose(of_control(GrantsReleased(session, counted)))


def _is_outdated(
    leases: Leases, name: str, cluster: ClusterState | None, waiter: Wait[Pull]
) -> bool:  # fmt: skip
    """Whether a peer may have begun more than its pull says: a lease of it has ended since."""
    if cluster is None or waiter.request.begun is None:
        return False
    return leases.has_ended_since(name, cluster, waiter.caller.session, waiter.came_ms)


def _due_ms(queue: PullQueue, name: str, state: PartitionState) -> int:
    """Return the monotonic time before which time brings nothing to those who wait in a cluster; 0
    if it may at once. Where all is done, that is the first deadline of a pull. Where it is not,
    leases may end, and messages come due.
    """
    cluster = state.clusters.get(name)
    cursor = state.log_start if cluster is None else cluster.cursor
    if queue.proposed or cursor < state.decided_offset or (cluster and cluster.grants):
        return 0
    return min((waits.due_ms for waits in (queue.pulls, queue.watches) if waits), default=0)


def _sifted(
    payloads: Sequence[Buffer],
    runs: Sequence[Run],
    wanted: frozenset[str],
    part: Callable[[Batch, frozenset[str]], Part],
    unwanted: Unwanted | None,
) -> tuple[list[Buffer], tuple[Run, ...]]:
    """Return what a cluster that wants some tags gets of batches, of which `runs` are granted, and
    which of these it gets. All else in the batches is noted to be `unwanted`.
    """
    kept: list[Buffer] = []
    found = Ranges()
    for batch in batches_in(payloads):
        matching = Ranges(matching_runs(batch, wanted))
        mine = [run for one in runs for run in matching.within(*one)]
        for run in mine:
            found.add(*run)
        if mine:
            kept.append(part(batch, wanted).bytes)
        if batch.piece is None and unwanted is not None:
            first, behind = max(batch.header.first_offset, runs[0][0]), batch.header.next_offset
            while first < behind:
                begin, end = matching.gap_from(first, behind)
                unwanted.add(begin, end)
                first = end
    return kept, tuple(found)
