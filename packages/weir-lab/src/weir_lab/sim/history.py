"""What clients did and saw: all that the checkers go by, besides the drained log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from weir.broker.state.ranges import Ranges
from weir.model.batch import Batch
from weir.model.columns import NO_SEQUENCE
from weir.model.topic import Mode
from weir_lab.sim.observations import Errands, Ledger, Parcels, Printed, Query, Row, Sunk, Typed

#: The writer of staged messages: no checker counts it.
STAGED: tuple[object, ...] = ("sink", 0)
#: A repeat's answer that names no offset: it was accepted, that much is sure.
UNKNOWN = -1


@dataclass(slots=True)
class Operation:
    """Something a client wants; `ended` when it has an outcome, a lost connection included."""

    what: str
    began: int
    ended: int = -1


class Confirmed(NamedTuple):
    """A confirm as it arrived; the stamp is 0 where the dialect has none."""

    at: int
    offset: int
    stamp: int


@dataclass(slots=True)
class Publish:
    """Messages sent under one (producer, epoch, sequence), or a device's one message.

    `honest` is False for what a broker must refuse: a gap, or a used sequence with other bytes.
    There are no `values` in a chunk, which readers never see.
    `sequence` is None where the device sent none, so that each send may be a message.
    """

    partition: int
    producer: tuple[object, ...]
    sequence: int | None
    values: tuple[bytes, ...]
    sent: int
    honest: bool = True
    #: Confirmed by the leader's disk alone: it may be lost with that.
    early: bool = False
    #: Confirmed once the barrier of its topic has passed it.
    visible: bool = False
    #: A part of a scattering: until that is decided, readers stop before it.
    scattered: bool = False
    #: The highest stamp that its client had seen when it was sent first.
    after: int = 0
    #: Refused, for its partition had ended: it is not there, and never will be.
    ended: bool = False
    sends: int = 0
    confirms: list[Confirmed] = field(default_factory=list)


class Seen(NamedTuple):
    """A batch as a reader or consumer got it, its bytes verified."""

    partition: int
    offset: int
    values: tuple[bytes, ...]
    stamp: int


@dataclass(slots=True)
class Grant:
    """A grant that arrived, when that was, and when its pull was sent.

    `lease_ms` is 0 where a broker that lives may let go of it without the consumer's knowledge;
    `gone` is when the consumer's connection broke, -1 unless the broker has survived that.
    """

    partition: int
    cluster: str
    fence: int
    first: int
    behind: int
    attempts: int
    pulled: int
    arrived: int = 0
    lease_ms: int = 0
    gone: int = -1
    #: When it was made, as a stamp; 0 where that is not told.
    stamp: int = 0
    #: The consumer that got it, and the number of its connection.
    holder: str = ""
    #: Whether that tells what it works on: what it did not begin beside that had no attempt.
    tells: bool = False
    #: Offsets of it without a message that came, and that had not expired.
    lacks: frozenset[int] = frozenset()


@dataclass(slots=True)
class Return:
    """A range of a grant that was given back; `confirmed` is when the answer came, or -1."""

    partition: int
    cluster: str
    fence: int
    first: int
    behind: int
    delay_ms: int
    untried: bool
    sent: int
    confirmed: int = -1

    @property
    def span(self) -> range:
        """The offsets that were given back."""
        return range(self.first, self.behind)


@dataclass(slots=True)
class Extension:
    """A grant that is to last longer; `confirmed` is when the answer came, or -1, and `stale` when
    it was refused because the grant was over.
    """

    partition: int
    cluster: str
    fence: int
    lease_ms: int
    sent: int
    confirmed: int = -1
    stale: int = -1


@dataclass(slots=True)
class Ack:
    """An ack of one range of a grant; `confirmed` is when the answer came, -1 while none has, and
    `stale` when some of it was not done because the grant was over. `late` are the offsets of which
    an answer said that this grant did not do them.
    """

    partition: int
    cluster: str
    fence: int
    first: int
    behind: int
    sent: int
    confirmed: int = -1
    stale: int = -1
    late: frozenset[int] = frozenset()


@dataclass(slots=True)
class Seek:
    """A seek that an operator sent; `settled` is when its answer came, `done` whether it did."""

    partition: int
    cluster: str
    offset: int
    sent: int
    settled: int = -1
    done: bool = False


@dataclass(slots=True)
class TurnTaken:
    """A turn that arrived: all below `offsets`, by partition, is done; `holder`, `lease_ms` and
    `gone` as of a grant.
    """

    cluster: str
    fence: int
    offsets: tuple[int, ...]
    attempts: int
    asked: int
    arrived: int
    lease_ms: int = 0
    gone: int = -1
    holder: str = ""


@dataclass(slots=True)
class Move:
    """What the holder of a turn said of the cursor; `confirmed` is when the answer came, or -1, and
    `stale` when it was refused because the turn was over. One that `ends` gave the turn back, for
    `lease_ms` to nobody.
    """

    cluster: str
    fence: int
    offsets: tuple[int, ...]
    sent: int
    lease_ms: int
    ends: bool = False
    untried: bool = False
    confirmed: int = -1
    stale: int = -1


@dataclass(slots=True)
class Work:
    """Messages of one batch that the holder of a turn began with, and whether they got done."""

    cluster: str
    fence: int
    rows: tuple[Row, ...]
    began: int
    done: bool = False


@dataclass(slots=True)
class Handled:
    """Messages that a consumer of a cluster in total order was handed in a turn.

    `acked` is when the consumer was told that its ack did them, -1 before that: a consumer that is
    told that its ack came too late may have lost the answer of an earlier try, which did them.
    `back`: they were given back. `holder` is the consumer.
    """

    cluster: str
    fence: int
    rows: tuple[Row, ...]
    began: int
    holder: str = ""
    acked: int = -1
    back: bool = False


@dataclass(slots=True)
class SeekAll:
    """A seek of a cluster's cursor in all partitions; `settled` and `done` as of a `Seek`."""

    cluster: str
    offsets: tuple[int, ...]
    sent: int
    settled: int = -1
    done: bool = False


