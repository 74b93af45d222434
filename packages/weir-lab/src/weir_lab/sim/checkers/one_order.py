"""What a topic's one order promises: barriers, readers in total order, causes, scatterings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from weir_lab.sim.history import UNKNOWN, History, Publish, Reading, Scattering
from weir_lab.sim.observations import UNREAD, Row

#: By partition and offset: a message's stamp and value.
Log = dict[int, dict[int, tuple[int, bytes]]]


class BarrierHolds:
    """After a barrier was handed out, no message that is stamped at or below it comes any more."""

    name = "BarrierHolds"

    def check(self, history: History) -> Iterator[str]:
        """Compare each partition with what was said of it, then those that joined with the barriers
        of before, then what was sent after something had become visible.
        """
        log = log_of(history)
        barriers: dict[int, dict[int, int]] = defaultdict(dict)
        for (partition, through), stamp in history.barriers.items():
            barriers[partition][through] = stamp
        for partition, said in barriers.items():
            # Of what was void and went with retention, nobody may have been told.
            start = history.starts.get(partition, 0)
            behind = max(start, max(log[partition], default=-1) + 1)
            if history.is_void(partition, behind, max(said)):
                behind = max(said)
            yield from self._of_one(partition, said, log[partition], behind)
        for partitions, barrier in history.complete.items():
            for partition in sorted(set(log) - set(partitions)):
                early = [at for at, (stamp, _) in log[partition].items() if stamp <= barrier]
                if early:
                    text = f"all up to {barrier} was said to lie in {sorted(partitions)}"
                    yield f"{text}: partition {partition} has {min(early)} below"
        yield from self._visible(history, _stamps(log))
        yield from self._ended(history, log)

    @staticmethod
    def _ended(history: History, log: Log) -> Iterator[str]:
        """Nothing of an ended partition lies above or behind its end, was confirmed there, or was
        refused for it and is there all the same.
        """
        for partition, said in history.ends.items():
            if len(said) > 1:
                yield f"partition {partition} was said to have ended at {sorted(said)}"
            for end, behind in said.items():
                late = [offset for offset, (stamp, _) in log[partition].items() if stamp > end]
                late += [o for o in log[partition] if behind != UNKNOWN and o >= behind]
                if late:
                    yield f"partition {partition} ended at {end}, and has {min(late)}"
                here = [one for one in history.publishes if one.partition == partition]
                for publish in here:  # of those that may be lost, the stamps mean nothing
                    stamps = [c.stamp for c in publish.confirms if not publish.early]
                    if max(stamps, default=0) > end:
                        yield f"{publish.values} was confirmed behind the end of {partition}"
        for publish in history.publishes:
            there = {value for _, value in log[publish.partition].values()} if publish.ended else ()
            if publish.ended and (found := [v for v in publish.values if v in there]):
                yield f"{found} were refused, for {publish.partition} had ended, and are there"

    @staticmethod
    def _of_one(
        partition: int, said: dict[int, int], log: dict[int, tuple[int, bytes]], behind: int
    ) -> Iterator[str]:
        beyond = max(said)
        if log and beyond > behind:
            yield f"partition {partition} was said to go on to {beyond}, and ends at {behind}"
        left, barrier = sorted(said, reverse=True), 0
        for offset in sorted(log):
            while left and left[-1] <= offset:
                barrier = max(barrier, said[left.pop()])
            stamp = log[offset][0]
            if stamp <= barrier:
                text = f"offset {offset} of {partition} is stamped {stamp}"
                yield f"{text}, all up to {barrier} was said to lie before"

    @staticmethod
    def _visible(history: History, stamps: dict[bytes, int]) -> Iterator[str]:
        """Sends and confirms in the order of their times; a send comes first of equals."""
        happened: list[tuple[int, bool, int]] = []
        for publish in history.publishes:
            stamp = _stamp_of(publish, stamps)
            happened += [(publish.sent, False, stamp)] if stamp else []
            if publish.visible:
                happened += [(c.at, True, c.stamp) for c in publish.confirms if c.stamp]
        barrier = 0
        for _, visible, stamp in sorted(happened):
            if visible:
                barrier = max(barrier, stamp)
            elif stamp <= barrier:
                yield f"{barrier} was visible, and what was sent later is stamped {stamp}"


class OneOrder:
    """All readers in total order see the same sequence, from wherever they begin."""

    name = "OneOrder"

    def check(self, history: History) -> Iterator[str]:
        """Compare what each reader gave with all that is there from its start on, sorted."""
        if not history.readings:
            return
        log = log_of(history)
        order = sorted(
            Row(stamp, partition, offset, value)
            for partition, rows in log.items()
            for offset, (stamp, value) in rows.items()
        )
        for reading in history.readings:
            if reading.partition < 0:
                yield from self._compare(reading, order, history.starts)

    @staticmethod
    def _compare(reading: Reading, order: list[Row], starts: Mapping[int, int]) -> Iterator[str]:
        start = reading.start
        expected = (
            row
            for row in order
            if row.stamp > reading.after and row.offset >= start.get(row.partition, 0)
        )
        known = {row[:3] for row in order} if reading.skips else set()
        for number, given in enumerate(reading.rows):
            if given.value == UNREAD and _is_past(given, starts) and given[:3] not in known:
                continue  # nobody saw its value before retention took it
            belongs = next(expected, None)
            while reading.skips and not given.is_like(belongs) and _is_past(belongs, starts):
                belongs = next(expected, None)
            if not given.is_like(belongs):
                yield f"{reading.reader} gave {given} as number {number}, where {belongs} belongs"
                return


class Causal:
    """What a client saw before it sent is ordered before what it sent."""

    name = "Causal"

    def check(self, history: History) -> Iterator[str]:
        """Compare each message's stamp with the highest that its client had seen."""
        if not any(publish.after for publish in history.publishes):
            return
        stamps = _stamps(log_of(history))
        for publish in history.publishes:
            stamp = _stamp_of(publish, stamps)
            if stamp and stamp <= publish.after:
                text = f"{publish.producer} {publish.sequence} in partition {publish.partition}"
                yield f"{text} is stamped {stamp}, and its client had seen {publish.after}"


