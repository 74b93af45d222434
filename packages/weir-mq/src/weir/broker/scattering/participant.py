"""A partition's part in scatterings (docs/adr/0024): while it is led here, and, on every replica,
what a committed record about them means.

If nobody finishes a scattering in time, somebody is asked to, by the leaders of its parts in turn.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from weir.broker.consumers.grants import Grants
from weir.broker.produce.appender import Appender
from weir.broker.records.entries import BatchRecord, Payload, of_control
from weir.broker.records.partition import (
    AcksPrepared,
    AttemptBarred,
    MessagesAcked,
    ScatteringsBarred,
    ScatteringsDecided,
    ScatterRecord,
    SinkPrepared,
)
from weir.broker.replica.group import Group
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.state.scatterings import Outcome, PreparedAcks, Scatterings, give_again
from weir.broker.state.state import PartitionState
from weir.errors import (
    BadBatch,
    BadRequest,
    BatchPublished,
    Overloaded,
    Refused,
    StagedRunGone,
    StaleGrant,
    Unavailable,
    UnknownCluster,
)
from weir.model.columns import Publication, Scattered
from weir.model.ids import Attempt, partition_of
from weir.model.limits import (
    ACK_RANGES_MAX,
    GRANT_MS_MAX,
    MAX_AHEAD_MS,
    RETRY_AFTER_MS,
    SCATTERINGS_KEPT_MAX,
    SINKS_PER_TOPIC_MAX,
)
from weir.order.clock import Time, milliseconds_of
from weir.protocol.client.messages import Confirm
from weir.protocol.client.order import NO_SINK, Acks, Decide, PartState, Prepare, Standing, Step
from weir.protocol.trunk import OWN_SESSION

#: A coordinator has so long, as stamps and the leader's clock have it. Where a stamp lies too far
#: ahead, for a clock was wrong or is, the time counts since the leader found it.
UNDECIDED_MS = 500
#: What is committed here keeps nobody waiting.
UNCLOSED_MS = 10_000
_LOOK_EVERY_MS = 100
_AGAIN_MS_MAX = 8_000
#: Where what was waited for came too late, the next one has up to so many times as long: else slow
#: disks would let nothing ever come to be.
_BACKOFF_MAX = 16

_Key = tuple[Attempt, bool]


class Unfinished(NamedTuple):
    """An attempt that nobody has finished in time, all its parts, and whether it is known to be
    committed.
    """

    attempt: Attempt
    parts: tuple[int, ...]
    is_committed: bool


class ParticipantReports:
    """Messages from the participants of a shard: answers to coordinators about a part, and attempts
    that must be finished. Messages for this shard's own coordinator wait here.
    """

    __slots__ = ("_outbox", "answers", "unfinished")

    def __init__(self, outbox: Outbox) -> None:
        """Nothing is to be said yet."""
        self._outbox = outbox
        #: By number, the answers to what this shard asked itself, in order.
        self.answers: deque[tuple[int, PartState | Refused]] = deque()
        self.unfinished: deque[Unfinished] = deque()

    def answer(self, caller: Caller, answer: PartState | Refused) -> None:
        """Say how it is with a part, or why that is not known."""
        if caller.session == OWN_SESSION:
            self.answers.append((caller.correlation, answer))
        elif isinstance(answer, Refused):
            self._outbox.refuse(caller, answer)
        else:
            self._outbox.reply(caller, answer)


class RecoverySchedule:
    """Says now and then which attempts are unfinished for too long, each later every time."""

    __slots__ = ("_again", "_backoff", "_far", "_known", "_look_at_ms", "_time")

    def __init__(self, known: Scatterings, time: Time) -> None:
        """Begin to lead."""
        self._known = known
        self._time = time
        self._look_at_ms = 0
        self._backoff = 1
        #: By attempt, when to try again, and how long to wait the time after that.
        self._again: dict[Attempt, tuple[int, int]] = {}
        #: By attempt whose stamp lies, or lay, too far ahead, when it was found.
        self._far: dict[Attempt, int] = {}

    def overdue(self) -> list[Unfinished]:
        """Return what is to be finished now."""
        now_ms, wall_ms = self._time.monotonic_ms(), self._time.wall_ms()
        if now_ms < self._look_at_ms:
            return []
        self._look_at_ms = now_ms + _LOOK_EVERY_MS
        overdue: dict[Attempt, tuple[tuple[int, ...], bool]] = {}
        far: dict[Attempt, int] = {}
        for attempt, _, parts, is_undecided in self._known.unfinished():
            age_ms = wall_ms - milliseconds_of(attempt.stamp)
            if age_ms < -MAX_AHEAD_MS or attempt in self._far:
                far[attempt] = self._far.get(attempt, now_ms)
                age_ms = now_ms - far[attempt]
            if age_ms >= (UNDECIDED_MS * self._backoff if is_undecided else UNCLOSED_MS):
                overdue[attempt] = parts, not is_undecided
        self._far = far
        self._again = {one: again for one, again in self._again.items() if one in overdue}
        found = []
        for attempt, (parts, is_committed) in overdue.items():
            at_ms, pause_ms = self._again.get(attempt, (now_ms, UNDECIDED_MS))
            if now_ms >= at_ms:
                self._again[attempt] = now_ms + pause_ms, min(2 * pause_ms, _AGAIN_MS_MAX)
                found.append(Unfinished(attempt, parts, is_committed))
        return found

    def decided(self, attempt: Attempt, committed: bool) -> None:
        """It is known what became of an attempt, perhaps because it was found out from here."""
        if attempt in self._again:
            backoff = self._backoff // 2 if committed else 2 * self._backoff
            self._backoff = min(max(backoff, 1), _BACKOFF_MAX)


class Participant:
    """Prepares parts, writes down what became of them, and sees to it that something does."""

    __slots__ = (
        "_appender",
        "_asking",
        "_budget",
        "_closing",
        "_deciding",
        "_grants",
        "_group",
        "_preparing",
        "_reports",
        "_rows",
        "_schedule",
        "_state",
        "_taking",
        "_time",
    )  # fmt: skip

    def __init__(
        self, group: Group, state: PartitionState, appender: Appender, grants: Grants,
        budget: Budget, time: Time, reports: ParticipantReports,
    ) -> None:  # fmt: skip
        """Begin to lead: what earlier leaders prepared is in the state. The `reports` answer the
        callers.
        """
        self._group = group
        self._state = state
        self._appender = appender
        self._grants = grants
        self._budget = budget
        self._time = time
        self._reports = reports
        self._schedule = RecoverySchedule(state.scatterings, time)
        #: The callers to answer once a batch is prepared, or void.
        self._preparing: dict[_Key, list[Caller]] = {}
        #: Acks that are being put aside, and their callers.
        self._taking: Proposals[Payload, tuple[_Key, AcksPrepared | SinkPrepared, Caller]]
        self._taking = Proposals(group)
        #: The callers to answer once no earlier attempt can be prepared any more.
        self._asking: Proposals[Payload, tuple[_Key, Caller]] = Proposals(group)
        #: Outcomes to write at the next cut, and the callers that wait for that.
        self._rows: dict[_Key, Outcome] = {}
        self._closing: dict[_Key, None] = {}
        self._deciding: dict[_Key, list[Caller]] = {}

    @property
    def waiting(self) -> bool:
        """Whether time brings something to do."""
        coming = self._closing or self._taking or self._appender.is_preparing
        return bool(coming) or self._state.scatterings.kept > 0

    @property
    def has_decided(self) -> bool:
        """Whether `cut` has something to propose."""
        return bool(self._rows)

    def take(self, request: Prepare | Decide, caller: Caller) -> bool:
        """Prepare a part, or do a step with it, and answer once that is done, or why it is not;
        return whether there is something new to cut. Raises `Refused`.
        """
        if isinstance(request, Prepare):
            return self.prepare(request, caller)
        return self.decide(request, caller)

    # -- preparing ---------------------------------------------------------------------------

    def prepare(self, request: Prepare, caller: Caller) -> bool:
        """Prepare a part: see `take`."""
        key = _attempt(request), not request.batch
        attempt, is_acks = key
        if bool(request.batch) + bool(request.acks) + (request.sink != NO_SINK) != 1:
            raise BadRequest("a part of a scattering is a batch, or acks, or names a sink's batch")
        known = self._state.scatterings
        # A batch that others are barred with is told by the clock how high it must be.
        is_barred = known.is_barred(attempt) if is_acks else attempt in known.alone
        if known.is_prepared(*key) or key in known.committed or is_barred:
            self._reports.answer(caller, self._standing(key))
            return False
        if known.kept + len(self._taking) >= SCATTERINGS_KEPT_MAX:
            raise Overloaded(
                f"{SCATTERINGS_KEPT_MAX:,} scatterings are unfinished here: try again shortly",
                RETRY_AFTER_MS,
            )
        if is_acks:
            self._prepare_acks(key, request, caller)
            return False
        return self._prepare_batch(key, request, caller)

    def _prepare_batch(self, key: _Key, request: Prepare, caller: Caller) -> bool:
        attempt, appender = key[0], self._appender
        other = self._state.scatterings.producers.get(attempt.producer)
        if other is not None:
            self._reports.answer(caller, PartState(Standing.OTHER, other.stamp))
            return False

        pending = appender.preparing(attempt.producer)
        if pending is not None and pending.record.stamp == attempt.stamp:
            self._preparing[key].append(caller)
            return False
        if pending is not None or appender.has_under_way(attempt.producer):
            raise Unavailable("other batches of this producer are under way: try again shortly")
        batch = appender.open(memoryview(request.batch), is_part=True)
        header = batch.header
        if (header.producer, header.epoch) != (attempt.producer, attempt.epoch):
            raise BadRequest("a batch is another producer's than its scattering")
        try:
            scattered = batch.scattered
        except BadBatch as error:
            raise BadRequest(str(error)) from None
        if scattered != Scattered(attempt.number, request.parts):
            raise BadRequest("a batch and its scattering do not name the same parts")
        verdict = appender.judge(header)
        if isinstance(verdict, Confirm):
            self._reports.answer(
                caller, PartState(Standing.COMMITTED, verdict.stamp, max(verdict.offset, 0))
            )
            return False
        assert verdict is None  # nothing of its producer is under way
        appender.check_seen(attempt.stamp)
        self._budget.check(header.raw_size)
        appender.look_into(batch)
        if (publication := batch.publication) is not None:
            self._check_publication(publication)
        if not appender.clock.take(attempt.stamp):
            self._reports.answer(caller, PartState(Standing.TOO_LOW, appender.clock.floor))
            return False
        self._budget.charge(len(request.batch))
        pending = appender.accept(batch, 0, attempt.stamp)
        pending.charged = len(request.batch)
        self._preparing[key] = [caller]
        return True

    def _prepare_acks(self, key: _Key, request: Prepare, caller: Caller) -> None:
        attempt = key[0]
        if any(key == taking for taking, _, _ in self._taking):
            raise Unavailable("this part is being prepared: try again shortly")
        for other in self._state.scatterings.acks:
            if other[:3] == attempt[:3]:  # the first request may have arrived last
                self._reports.answer(caller, PartState(Standing.OTHER, other.stamp))
                return
        record: AcksPrepared | SinkPrepared
        if request.sink != NO_SINK:
            self._check_sink(*request.sink)
            record = SinkPrepared(*attempt, request.parts, *request.sink)
        else:
            self._check_held(request.acks)
            record = AcksPrepared(*attempt, request.parts, request.acks)
        self._appender.check_seen(attempt.stamp)
        # What a sink has published is written down before its batch, which is to have this stamp.
        self._appender.clock.raise_to(attempt.stamp - (request.sink != NO_SINK))
        self._taking.propose(of_control(record), (key, record, caller))
        for name, ranges in request.acks:
            for fence, _, _ in ranges:
                self._grants.leases.pin(name, fence)

    def _check_sink(self, query: str, batch_id: int) -> None:
        """Raise `BatchPublished` for a batch of a query that was published here before, or one
        before the last one that was; `Unavailable` while that is undecided.
        """
        if partition_of(self._group.id):
            raise BadRequest("ask partition 0 of the topic for the batches of sinks")
        state = self._state
        if batch_id <= (last := state.staging.last_published(query)):
            raise BatchPublished(
                f"batch {batch_id} of query {query!r} is published: its last one is {last}", last
            )
        taking = [record for _, record, _ in self._taking if isinstance(record, SinkPrepared)]
        if state.is_publishing(query) or any(record.query == query for record in taking):
            raise Unavailable(f"a batch of query {query!r} is being published: try again shortly")
        if last < 0 and len(state.staging.sinks) + len(taking) >= SINKS_PER_TOPIC_MAX:
            raise Overloaded(
                f"{SINKS_PER_TOPIC_MAX:,} queries have published to this topic: let some be "
                "forgotten, by `weir sink forget`",
                RETRY_AFTER_MS,
            )

    def _check_publication(self, publication: Publication) -> None:
        """Raise `StagedRunGone` unless all is here that a batch publishes; `Unavailable` while it
        is undecided whether another one does.
        """
        staging = self._state.staging
        if staging.is_held(publication):
            raise Unavailable("these runs are being published: try again shortly")
        if (number := staging.missing(publication)) is not None:
            raise StagedRunGone(
                f"run {number}, staged for batch {publication.batch} of query "
                f"{publication.query!r}, is not here as it was: it expired, or was published by "
                "another attempt. Run the batch again",
                number,
            )

    def _check_held(self, acks: Acks) -> None:
        for name, ranges in acks:
            self._check_held_of(name, ranges)

    def _check_held_of(self, name: str, ranges: list[tuple[int, int, int]]) -> None:
        cluster = self._state.clusters.get(name)
        if cluster is None:
            raise UnknownCluster(f"cluster {name!r} was never granted anything here")
        if not 1 <= len(ranges) <= ACK_RANGES_MAX:
            raise BadRequest(f"{len(ranges)} ranges in an ack: 1 to {ACK_RANGES_MAX:,}")
        self._grants.pickers.check_live(name, [fence for fence, _, _ in ranges])
        for fence, first, behind in ranges:
            grant = cluster.grants.get(fence)
            if first >= behind or grant is None or not grant.left.covers(first, behind):
                raise _stale(fence)

    # -- deciding ----------------------------------------------------------------------------

    def decide(self, request: Decide, caller: Caller) -> bool:
        """Do a step with a part: see `take`."""
        key = _attempt(request), request.is_acks
        known = self._state.scatterings
        if request.step == Step.ASK:
            self._ask(key, caller)
        elif request.step == Step.CLOSE:
            if key in known.committed:
                self._closing[key] = None
            self._reports.answer(caller, self._standing(key))
        elif known.is_prepared(*key):
            commits = request.step == Step.COMMIT
            self._rows.setdefault(key, Outcome.COMMITTED if commits else Outcome.ABORTED)
            self._deciding.setdefault(key, []).append(caller)
            return True
        else:
            self._reports.answer(caller, self._standing(key))
        return False

    def _ask(self, key: _Key, caller: Caller) -> None:
        known, attempt = self._state.scatterings, key[0]
        if known.is_prepared(*key) or key in known.committed or known.is_barred(attempt):
            self._reports.answer(caller, self._standing(key))
            return
        self._asking.propose(of_control(self._bar(attempt)), (key, caller))

    def _bar(self, attempt: Attempt) -> ScatteringsBarred | AttemptBarred:
        """Return what bars an attempt: alone if a clock that was wrong gave its stamp, for the
        partition's stamps are not to go there.
        """
        clock, stamp = self._appender.clock, attempt.stamp
        if clock.clamp(self._time.wall_ms(), stamp) == stamp:
            clock.raise_to(stamp)
            return ScatteringsBarred(stamp)
        if len(self._state.scatterings.alone) + len(self._asking) >= SCATTERINGS_KEPT_MAX:
            raise Overloaded(
                f"{SCATTERINGS_KEPT_MAX:,} attempts of scatterings are barred alone here: clocks "
                "are wrong by far",
                RETRY_AFTER_MS,
            )
        return AttemptBarred(*attempt)

    def _standing(self, key: _Key) -> PartState:
        attempt, is_acks = key
        known = self._state.scatterings
        if known.is_prepared(*key):
            offset = 0 if is_acks else known.batches[attempt].answer.offset
            return PartState(Standing.PREPARED, attempt.stamp, offset)
        if key in known.committed:
            return PartState(Standing.COMMITTED, attempt.stamp)
        return PartState(Standing.NEVER, attempt.stamp)

    def cut(self) -> None:
        """Propose what became of parts, all in one entry."""
        if not (self._rows or self._closing) or not self._group.accepts:
            return
        rows = [(*attempt, is_acks, int(told)) for (attempt, is_acks), told in self._rows.items()]
        closing = [(*attempt, acks, int(Outcome.CLOSED)) for attempt, acks in self._closing]
        self._rows.clear()
        self._closing.clear()
        self._group.propose(of_control(ScatteringsDecided(rows + closing)))

    # -- entries -----------------------------------------------------------------------------

    def batch_prepared(self, record: BatchRecord) -> None:
        """A batch that was accepted here is applied: it is prepared, or void."""
        assert record.scattered is not None
        number = record.scattered.number
        key = Attempt(record.producer, record.epoch, number, record.stamp), False
        state = self._standing(key)
        if state.standing == Standing.NEVER:  # it is void
            self._appender.decided(record.producer)
        for caller in self._preparing.pop(key, ()):
            self._reports.answer(caller, state)

    def acks_prepared(self, index: int, is_whole: bool) -> None:
        """Acks were put aside by the entry at `index`, or, if not `is_whole`, could not be."""
        taking = self._taking.applied(index)
        if taking is None:
            return
        key, record, caller = taking
        acks = record.acks if isinstance(record, AcksPrepared) else []
        for name, ranges in acks:
            for fence, _, _ in ranges:
                self._grants.leases.unpin(name, fence)
        if is_whole:
            self._reports.answer(caller, self._standing(key))
            return
        try:
            if isinstance(record, SinkPrepared):
                self._check_sink(record.query, record.batch_id)
            self._check_held(acks)
        except Refused as error:
            self._reports.answer(caller, error)
        else:  # they are where they were: it was barred, and another attempt may have them
            self._reports.answer(
                caller, PartState(Standing.TOO_LOW, self._state.scatterings.barred)
            )

    def barred(self, index: int) -> None:
        """What is not prepared by now never will be."""
        asking = self._asking.applied(index)
        if asking is not None:
            key, caller = asking
            self._reports.answer(caller, self._standing(key))

    def decided(self, attempt: Attempt, is_acks: bool, committed: bool) -> None:
        """It is written down what became of a part."""
        self._schedule.decided(attempt, committed)
        key = attempt, is_acks
        for caller in self._deciding.pop(key, ()):
            self._reports.answer(caller, self._standing(key))

    def batch_decided(self, producer: int) -> None:
        """A batch counts, or is void: its producer goes on with what the state knows."""
        self._appender.decided(producer)

    def acks_committing(self, name: str, ranges: list[tuple[int, int, int]]) -> None:
        """Messages of a cluster are about to be done, as (fence, first, next)."""
        self._grants.pickers.acking(MessagesAcked(name, ranges))

    def acks_committed(self, name: str) -> None:
        """They are done."""
        self._grants.acked(name)

    def given_again(self, name: str, fence: int, left_ms: int) -> None:
        """Messages are with their consumer again, for what was left of their lease."""
        due_ms = self._time.monotonic_ms() + min(left_ms, GRANT_MS_MAX)
        self._grants.leases.begin(name, fence, due_ms)
        self._grants.acked(name)

    # -- time and ends -----------------------------------------------------------------------

    def check_deadlines(self) -> None:
        """Forget what is closed; say what is undecided for too long."""
        if self._closing or self._rows:
            self.cut()
        self._reports.unfinished.extend(self._schedule.overdue())

    def lose(self, error: Refused) -> None:
        """This node leads no more: another will know how it is."""
        callers = [caller for waiting in self._preparing.values() for caller in waiting]
        callers += [caller for _, _, caller in self._taking.lose()]
        callers += [caller for _, caller in self._asking.lose()]
        callers += [caller for waiting in self._deciding.values() for caller in waiting]
        for table in (self._preparing, self._deciding, self._rows, self._closing):
            table.clear()
        for caller in callers:
            self._reports.answer(caller, error)


def _attempt(request: Prepare | Decide) -> Attempt:
    return Attempt(request.producer, request.epoch, request.number, request.stamp)


def _stale(fence: int) -> StaleGrant:
    return StaleGrant(f"grant {fence} does not have the messages to ack any more", fence)


def apply_scattering(
    index: int, record: ScatterRecord, state: PartitionState, participant: Participant | None
) -> None:
    """Apply a record of the entry at Raft index `index`, then tell the `participant`, if this node
    leads.
    """
    match record:
        case AcksPrepared():
            is_whole = state.prepare_acks(record, index)
            if participant is not None:
                participant.acks_prepared(index, is_whole)
        case SinkPrepared():
            is_whole = state.prepare_sink(record, index)
            if participant is not None:
                participant.acks_prepared(index, is_whole)
        case ScatteringsBarred(stamp):
            state.bar(stamp)
            if participant is not None:
                participant.barred(index)
        case AttemptBarred(producer, epoch, number, stamp):
            state.bar_alone(Attempt(producer, epoch, number, stamp))
            if participant is not None:
                participant.barred(index)
        case ScatteringsDecided():
            _decide(record, state, participant)


def _decide(
    record: ScatteringsDecided, state: PartitionState, participant: Participant | None
) -> None:
    for producer, epoch, number, stamp, is_acks, outcome in record.rows:
        attempt = Attempt(producer, epoch, number, stamp)
        if outcome == Outcome.CLOSED:
            state.scatterings.committed.pop((attempt, is_acks), None)
            continue
        committed = outcome == Outcome.COMMITTED
        if not is_acks:
            if state.decide_batch(attempt, committed) and participant is not None:
                participant.batch_decided(producer)
        elif (prepared := state.scatterings.decide_acks(attempt, committed)) is not None:
            if committed and prepared.sink is not None:
                state.staging.note_published(prepared.sink, stamp)
            elif committed:
                _ack(prepared, state, participant)
            else:
                state.bar(stamp)
                _give_again(attempt, prepared, state, participant)
        if participant is not None:
            participant.decided(attempt, is_acks, committed)


def _ack(prepared: PreparedAcks, state: PartitionState, participant: Participant | None) -> None:
    for name in dict.fromkeys(one.cluster for one in prepared.taken):
        cluster = state.clusters.get(name)
        if cluster is None:
            continue
        ranges = [
            (prepared.fence, one.first, one.behind) for one in prepared.taken if one.cluster == name
        ]
        if participant is not None:
            participant.acks_committing(name, ranges)
        for one in ranges:
            cluster.ack(*one)
        if participant is not None:
            participant.acks_committed(name)


def _give_again(
    attempt: Attempt, prepared: PreparedAcks, state: PartitionState, participant: Participant | None
) -> None:
    """The former holders hold these messages again, until their leases end."""
    for one in prepared.taken:
        cluster = state.clusters.get(one.cluster)
        if cluster is None or not give_again(cluster, prepared.fence, one) or participant is None:
            continue
        left = milliseconds_of(one.deadline) - milliseconds_of(attempt.stamp)
        participant.given_again(one.cluster, one.fence, max(left, 0))