class Fence(NamedTuple):
    """A producer's epoch was granted; a moment later a partition ended at `end`."""

    partition: int
    producer: int
    epoch: int
    end: int


class Look(NamedTuple):
    """Somebody asked where a partition ends, and was told: at `end`, no message being there yet."""

    partition: int
    asked: int
    end: int


@dataclass(slots=True)
class Reading:
    """What a reader in total order gave without a break, from the offsets of `start` on; of that,
    what is stamped above `after`.

    A partition that joins the topic while it reads is read from its first message on. With a
    `partition`, it reads that alone, in its own order. A reader that `skips` passes over messages
    that retention deleted. One that ended where the topic did at a time after `cut` has all that
    was confirmed by then; -1 if it did not end.
    """

    reader: str
    start: dict[int, int]
    rows: list[Row] = field(default_factory=list)
    after: int = 0
    partition: int = -1
    cut: int = -1
    skips: bool = False


@dataclass(slots=True)
class Scattering:
    """What was published at once, as partitions and values; `stamp` is the confirmed one, or 0.

    It was `refused` if it was sent once, and will never be. Messages that made its client publish
    it are acked with it.
    """

    parts: tuple[tuple[int, bytes], ...]
    stamp: int = 0
    refused: bool = False
    acks: Ack | None = None
    #: Bytes of its batches.
    size: int = 0


class Record(NamedTuple):
    """A batch of the drained log: `rows` are (producer, epoch, sequence) of each message."""

    offset: int
    values: tuple[bytes, ...]
    stamp: int
    rows: tuple[tuple[tuple[object, ...], int], ...]
    #: Its bytes, header included.
    size: int = 0