class AllOrNone:
    """Every part of a scattering is there, at one stamp, or none is; what is acked with it is done
    by no other. What was said to be void never is there.
    """

    name = "AllOrNone"

    def check(self, history: History) -> Iterator[str]:
        """Look every part up; one that may be past retention says nothing by being away."""
        if not history.scatterings:
            return
        log = log_of(history)
        for partition, rows in log.items():
            if void := [o for o in sorted(rows) if history.is_void(partition, o, o + 1)]:
                yield f"{void} of {partition} were said to be void"
        stamps = {p: {value: stamp for stamp, value in rows.values()} for p, rows in log.items()}
        yield from self._parts(history, stamps)

    @staticmethod
    def _parts(history: History, stamps: dict[int, dict[bytes, int]]) -> Iterator[str]:
        done: dict[tuple[int, str, int], Scattering] = {}
        for one in history.scatterings:
            found = [(p, value, stamps.get(p, {}).get(value)) for p, value in one.parts]
            there = {stamp for _, _, stamp in found if stamp is not None}
            away = [
                value for p, value, stamp in found if stamp is None and not history.starts.get(p)
            ]
            if len(there) > 1:
                yield f"{one.parts[0][1]!r} and what belongs to it are stamped {sorted(there)}"
            if away and (there or one.stamp):
                yield f"{away} are away, and what belongs to them is there or was confirmed"
            if there and one.refused:
                yield f"{one.parts[0][1]!r} was refused, and is at {min(there)}"
            for place in _acked(one) if there else ():
                by = done.setdefault(place, one)
                if by is not one:
                    yield f"{place} was done with {by.parts[0][1]!r} and {one.parts[0][1]!r}"
            if one.stamp and there - {one.stamp}:
                yield f"{one.parts[0][1]!r} was confirmed at {one.stamp}, and is at {min(there)}"


def _is_past(row: Row | None, starts: Mapping[int, int]) -> bool:
    return row is not None and row.offset < starts.get(row.partition, 0)


def _acked(one: Scattering) -> list[tuple[int, str, int]]:
    """Return what is acked with a scattering: partition, cluster and offset of each message."""
    ack = one.acks
    if ack is None:
        return []
    return [(ack.partition, ack.cluster, offset) for offset in range(ack.first, ack.behind)]


def log_of(history: History) -> Log:
    """Return what was drained; below a log's start, what anybody saw."""
    log: Log = defaultdict(dict)
    for partition, records in history.drained.items():
        for record in records:
            for offset, value in enumerate(record.values, record.offset):
                log[partition][offset] = record.stamp, value
    for seen in history.seen:
        start, rows = history.starts.get(seen.partition, 0), log[seen.partition]
        if seen.offset < start and seen.stamp:  # devices are told none
            for offset, value in enumerate(seen.values, seen.offset):
                if offset < start:
                    rows.setdefault(offset, (seen.stamp, value))
    return log


def _stamps(log: Log) -> dict[bytes, int]:
    """Return the stamp of each message by its value: no two values are the same."""
    return {value: stamp for rows in log.values() for stamp, value in rows.values()}


def _stamp_of(publish: Publish, stamps: dict[bytes, int]) -> int:
    """Return the stamp of what was published; 0 if it is not there, or a chunk."""
    return stamps.get(publish.values[0], 0) if publish.values else 0
