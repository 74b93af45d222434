"""One checker for each promise of DESIGN §6 that exists now, and the simplest of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from weir.model.columns import NO_SEQUENCE, generation_of
from weir.model.limits import KIB, MAX_AHEAD_MS
from weir.order.clock import milliseconds_of
from weir.testing.simulator.world import EPOCH_MS, MS, SECOND
from weir_lab.sim.checkers.applications import (
    Delivered,
    EffectOnce,
    HandedOver,
    SchemaNamed,
    SunkOnce,
    WorkDone,
)
from weir_lab.sim.checkers.handled import HandledOnce, OneHolder
from weir_lab.sim.checkers.in_turn import OneCursor, OneTurn
from weir_lab.sim.checkers.leasing import HeldBack, Leased
from weir_lab.sim.checkers.one_order import AllOrNone, BarrierHolds, Causal, OneOrder
from weir_lab.sim.checkers.order import KeyOrder, NotBeforeDue, OrderedOnce
from weir_lab.sim.checkers.queries import Streamed
from weir_lab.sim.checkers.seeking import between
from weir_lab.sim.checkers.whole import ReadWhole
from weir_lab.sim.history import (
    STAGED,
    UNKNOWN,
    Ack,
    Grant,
    History,
    Look,
    Record,
    Return,
    Seek,
)

#: How long an operation may stay open once faults have stopped.
LIVE_WITHIN = 5 * SECOND

#: The largest entry of a run.
ENTRY_BYTES_MAX = 8 * KIB

Values = dict[int, bytes]

#: What is compared in real time; of equal times, in this order.
_SENT, _LOOKED, _CONFIRMED = range(3)
#: Two clocks that are right may differ so much, and what one gave may have been seen by another.
_STAMP_AHEAD_MS = 2 * MAX_AHEAD_MS


class Checker(Protocol):
    """A promise, and how to find that it was broken."""

    name: str

    def check(self, history: History) -> Iterator[str]:
        """Yield a sentence for each violation."""


def values_by_offset(records: Sequence[Record]) -> Values:
    """Return the messages of a drained partition by offset."""
    return {
        offset: value
        for record in records
        for offset, value in enumerate(record.values, record.offset)
    }


def _logs(history: History) -> dict[int, Values]:
    """Return the messages by offset as drained; below the log's start, as they were first seen."""
    logs: dict[int, Values] = defaultdict(dict)
    for partition, records in history.drained.items():
        logs[partition] = values_by_offset(records)
    for seen in history.seen:
        start, log = history.starts.get(seen.partition, 0), logs[seen.partition]
        for offset, value in enumerate(seen.values, seen.offset):
            if offset < start:
                log.setdefault(offset, value)
    return logs


class Durable:
    """What was confirmed, or seen by anybody, is in the log for good, at its offset."""

    name = "Durable"

    def check(self, history: History) -> Iterator[str]:
        """Look every confirmed and every seen message up in the drained log."""
        logs = _logs(history)
        everything = {partition: set(values.values()) for partition, values in logs.items()}
        for publish in history.publishes:
            log, there = logs[publish.partition], everything.get(publish.partition, set())
            start = history.starts.get(publish.partition, 0)
            for confirmed in publish.confirms:
                for i, value in enumerate(publish.values):
                    offset = confirmed.offset + i
                    # What nobody saw before it went past retention may have been anything.
                    found = log.get(offset, value if offset < start else None)
                    lost = confirmed.offset == UNKNOWN and value not in there and not start
                    if lost and not publish.early:
                        yield f"{value!r} was confirmed and is gone"
                    elif confirmed.offset != UNKNOWN and found != value:
                        yield f"{value!r} was confirmed at {offset}: {found!r} is"
        for seen in history.seen:
            for offset, value in enumerate(seen.values, seen.offset):
                if logs[seen.partition].get(offset) != value:
                    found = logs[seen.partition].get(offset)
                    yield f"{value!r} was seen at {offset}, where {found!r} is now"