@dataclass(slots=True)
class History:
    """Everything of one run."""

    operations: list[Operation] = field(default_factory=list)
    publishes: list[Publish] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    extensions: list[Extension] = field(default_factory=list)
    seeks: list[Seek] = field(default_factory=list)
    #: Of clusters that read in total order.
    turns: list[TurnTaken] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    sought: list[SeekAll] = field(default_factory=list)
    handled: list[Handled] = field(default_factory=list)
    fences: list[Fence] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    #: By partition and offset, the highest barrier that was said to be complete through there.
    barriers: dict[tuple[int, int], int] = field(default_factory=dict)
    #: By the partitions that a reader counted, its highest barrier.
    complete: dict[frozenset[int], int] = field(default_factory=dict)
    #: By partition that was said to have ended, each stamp that was said, and the least offset.
    ends: dict[int, dict[int, int]] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    scatterings: list[Scattering] = field(default_factory=list)
    #: The modes of clusters that keep order, by partition and name.
    modes: dict[tuple[int, str], Mode] = field(default_factory=dict)
    #: The keys of values that have one, and when those are due that come late, in ms since 1970.
    keys: dict[bytes, bytes] = field(default_factory=dict)
    dues: dict[bytes, int] = field(default_factory=dict)
    #: By partition and packed references, the value that they stand for.
    wholes: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    #: The other way round.
    packed: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    #: Whether values in chunks that are not touched for a moment are given up.
    values_expire: bool = False
    #: What handlers did, if any run.
    ledger: Ledger | None = None
    #: Large values and delayed messages, if any are sent by the client that ships.
    parcels: Parcels | None = None
    #: What `weir work` is to do, if it runs.
    errands: Errands | None = None
    #: Versions of a schema, if somebody adds them.
    typed: Typed | None = None
    #: What queries write to a topic.
    sunk: Sunk | None = None
    #: What `weir sub` printed, if it runs.
    printed: Printed | None = None
    #: Spark queries on the topic.
    queries: list[Query] = field(default_factory=list)
    #: What a client found wrong on the spot, under the promise that it breaks.
    complaints: list[tuple[str, str]] = field(default_factory=list)
    #: By partition, what a reader found in the end, after the last power cut.
    drained: dict[int, list[Record]] = field(default_factory=dict)
    #: By partition, its first offset in the end: all below is past retention.
    starts: dict[int, int] = field(default_factory=dict)
    #: By partition, offsets that were said to be of scatterings that never were.
    voids: dict[int, Ranges] = field(default_factory=dict)
    #: How many bytes of messages a partition is to keep; 0: all.
    retention_bytes: int = 0
    #: Whether a node's wall clock was ever wrong.
    skewed: bool = False
    #: Until when no two were wrong at the same time, and no node was away, in virtual µs.
    one_wrong_until: int = 0
    #: The highest format level that anybody was told of.
    level: int = 0
    #: From when on no fault was made any more.
    healed: int = 0
    #: When the run was given up, or everything had ended.
    ended: int = 0

    def begin(self, what: str, now: int) -> Operation:
        """Note that a client wants something."""
        operation = Operation(what, now)
        self.operations.append(operation)
        return operation

    def leave_out(self, partition: int, voids: Sequence[tuple[int, int]]) -> None:
        """Note runs of offsets of which somebody was told that no message is there."""
        for run in voids:
            self.voids.setdefault(partition, Ranges()).add(*run)

    def is_void(self, partition: int, first: int, behind: int) -> bool:
        """Return whether all of some offsets was said to be void; nothing of an empty range is."""
        known = self.voids.get(partition)
        return first < behind and known is not None and known.covers(first, behind)

    def keep_whole(self, partition: int, packed: bytes, whole: bytes) -> None:
        """Note which value some packed references stand for."""
        self.wholes[partition, packed] = whole
        self.packed[partition, whole] = packed

    def hand_out(self, partition: int, stamp: int, through: int) -> None:
        """Note a partition's barrier, as somebody was told it."""
        place = partition, through
        self.barriers[place] = max(stamp, self.barriers.get(place, 0))

    def end(self, partition: int, stamp: int, behind: int = UNKNOWN) -> None:
        """Note that a partition has ended, as somebody was told it."""
        said = self.ends.setdefault(partition, {})
        said[stamp] = behind if said.get(stamp, UNKNOWN) == UNKNOWN else said[stamp]


def record_of(batch: Batch) -> Record:
    """Return a batch as a checker sees it, each message with its producer and sequence."""
    header = batch.header
    origins = batch.origins
    rows: list[tuple[tuple[object, ...], int]] = []
    if origins is None:
        producer = ("producer", header.producer, header.epoch)
        rows = [(producer, header.sequence + i) for i in range(header.count)]
        if not header.producer:  # a sink staged it
            rows = [(STAGED, NO_SEQUENCE)] * header.count
    else:
        columns = zip(origins.hubs, origins.sns, origins.epochs, origins.sequences, strict=True)
        rows = [(("device", hub, sn, epoch), sequence) for hub, sn, epoch, sequence in columns]
    return Record(
        header.first_offset, tuple(batch.values()), header.stamp, tuple(rows), header.total_size
    )
