"""A partition's replicated state: what every replica knows after the same entries."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

from weir.broker.records.entries import BatchRecord
from weir.broker.records.partition import (
    AcksPrepared,
    ClusterDeleted,
    ClusterOpened,
    ClusterPaused,
    ClusterRecord,
    ClusterSought,
    CursorMoved,
    CursorRecord,
    CursorSought,
    CursorTaken,
    FilteredClusterOpened,
    LogStartMoved,
    RelayHold,
    SinkPrepared,
)
from weir.broker.records.snapshots import Frozen, opened
from weir.broker.state.clusters import ClusterState, Cursor, Cursors
from weir.broker.state.dedupe import EpochFloors, OriginTable, value_hash
from weir.broker.state.large_values import ValueTable
from weir.broker.state.producers import PARTS, Answer, ProducerTable, chunk_answer
from weir.broker.state.ranges import Ranges
from weir.broker.state.scatterings import (
    PreparedAcks,
    PreparedBatch,
    Scatterings,
    Taken,
    give_again,
    put_aside,
)
from weir.broker.state.staging import StagingTable
from weir.errors import UnknownVersion
from weir.model.batch import Batch
from weir.model.columns import NO_SEQUENCE, Piece, epoch_of
from weir.model.ids import Attempt
from weir.model.limits import DEDUPE_HORIZON_MS, DELAYED_BATCHES_MAX, MAX_AHEAD_MS
from weir.order.clock import milliseconds_of, stamp_at

#: Stamps may be ahead of a leader's wall clock by so much: two clocks within `max_ahead` of the
#: median differ by twice as much, and a stamp lies as much again above the clock that gave it.
STAMPS_AHEAD_MS = 3 * MAX_AHEAD_MS
#: Rows whose messages are long due stay until there are twice as many rows as after the last sweep.
_SWEEP_LEAST = 1_024
#: Of each partition, a cut tells so many forks and one more: it may have 4,096 partitions.
_FORKS_TOLD = 2
_VERSION = 14
#: What is written as long as no lineage of the partition has ended.
_WITHOUT_FORKS = 13
#: What is written as long as no producer has a narrow window.
_WITHOUT_WINDOWS = 12
#: What is written as long as no relay is held for, either.
_WITHOUT_HOLDS = 11
#: What is written as long as no device was replaced, and none forgotten for good, either.
_WITHOUT_FLOORS = 10
#: What is written as long as nothing was staged, either: the release before reads that as well.
_WITHOUT_STAGING = 9
#: What is written as long as no cluster was paused, either.
_WITHOUT_PAUSES = 8
#: What is written as long as nothing has ended, either.
_WITHOUT_ENDS = 7
_HORIZON = stamp_at(DEDUPE_HORIZON_MS)
#: Each of the parts of its table is looked at once an hour, few of them at one entry.
_EXPIRE_EVERY = stamp_at(3600 * 1000) // PARTS
_EXPIRE_AT_ONCE = 8
#: What a state is of: what one takes over from another.
_PARTS = (
    "_expired_at",
    "clusters",
    "cursors",
    "delays",
    "first_index",
    "last_stamp",
    "log_start",
    "membership",
    "next_offset",
    "origins",
    "pauses",
    "producers",
    "scatterings",
    "staging",
    "values",
)


def is_past(due_ms: int, stamp_ms: int) -> bool:
    """Return whether a time is past by any leader's clock once something is stamped `stamp_ms`."""
    return due_ms <= stamp_ms - STAMPS_AHEAD_MS


class DelayRow(NamedTuple):
    """Messages [first, next) of one batch, due from `least` to `greatest`, in ms since 1970."""

    first: int
    next: int
    least: int
    greatest: int