class OneOffset:
    """Each accepted (producer, epoch, sequence) has exactly one offset."""

    name = "OneOffset"

    def check(self, history: History) -> Iterator[str]:
        """Find messages twice in the log, and confirms that name two offsets or stamps."""
        sends = {v: p.sends for p in history.publishes if p.sequence is None for v in p.values}
        for partition, records in history.drained.items():
            times = Counter(value for record in records for value in record.values)
            for value, count in times.items():
                if count > sends.get(value, 1):
                    yield f"{value!r} is {count} times in partition {partition}"
            rows = Counter(
                row for record in records for row in record.rows if row[1] != NO_SEQUENCE
            )
            for row, count in rows.items():
                if count > 1:
                    yield f"{row} is {count} times in partition {partition}"
        for publish in history.publishes:
            answers = {(c.offset, c.stamp) for c in publish.confirms if c.offset != UNKNOWN}
            if len(answers) > 1:
                yield f"{publish.producer} {publish.sequence} was confirmed as {answers}"


class RealTime:
    """If A was confirmed before B was sent to the same partition, A's offset is the lower one.

    And a request for the end of a partition is told of all messages that had been confirmed by
    then.
    """

    name = "RealTime"

    def check(self, history: History) -> Iterator[str]:
        """Compare each send, and each look, with the highest offset confirmed by then."""
        places = {
            partition: {value: offset for offset, value in values.items()}
            for partition, values in _logs(history).items()
        }
        events: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for publish in history.publishes:
            first = publish.values[0] if publish.values else b""
            offset = places.get(publish.partition, {}).get(first)
            if offset is None:
                continue
            events[publish.partition].append((publish.sent, _SENT, offset))
            known = [c.at for c in publish.confirms if c.offset != UNKNOWN]
            if known:
                events[publish.partition].append((min(known), _CONFIRMED, offset))
        for look in history.looks:
            if not self._ends_undecided(history, look, places.get(look.partition, {})):
                events[look.partition].append((look.asked, _LOOKED, look.end))
        for partition, happened in events.items():
            yield from self._compare(f"partition {partition}", sorted(happened))

    @staticmethod
    def _ends_undecided(history: History, look: Look, places: dict[bytes, int]) -> bool:
        """Whether a part of a scattering lies where somebody was told that a partition ends: until
        it is decided, nobody is shown what is behind it.
        """
        if not history.scatterings:
            return False
        if history.is_void(look.partition, look.end, look.end + 1):
            return True
        past_retention = look.end < history.starts.get(look.partition, 0)
        if past_retention and look.end not in places.values():
            return True  # nobody saw it
        parts = (p for p in history.publishes if p.scattered and p.partition == look.partition)
        return look.end in (places.get(part.values[0]) for part in parts)

    @staticmethod
    def _compare(where: str, happened: list[tuple[int, int, int]]) -> Iterator[str]:
        highest = -1
        for _, what, offset in happened:
            if what == _CONFIRMED:
                highest = max(highest, offset)
            elif what == _SENT and offset < highest:
                yield f"{where}: {offset} was sent after {highest} was confirmed"
            elif what == _LOOKED and offset <= highest:
                yield f"{where}: said to end at {offset}, and {highest} had been confirmed"


class Fenced:
    """Nothing of an older epoch of a producer is accepted behind a newer one's.

    On a node that is alone that begins when the new epoch is granted. In a set, the leader of a
    partition may hear of it later than the producer: there it begins with the first batch. Nothing
    of a device is accepted behind a message of one that has replaced it.
    """

    name = "Fenced"

    def check(self, history: History) -> Iterator[str]:
        """Look for messages of older epochs behind those of a newer one, or behind the end that was
        there after its grant.
        """
        for records in history.drained.values():
            latest: dict[object, int] = {}
            for record in records:
                kind, number, *rest = record.rows[0][0]
                if kind != "producer":
                    continue
                epoch = rest[-1]
                assert isinstance(epoch, int)
                if epoch < latest.setdefault(number, epoch):
                    yield f"epoch {latest[number]} wrote, then {record.rows[0]} at {record.offset}"
                latest[number] = max(epoch, latest[number])
            yield from _of_replaced(records)
        for partition, producer, epoch, end in history.fences:
            ended = {("producer", producer, older) for older in range(epoch)}
            for record in history.drained.get(partition, []):
                if record.offset >= end and record.rows[0][0] in ended:
                    yield f"epoch {epoch} was granted, then {record.rows[0]} wrote {record.offset}"