class Delays:
    """Where a partition's delayed messages lie: a row for each batch that has some, in the order of
    their offsets, 32 bytes each.

    A row says between which times a batch's messages are due; each message's own time stays in the
    log, in the DUE column. Rows come and go by entries and stamps. Leaders judge by their wall
    clocks what is due, and stamps may be ahead of those: so a row stays for as long as the clock of
    some leader may lie below its times.
    """

    __slots__ = ("_firsts", "_greatest", "_least", "_nexts", "_sweep_at")

    def __init__(self) -> None:
        """Begin with none."""
        self._firsts = array("q")
        self._nexts = array("q")
        self._least = array("q")
        self._greatest = array("q")
        self._sweep_at = _SWEEP_LEAST

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, row: DelayRow, stamp_ms: int, most: int) -> None:
        """Append the row of a batch stamped at `stamp_ms`, unless all of it is due by any clock.

        Rows that are past by then go once there are many, or `most`: who adds sees to it that
        fewer are not (`is_full`).
        """
        if is_past(row.greatest, stamp_ms):
            return
        if len(self) >= min(self._sweep_at, most):
            self._sweep(stamp_ms - STAMPS_AHEAD_MS)
        for column, number in zip(self._columns, row, strict=True):
            column.append(number)

    def drop_below(self, start: int) -> None:
        """Forget the messages below offset `start`: they are gone."""
        count = bisect_right(self._nexts, start)
        for column in self._columns:
            del column[:count]

    def live(self, offset: int, behind: int, now_ms: int) -> DelayRow | None:
        """Return the first row that holds offsets of [offset, behind) and is not all due."""
        at = bisect_right(self._nexts, offset)
        while at < len(self._firsts) and self._firsts[at] < behind:
            if self._greatest[at] > now_ms:
                return self._row(at)
            at += 1
        return None

    def of(self, first: int) -> DelayRow | None:
        """Return the row that begins at an offset."""
        at = bisect_left(self._firsts, first)
        if at < len(self._firsts) and self._firsts[at] == first:
            return self._row(at)
        return None

    def is_full(self, most: int, stamp_ms: int) -> bool:
        """Return whether there are `most` rows that a batch stamped at `stamp_ms` leaves."""
        since_ms = stamp_ms - STAMPS_AHEAD_MS
        return len(self) >= most and sum(map(since_ms.__lt__, self._greatest)) >= most

    def has_live(self, offset: int, now_ms: int) -> bool:
        """Return whether messages from `offset` on are not due."""
        at = bisect_right(self._nexts, offset)
        return any(map(now_ms.__lt__, self._greatest[at:]))

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self._firsts, self._nexts, self._least, self._greatest

    def _row(self, at: int) -> DelayRow:
        return DelayRow(self._firsts[at], self._nexts[at], self._least[at], self._greatest[at])

    def _sweep(self, since_ms: int) -> None:
        kept = bytes(map(since_ms.__lt__, self._greatest))
        if not all(kept):
            for column in self._columns:
                column[:] = array("q", compress(column, kept))
        self._sweep_at = max(_SWEEP_LEAST, 2 * len(self))

    def encode(self) -> tuple[object, ...]:
        """Return the rows for a snapshot."""
        return (self._sweep_at, *(column.tobytes() for column in self._columns))

    @classmethod
    def decode(cls, sweep_at: int, *columns: bytes) -> Delays:
        """Return the rows of a snapshot."""
        found = cls()
        found._sweep_at = sweep_at
        for column, data in zip(found._columns, columns, strict=True):
            column.frombytes(data)
        return found


class OrderMembership:
    """Which partitions belong to a topic's order, whether this one takes messages, which relays it
    keeps them for, and where the lineages of its log begin.
    """

    __slots__ = ("ends", "forks", "joined", "relay_holds", "sealed")

    def __init__(self) -> None:
        """Begin with the partitions that the topic was made with."""
        #: Of partition 0: those that joined the topic's order, each with what it is stamped above.
        self.joined: list[tuple[int, int]] = []
        #: Of partition 0: those that have ended, and above which stamp and behind which offset
        #: there is nothing of them.
        self.ends: dict[int, tuple[int, int]] = {}
        #: The stamp above which nothing is published here any more; 0 while something may be.
        self.sealed = 0
        #: What relays need, as an entry said it last.
        self.relay_holds: tuple[RelayHold, ...] = ()
        #: By rising lineage, the first offset in it; lineage 0 begins at 0, and is not here.
        self.forks: tuple[tuple[int, int], ...] = ()

    @property
    def lineage(self) -> int:
        """The lineage in which messages are taken now."""
        return self.forks[-1][0] if self.forks else 0

    @property
    def lineages(self) -> tuple[tuple[int, int], ...]:
        """By rising lineage, the first offset of each, with lineage 0, as cuts tell them: those
        before the last ones are told as one, which begins at the lowest offset of them.
        """
        older, forks = self.forks[:-_FORKS_TOLD], self.forks[-_FORKS_TOLD:]
        if older:
            # Whoever knows one of them only is told of a fork, perhaps where there was none.
            forks = ((older[-1][0], min(at for _, at in older)), *forks)
        return (0, 0), *forks

    def fork_of(self, lineage: int) -> int:
        """Return the lowest offset that later lineages took; -1 if there is none."""
        return min((at for later, at in self.forks if later > lineage), default=-1)

    def join(self, partition: int, floor: int) -> None:
        """Let another partition belong to the order; one that does already stays as it is."""
        if all(partition != joined for joined, _ in self.joined):
            self.joined.append((partition, floor))

    def seal(self, stamp: int) -> None:
        """Let no message come any more; what was sealed before stays as it is."""
        self.sealed = self.sealed or stamp

    def end(self, partition: int, stamp: int, offset: int) -> None:
        """Let the order wait for nothing more of another partition, which is sealed."""
        self.ends.setdefault(partition, (stamp, offset))


class PartitionState:
    """Next offset, last stamp, dedupe, clusters (DESIGN §5 Raft, the list of a snapshot)."""

    __slots__ = _PARTS

    def __init__(self) -> None:
        """Begin as a new partition."""
        #: The first offset that is kept; all below is past retention.
        self.log_start = 0
        #: Entries of messages below this Raft index are not needed any more.
        self.first_index = 0
        self.next_offset = 0
        self.last_stamp = 0
        self.producers = ProducerTable()
        self.origins = OriginTable()
        self.values = ValueTable()
        self.clusters: dict[str, ClusterState] = {}
        #: Of partition 0: the topic's clusters that read in total order.
        self.cursors = Cursors()
        #: By cluster: whether it is paused, and by which change of the registry's.
        self.pauses: dict[str, tuple[bool, int]] = {}
        self.delays = Delays()
        self.scatterings = Scatterings()
        self.staging = StagingTable()
        self.membership = OrderMembership()
        self._expired_at = 0

    @property
    def decided_offset(self) -> int:
        """The offset of the first message that is undecided, or `next_offset`: readers of every
        mode stop here.
        """
        scatterings, behind = self.scatterings, self.next_offset
        return scatterings.first_offset(behind) if scatterings.batches else behind

    @property
    def undecided(self) -> int:
        """The lowest stamp of messages that are undecided; 0 if there are none."""
        return self.scatterings.undecided

    @property
    def voids(self) -> Ranges:
        """Offsets of messages that never were: their scatterings were aborted."""
        return self.scatterings.voids

    def apply(self, batch: BatchRecord, index: int) -> None:
        """Take note of a committed batch of the entry at Raft index `index`."""
        (
            producer, epoch, sequence, messages, hash_, offset, stamp, behind, devices, large, size,
            *_, publication,
        ) = batch  # fmt: skip
        if self.values.opened:
            self.values.at(producer, epoch, stamp)
        answer = offset
        if large is not None:
            if isinstance(large, Piece):
                answer = chunk_answer(index)
                self.values.grow(producer, epoch, large, hash_, index, stamp, size)
            else:
                self.values.close(producer, large, offset)
        told = tuple.__new__(Answer, (sequence, messages, answer, stamp, hash_))  # in C
        if batch.scattered is None:
            self.producers.record(producer, epoch, told)
        else:
            number, parts = batch.scattered
            attempt = Attempt(producer, epoch, number, stamp)
            prepared = PreparedBatch(parts, told, publication)
            is_there = publication is None or self.staging.missing(publication) is None
            if publication is not None and self.staging.is_held(publication):
                is_there = False  # another scattering is about to publish it
            if not self.scatterings.prepare(attempt, prepared, is_there):
                self._skip(offset, behind)
            elif publication is not None:
                self.staging.hold(publication)
        if devices is not None:
            self._note_origins(devices, offset)
        if batch.dues is not None:
            row = DelayRow(offset, behind, *batch.dues)
            self.delays.add(row, milliseconds_of(stamp), DELAYED_BATCHES_MAX)
        self.next_offset = behind
        # A grant may be stamped after a batch and yet lie before it in the log.
        self.last_stamp = max(self.last_stamp, stamp)
        if stamp - self._expired_at >= _EXPIRE_EVERY:
            self._expire(stamp)

    def join(self, partition: int, floor: int) -> None:
        """Let another partition belong to the topic's order, above stamp `floor`."""
        self.membership.join(partition, floor)
        self.last_stamp = max(self.last_stamp, floor)

    def begin_lineage(self, lineage: int) -> None:
        """What comes from here on is of this lineage, if it is a later one than that so far."""
        if lineage > self.membership.lineage:
            self.membership.forks += ((lineage, self.next_offset),)

    def seal(self, stamp: int) -> None:
        """Let no message come any more."""
        self.membership.seal(stamp)
        self.last_stamp = max(self.last_stamp, stamp)

    def _expire(self, stamp: int) -> None:
        """Forget old producers, a few parts of the table in turn: by stamp and never by a clock, so
        that every replica forgets at the same entry.
        """
        turn = stamp // _EXPIRE_EVERY
        first = max(self._expired_at // _EXPIRE_EVERY + 1, turn - PARTS + 1)
        last = min(turn, first + _EXPIRE_AT_ONCE - 1)
        if self.producers.oldest < stamp - _HORIZON:
            self.producers.expire(stamp - _HORIZON, range(first, last + 1))
        self._expired_at = last * _EXPIRE_EVERY

    def cluster(self, name: str) -> ClusterState:
        """Return a cluster's state; one that nothing is known of begins at the first message."""
        state = self.clusters.get(name)
        if state is None:
            state = self.clusters[name] = self.new_cluster()
            state.paused = self._is_paused(name)
        return state

    def new_cluster(self) -> ClusterState:
        """Return what a cluster is that begins here, without beginning it."""
        cluster = ClusterState(self.log_start, self.log_start)
        self._skip_voids(cluster)
        return cluster

    def messages_from(self, offset: int) -> int:
        """Return how many messages there are from `offset` on that are decided and not void."""
        behind = self.decided_offset
        voids = sum(end - begin for begin, end in self.voids.within(offset, behind))
        return max(behind - offset, 0) - voids

    def steer(self, record: ClusterRecord) -> None:
        """Apply a change of a cluster; a seek never goes below the log's start."""
        match record:
            case ClusterSought(name, offset):
                cluster = self.cluster(name)
                cluster.seek(max(offset, self.log_start))
                self._skip_voids(cluster)
            case ClusterOpened(name, mode):
                self.cluster(name).open(mode)
            case FilteredClusterOpened(name, mode, tags):
                self.cluster(name).open(mode, tags)
            case ClusterPaused(name, paused, revision):
                self._pause(name, paused, revision)
            case ClusterDeleted(name):
                self.clusters.pop(name, None)
                self.cursors.pop(name, None)

    def _pause(self, name: str, paused: bool, revision: int) -> None:
        """Pause a cluster, or let it go on, unless a newer change of the registry's is known."""
        if revision and revision <= self.pauses.get(name, (False, 0))[1]:
            return
        known = self.cursors.get(name) or self.clusters.get(name)
        if revision:
            self.pauses[name] = paused, revision
        elif known is None:
            known = self.cluster(name)
        if known is not None:
            known.paused = paused

    def _is_paused(self, name: str) -> bool:
        return self.pauses.get(name, (False, 0))[0]

    def steer_cursor(self, index: int, record: CursorRecord) -> bool:
        """Apply what happens to a cursor by the entry at `index`; False if it came too late."""
        if not isinstance(record, CursorSought):
            self.last_stamp = max(self.last_stamp, record.stamp)
        cursor = self.cursors.get(record.cluster)
        match record:
            case CursorTaken():
                if cursor is None and not record.after:
                    cursor = self.cursors[record.cluster] = self._cursor(record.cluster)
                return cursor is not None and cursor.take(index, record)
            case CursorMoved():
                return cursor is not None and cursor.move(record)
            case CursorSought():
                if cursor is None:
                    cursor = self.cursors[record.cluster] = self._cursor(record.cluster)
                cursor.seek(record)
                return True

    def _cursor(self, name: str) -> Cursor:
        return Cursor(paused=self._is_paused(name))

    def prepare_acks(self, record: AcksPrepared, fence: int) -> bool:
        """Put aside what acks of a scattering name, under `fence`; False if they are barred, or
        some of it is not in those grants: no such attempt is prepared here any more then.
        """
        attempt = Attempt(record.producer, record.epoch, record.number, record.stamp)
        known, taken = self.scatterings, list[Taken]()
        whole = not known.is_barred(attempt) and attempt not in known.acks
        for name, ranges in record.acks if whole else ():
            cluster = self.clusters.get(name)
            found = put_aside(cluster, name, fence, ranges) if cluster is not None else None
            if found is None:
                whole = False
                break
            taken += found
        self.last_stamp = max(self.last_stamp, record.stamp)
        if whole:
            known.acks[attempt] = PreparedAcks(record.parts, fence, tuple(taken))
            return True
        for one in taken:
            give_again(self.clusters[one.cluster], fence, one)
        self.bar(record.stamp)
        return False

    def prepare_sink(self, record: SinkPrepared, index: int) -> bool:
        """Take note that a batch of a query may be published by the entry at `index`; False if that
        is barred, or it or a later one was published, or another attempt of it is undecided.
        """
        attempt = Attempt(record.producer, record.epoch, record.number, record.stamp)
        known = self.scatterings
        whole = not known.is_barred(attempt) and attempt not in known.acks
        whole = whole and not self.is_publishing(record.query)
        # Its batch follows, if it has one here, and is to have the stamp itself.
        self.last_stamp = max(self.last_stamp, record.stamp - 1)
        if whole and self.staging.last_published(record.query) < record.batch_id:
            sink = record.query, record.batch_id
            known.acks[attempt] = PreparedAcks(record.parts, index, (), sink)
            return True
        self.bar(record.stamp)
        return False

    def is_publishing(self, query: str) -> bool:
        """Whether it is undecided if a batch of a query is published."""
        return any(one.sink and one.sink[0] == query for one in self.scatterings.acks.values())

    def bar(self, stamp: int) -> None:
        """Let no attempt at or below `stamp` be prepared any more."""
        self.scatterings.bar(stamp)
        self.last_stamp = max(self.last_stamp, stamp)

    def bar_alone(self, attempt: Attempt) -> None:
        """Let an attempt not be prepared any more whose stamp lies so far ahead that none of this
        partition may come near it.
        """
        known = self.scatterings
        known.bar_alone(attempt)
        # Those that the stamps have reached by now need not be known one by one.
        reached = [one.stamp for one in known.alone if one.stamp <= self.last_stamp]
        self.bar(max(reached, default=0))

    def decide_batch(self, attempt: Attempt, committed: bool) -> bool:
        """Let a prepared batch count, or make it void; False if there is none."""
        prepared = self.scatterings.decide_batch(attempt, committed)
        if prepared is None:
            return False
        if prepared.publication is not None:
            offset = prepared.answer.offset
            self.staging.decide(prepared.publication, offset, attempt.stamp, committed)
        if committed:
            self.producers.record(attempt.producer, attempt.epoch, prepared.answer)
        else:
            self.bar(attempt.stamp)
            self._skip(prepared.answer.offset, prepared.behind)
        return True

    def _skip(self, first: int, behind: int) -> None:
        for cluster in self.clusters.values():
            cluster.skip(first, behind)

    def _skip_voids(self, cluster: ClusterState) -> None:
        for run in self.voids.within(cluster.cursor, self.next_offset):
            cluster.skip(*run)

    def move_start(self, record: LogStartMoved) -> None:
        """Let the log start later; what clusters had not done below it they never will.

        First, open values go that nobody touched since the record's stamp.
        """
        self.values.void(record.untouched_since)
        self.staging.void(record.untouched_since)
        if record.offset <= self.log_start:
            return
        # Runs that were touched since this was proposed, or are about to be published, stay.
        needed = self.staging.first_needed_index(record.index, record.offset)
        self.log_start, self.first_index = record.offset, needed
        self.values.forget_below(self.log_start)
        self.staging.published.forget_below(self.log_start)
        self.delays.drop_below(self.log_start)
        self.voids.discard(0, self.log_start)
        for cluster in self.clusters.values():
            cluster.drop_below(self.log_start)

    def first_needed_index(self, index: int, offset: int, since: int = 0) -> int:
        """Return below which Raft index, `index` at most, no entry is needed when the log starts at
        `offset`: large values and staged batches lie before their messages, and what is open may
        be closed, but for what is untouched since stamp `since`.
        """
        needed = self.values.first_needed_index(index, offset, since)
        return self.staging.first_needed_index(needed, offset, since) if self.staging else needed

    @property
    def stored_beside(self) -> int:
        """The bytes of all chunks and staged batches, of open values and runs as well."""
        return self.values.stored + self.staging.stored

    def stored_apart(self, offset: int) -> int:
        """Return the bytes that messages from `offset` on take in other entries: chunks of their
        values, and batches that were staged.
        """
        return self.values.stored_from(offset) + self.staging.published.stored_from(offset)

    def _note_origins(self, batch: Batch, offset: int) -> None:
        origins = batch.origins
        assert origins is not None  # BatchRecord keeps only such batches
        hashes = map(value_hash, batch.values())
        columns = origins.hubs, origins.sns, origins.epochs, origins.sequences, hashes
        record = self.origins.record
        for at, (hub, sn, epoch, sequence, value) in enumerate(zip(*columns, strict=True), offset):
            if sequence != NO_SEQUENCE:
                record(hub, sn, epoch, sequence, at, value)
        if origins.generations:
            for hub, generation in set(zip(origins.hubs, origins.generations, strict=True)):
                self.origins.floors.raise_to(hub, epoch_of(generation, 0))

    def encode(self) -> object:
        """Return the state as MessagePack can hold it: ends and pauses only where any are."""
        membership = self.membership
        ends = [(partition, *end) for partition, end in membership.ends.items()]
        pauses = [(name, *pause) for name, pause in self.pauses.items()]
        kept = self.origins.floors
        producers, narrow = self.producers.encode(), self.producers.encode_narrow()
        forks = (membership.forks,) if membership.forks else ()
        stripes = (narrow,) if narrow or forks else ()
        holds = (membership.relay_holds,) if membership.relay_holds or stripes else ()
        floors = (kept.encode(),) if kept or holds else ()
        staging = (self.staging.encode(),) if self.staging or floors else ()
        has_pauses = bool(pauses or staging)
        has_ends = bool(membership.sealed or ends or has_pauses)
        version = _WITHOUT_PAUSES if has_ends else _WITHOUT_ENDS
        version = _WITHOUT_FLOORS if staging else _WITHOUT_STAGING if has_pauses else version
        version = _WITHOUT_WINDOWS if holds else _WITHOUT_HOLDS if floors else version
        version = _WITHOUT_FORKS if stripes else version
        version = _VERSION if forks else version
        return (
            version,
            self.log_start,
            self.first_index,
            self.next_offset,
            self.last_stamp,
            self._expired_at,
            producers,
            self.origins.encode(),
            [Frozen(partial(tuple, (n, *c.encode()))) for n, c in self.clusters.items()],
            self.values.encode(),
            self.delays.encode(),
            self.scatterings.encode(),
            list(membership.joined),
            self.cursors.encode(),
            *((membership.sealed, ends) if has_ends else ()),
            *((pauses,) if has_pauses else ()),
            *staging,
            *floors,
            *holds,
            *stripes,
            *forks,
        )

    def become(self, other: PartitionState) -> None:
        """Take another replica's state, as `decode` gave it, in place of this one."""
        for name in _PARTS:
            setattr(self, name, getattr(other, name))

    @classmethod
    def decode(cls, data: Any) -> PartitionState:
        """Return the state that `encode` gave."""
        version, *fields = data
        if version not in range(_WITHOUT_ENDS, _VERSION + 1):
            raise UnknownVersion(
                f"the checkpoint holds a partition in version {version}; this release reads "
                f"{_VERSION}. Start the release that wrote it, or restore a backup to a new folder",
                version,
                _VERSION,
            )
        start, first_index, *fields = fields
        next_offset, last_stamp, expired_at, producers, origins, clusters, *fields = fields
        values, delays, scatterings, joined, cursors, *later = fields
        state = cls()
        state.log_start, state.first_index = start, first_index
        state.next_offset, state.last_stamp, state._expired_at = next_offset, last_stamp, expired_at
        state.producers = ProducerTable.decode(producers, *later[6:7])
        state.origins = OriginTable.decode(origins)
        state.values = ValueTable.decode(*values)
        state.delays = Delays.decode(*delays)
        state.scatterings = Scatterings.decode(*scatterings)
        state.cursors = Cursors.decode(cursors)
        membership = state.membership
        membership.joined = [(partition, floor) for partition, floor in joined]
        membership.sealed, ends = later[:2] or (0, ())
        state.pauses = {name: (paused, by) for rows in later[2:3] for name, paused, by in rows}
        if later[3:]:
            state.staging = StagingTable.decode(*later[3])
        if later[4:]:
            state.origins.floors = EpochFloors.decode(*later[4])
        membership.forks = tuple((lineage, at) for rows in later[7:8] for lineage, at in rows)
        membership.relay_holds = tuple(RelayHold(*row) for rows in later[5:6] for row in rows)
        membership.ends = {partition: (stamp, offset) for partition, stamp, offset in ends}
        rows = map(opened, clusters)
        state.clusters = {name: ClusterState.decode(*row) for name, *row in rows}
        return state