def _of_replaced(records: Sequence[Record]) -> Iterator[str]:
    latest: dict[object, int] = {}
    for record in records:
        for (kind, *who), _ in record.rows:
            if kind != "device":
                continue
            hub, _, epoch = who
            assert isinstance(epoch, int)
            generation = generation_of(epoch)
            if generation < latest.setdefault(hub, generation):
                yield f"generation {latest[hub]} of {hub} wrote, then {who} at {record.offset}"
            latest[hub] = max(generation, latest[hub])


class Retained:
    """Nothing goes before its time: a partition keeps as much as it was told to, but an entry."""

    name = "Retained"

    def check(self, history: History) -> Iterator[str]:
        """Add up what is left of the partitions of which something is gone."""
        for partition, start in history.starts.items():
            records = history.drained[partition]
            kept = sum(record.size for record in records if record.offset >= start)
            kept += _left_out(history, partition)
            # The newest entry stays, however large it is.
            least = max(history.retention_bytes - ENTRY_BYTES_MAX, 0)
            if not history.retention_bytes or kept <= least:
                yield f"partition {partition} starts at {start} and keeps {kept} bytes"


class AckedOnce:
    """A cluster's message is granted until acked, and never granted after the ack committed.

    A seek of an operator begins anew: what it may have come between is not compared.
    """

    name = "AckedOnce"

    def check(self, history: History) -> Iterator[str]:
        """Compare grants with acks by fencing number; then look for what nobody was granted."""
        clusters = {(g.partition, g.cluster) for g in history.grants}
        for place in sorted(clusters):
            grants = [g for g in history.grants if (g.partition, g.cluster) == place]
            acks = [a for a in history.acks if (a.partition, a.cluster) == place]
            back = [r for r in history.returns if (r.partition, r.cluster) == place]
            seeks = [s for s in history.seeks if (s.partition, s.cluster) == place]
            yield from self._after_ack(grants, acks, seeks, history.starts.get(place[0], 0))
            yield from self._told_twice(place, acks, seeks)
            yield from self._overlaps(grants, back, seeks)
            yield from self._left_out(place, history, grants, acks, seeks)
            yield from self._without_messages(place, history, grants)

    @staticmethod
    def _told_twice(place: tuple[int, str], acks: list[Ack], seeks: list[Seek]) -> Iterator[str]:
        """No two grants are told that they did the same message, unless an operator sought."""
        if seeks:
            return
        done: dict[int, int] = {}
        for ack in acks:
            if ack.confirmed < 0 and ack.stale < 0:
                continue
            for offset in range(ack.first, ack.behind):
                if offset not in ack.late and done.setdefault(offset, ack.fence) != ack.fence:
                    yield (
                        f"{place}: grants {done[offset]} and {ack.fence} were both told that they "
                        f"did {offset}"
                    )

    @staticmethod
    def _without_messages(
        place: tuple[int, str], history: History, grants: list[Grant]
    ) -> Iterator[str]:
        """With a grant come its messages: who acks it says that all of them are done."""
        there = values_by_offset(history.drained.get(place[0], []))
        for grant in grants:
            for offset in sorted(grant.lacks & there.keys()):
                yield f"{place}: grant {grant.fence} came without its message {offset}"

    @staticmethod
    def _left_out(
        place: tuple[int, str],
        history: History,
        grants: list[Grant],
        acks: list[Ack],
        seeks: list[Seek],
    ) -> Iterator[str]:
        """In the end everything from the last seek on was granted and acked since it was sent."""
        first = since = 0
        if seeks:
            if not seeks[-1].done:
                return  # nobody knows whether it happened
            first, since = seeks[-1].offset, seeks[-1].sent
        granted = {o for g in grants if g.arrived >= since for o in range(g.first, g.behind)}
        acked = {o for a in acks if a.sent >= since for o in range(a.first, a.behind)}
        for offset in sorted(values_by_offset(history.drained.get(place[0], []))):
            if offset < first:
                continue
            if offset not in granted:
                yield f"{place}: nobody was granted {offset}"
            elif offset not in acked:
                yield f"{place}: {offset} was granted, not acked, and not granted again"

    @staticmethod
    def _after_ack(
        grants: list[Grant], acks: list[Ack], seeks: list[Seek], start: int
    ) -> Iterator[str]:
        """An ack that is confirmed was made under one of the fences sent by then, at the latest.

        But an ack of what went past retention is confirmed too, though another may hold the
        message: then only a grant that was asked for after it is one too many.
        """
        final: dict[int, int] = {}
        done: dict[int, int] = {}
        sent: dict[int, list[Ack]] = defaultdict(list)
        for ack in acks:
            for offset in range(ack.first, ack.behind):
                sent[offset].append(ack)
        for offset, tried in sent.items():
            confirmed = [a.confirmed for a in tried if a.confirmed >= 0]
            if confirmed:
                by = done[offset] = min(confirmed)
                final[offset] = max(a.fence for a in tried if a.sent <= by)
        for grant in grants:
            for offset in range(grant.first, grant.behind):
                if grant.fence <= final.get(offset, grant.fence):
                    continue
                if offset < start and grant.pulled <= done[offset]:
                    continue
                # An ack of what lies below the place that was sought is confirmed, too.
                since = min(grant.pulled, *(a.sent for a in sent[offset]))
                if not between(seeks, since, max(grant.arrived, done[offset])):
                    yield f"{offset} was done under grant {final[offset]}, then in {grant.fence}"

    @staticmethod
    def _overlaps(grants: list[Grant], back: list[Return], seeks: list[Seek]) -> Iterator[str]:
        """Of two grants that hold one message, the later counts no fewer attempts; and more if the
        message failed, or was alone in the first one and not given back untried. That had no
        attempt either if its consumer may have said that it works on something else.
        """
        handed: dict[str, list[Grant]] = defaultdict(list)
        for grant in grants:
            if grant.tells:
                handed[grant.holder].append(grant)
        latest: dict[int, Grant] = {}
        untried = {(r.fence, offset) for r in back if r.untried for offset in r.span}
        failed: dict[tuple[int, int], int] = {}
        for r in back:
            for offset in r.span if r.confirmed >= 0 and not r.untried else ():
                at = failed.setdefault((r.fence, offset), r.confirmed)
                failed[r.fence, offset] = min(at, r.confirmed)
        sizes = Counter[int]()
        for grant in grants:
            sizes[grant.fence] += grant.behind - grant.first
        for grant in sorted(grants, key=lambda g: g.fence):
            for offset in range(grant.first, grant.behind):
                before = latest.get(offset)
                if before is None:
                    latest[offset] = grant
                    continue
                one = (before.fence, offset)
                alone = sizes[before.fence] == 1 and one not in untried
                # A consumer that tells what it works on reports what was tried before it begins
                # (ADR 0064): what was lost before that has no attempt.
                alone = alone and not (before.tells and before.attempts > 1)
                # It may have been lost ahead of its turn, while another was worked on.
                alone = alone and not any(
                    other.fence != before.fence and other.arrived < grant.arrived
                    for other in handed[before.holder]
                )
                counts = alone or failed.get(one, grant.pulled) < grant.pulled
                if (
                    grant.fence > before.fence
                    and grant.attempts < before.attempts + counts
                    and not between(seeks, before.pulled, grant.arrived)
                ):
                    text = f"attempt {grant.attempts} under {grant.fence} after {before.attempts}"
                    yield f"{offset}: {text}"
                latest[offset] = grant


class Honest:
    """Wrong bytes are never served, and nothing is accepted that must be refused."""

    name = "Honest"

    def check(self, history: History) -> Iterator[str]:
        """Find what nobody sent, or nobody should have been believed."""
        honest = {v for p in history.publishes if p.honest for v in p.values}
        cheated = {v for p in history.publishes if not p.honest for v in p.values}
        for publish in history.publishes:
            if not publish.honest and publish.confirms:
                yield f"mischief was confirmed: {publish.producer} {publish.sequence}"
        for partition, records in history.drained.items():
            for value in values_by_offset(records).values():
                if value in cheated:
                    yield f"partition {partition} holds mischief: {value!r}"
                elif value not in honest:
                    yield f"partition {partition} holds what nobody sent: {value!r}"


class Live:
    """Once faults have stopped, every open operation ends in bounded time."""

    name = "Live"

    def check(self, history: History) -> Iterator[str]:
        """Find operations without an outcome, or with a late one."""
        for operation in history.operations:
            since = max(operation.began, history.healed)
            if operation.ended < 0:
                yield f"{operation.what}, begun at {operation.began // MS} ms, never ended"
            elif operation.ended - since > LIVE_WITHIN:
                yield f"{operation.what} took {(operation.ended - since) // MS} ms"


def _left_out(history: History, partition: int) -> int:
    """Return how many bytes are kept at most of scatterings that never were."""
    voids = history.voids.get(partition)
    each = max((one.size for one in history.scatterings), default=0)
    return voids.count * each if voids is not None else 0


class RisingStamps:
    """In a partition, offset order is stamp order, and a producer's sequence order. What was
    published at once may have one stamp.
    """

    name = "RisingStamps"

    def check(self, history: History) -> Iterator[str]:
        """Walk the drained log once: no hole, no falling stamp, no sequence left out."""
        unseen = {(p.producer, p.sequence) for p in history.publishes if not p.values}
        for partition, records in history.drained.items():
            expected: dict[tuple[object, ...], int] = {}
            from_zero = not history.starts.get(partition, 0)
            for before, after in pairwise(records):
                behind = before.offset + len(before.values)
                left_out = history.is_void(partition, behind, after.offset)
                if after.offset != behind and not left_out:
                    yield f"partition {partition}: offset {after.offset} follows {behind - 1}"
                is_staged = before.rows[0][0] == after.rows[0][0] == STAGED
                if after.stamp < before.stamp + (not is_staged):
                    yield f"partition {partition}: the stamp falls at offset {after.offset}"
            for record in records:
                for producer, sequence in record.rows:
                    if sequence == NO_SEQUENCE:
                        continue
                    # A producer's first messages may be past retention.
                    wanted = expected.get(producer, 0 if from_zero else sequence)
                    while (producer, wanted) in unseen and wanted < sequence:
                        wanted += 1
                    if sequence != wanted:
                        yield f"{producer}: {sequence} where {wanted} belongs"
                    expected[producer] = sequence + 1


class Timely:
    """While one clock at a time is wrong, no stamp lies far ahead of the time."""

    name = "Timely"

    def check(self, history: History) -> Iterator[str]:
        """Compare each confirm's stamp with when it came."""
        for publish in history.publishes if history.one_wrong_until else ():
            for confirm in publish.confirms:
                if confirm.at >= history.one_wrong_until:
                    continue
                ahead = milliseconds_of(confirm.stamp) - (EPOCH_MS + confirm.at // MS)
                if confirm.stamp and ahead > _STAMP_AHEAD_MS:
                    yield (
                        f"{publish.producer} {publish.sequence} in partition {publish.partition}: "
                        f"its stamp lies {ahead} ms ahead of the time"
                    )


CHECKERS: tuple[Checker, ...] = (
    Durable(),
    OneOffset(),
    RisingStamps(),
    RealTime(),
    Fenced(),
    Retained(),
    AckedOnce(),
    Leased(),
    HeldBack(),
    KeyOrder(),
    OrderedOnce(),
    NotBeforeDue(),
    Honest(),
    Live(),
    Timely(),
    BarrierHolds(),
    OneOrder(),
    ReadWhole(),
    Causal(),
    AllOrNone(),
    OneCursor(),
    OneTurn(),
    HandledOnce(),
    OneHolder(),
    EffectOnce(),
    Delivered(),
    HandedOver(),
    WorkDone(),
    SchemaNamed(),
    SunkOnce(),
    Streamed(),
)


def violations(history: History) -> list[tuple[str, str]]:
    """Return every broken promise with what broke it; clients' own complaints come first."""
    found = list(history.complaints)
    for checker in CHECKERS:
        found += [(checker.name, text) for text in checker.check(history)]
    return found
