"""What is promised of what applications did: effects, errands, parcels, and what was printed."""

from __future__ import annotations

from collections.abc import Iterator

from weir.testing.simulator.world import MS
from weir_lab.sim.history import History
from weir_lab.sim.observations import Ledger, Place, Printed, Sunk, SunkRow, Taken

#: Clocks, and what is due, count in milliseconds.
_ROUNDING = 2 * MS


class EffectOnce:
    """Each message has its effect in the database of its handlers exactly once, or is a dead letter
    that they could not handle, whatever befell handlers, the database and nodes.
    """

    name = "EffectOnce"

    def check(self, history: History) -> Iterator[str]:
        """Compare what the database holds with the log."""
        ledger = history.ledger
        if ledger is None:
            return
        for place, count in sorted(ledger.effects.items()):
            if count > 1:
                yield f"{_name_of(place)} has its effect {count} times"
            if place in ledger.hopeless:
                yield f"{_name_of(place)} has an effect, and handlers rejected it each time"
        for place, delivered in sorted(ledger.dead.items()):
            if not ledger.attempts:
                yield f"{_name_of(place)} is a dead letter, and there is no topic for such"
            elif not delivered and not ledger.failed[place]:
                yield f"{_name_of(place)} is a dead letter, and no handler of it failed"
        if ledger.drained:
            yield from _left_out(history, ledger)


def _left_out(history: History, ledger: Ledger) -> Iterator[str]:
    for partition, records in sorted(history.drained.items()):
        for record in records:
            for offset in range(record.offset, record.offset + len(record.values)):
                place = partition, offset
                if not ledger.effects[place] and place not in ledger.dead:
                    yield f"{_name_of(place)} has no effect, and the cluster has done it"


def _name_of(place: Place) -> str:
    return f"{place[1]} of partition {place[0]}"


class WorkDone:
    """Each errand is done by a process of `weir work`, those that became dead letters once they
    were redriven; and there are never more processes than the most.
    """

    name = "WorkDone"

    def check(self, history: History) -> Iterator[str]:
        """Compare what was done with what was confirmed."""
        errands = history.errands
        if errands is None:
            return
        for value in sorted(errands.done):
            if value not in errands.sent:
                yield f"{value!r} was done, and sent by nobody"
        for value in sorted(errands.confirmed) if errands.drained else ():
            if not errands.done[value]:
                yield f"{value!r} was confirmed, and is not done"


class SchemaNamed:
    """A number stands for one version of a schema for good, and each value keeps the number that
    its producer named. That a confirmed version may be named at once, its publishers watch.
    """

    name = "SchemaNamed"

    def check(self, history: History) -> Iterator[str]:
        """Compare what was read with what was published."""
        typed = history.typed
        if typed is None or not typed.is_read:
            return
        for value in sorted(typed.confirmed - set(typed.read)):
            yield f"{value!r} was confirmed, and is not there"
        for value, number in sorted(typed.read.items()):
            if number != int(value.partition(b"|")[0]):
                yield f"{value!r} has version {number}"


class SunkOnce:
    """Each batch that a query has published is in its topic once, whole, at one stamp, in the order
    of its tasks; nothing else is; and all who read it in total order find the same.
    """

    name = "SunkOnce"

    def check(self, history: History) -> Iterator[str]:
        """Compare what was read with what was published."""
        sunk = history.sunk
        if sunk is None or not sunk.readings:
            return
        longest = max((rows for _, rows in sunk.readings), key=len)
        for published, rows in sunk.readings:
            if rows != longest[: len(rows)]:
                pairs = zip(longest, rows, strict=False)
                at = next(n for n, (a, b) in enumerate(pairs) if a != b)
                yield f"readers differ at message {at}: {longest[at]} and {rows[at]}"
            there = {_batch_of(row) for row in rows}
            for name in sorted(published - there):
                yield f"batch {name} was published, and is not there"
        if [row[:3] for row in longest] != sorted(row[:3] for row in longest):
            yield "what was read is not in the order of stamps, partitions and offsets"
        found: dict[str, list[SunkRow]] = {}
        for row in longest:
            found.setdefault(_batch_of(row), []).append(row)
        for name, rows in sorted(found.items()):
            yield from self._check_batch(sunk, name, rows)

    def _check_batch(self, sunk: Sunk, name: str, rows: list[SunkRow]) -> Iterator[str]:
        stamps = {stamp for stamp, *_ in rows}
        if len(stamps) > 1:
            yield f"batch {name} has {len(stamps)} stamps"
        if not sunk.stamps.get(name, stamps) <= stamps:
            yield f"batch {name} was confirmed at another stamp than it has"
        wanted = [value for task in sunk.rows[name] for value in task]
        for partition in sorted({row[1] for row in rows}):
            there = [value for _, at, _, value in rows if at == partition]
            expected = [value for value in wanted if value in set(there)]
            if there != expected:
                yield f"batch {name} is not in order in partition {partition}, or there twice"
        if sorted(value for *_, value in rows) != sorted(wanted):
            yield f"batch {name} has {len(rows)} messages of {len(wanted)}"


def _batch_of(row: SunkRow) -> str:
    """Return the name of the batch that a message is of."""
    return row[3].decode().rsplit("/", 2)[0]


class Delivered:
    """What was confirmed is delivered: whole, from one place, and not before its time."""

    name = "Delivered"

    def check(self, history: History) -> Iterator[str]:
        """Look at what became of each parcel."""
        if history.parcels is None:
            return
        for parcel in history.parcels.all.values():
            if parcel.wrong:
                yield f"{parcel.name} is not the value it was: {parcel.wrong}"
            known = parcel.places | ({parcel.place} if parcel.place is not None else set())
            if len(known) > 1:
                yield f"{parcel.name} is there more than once: {sorted(known)}"
            early = parcel.due - parcel.arrived
            if parcel.arrived >= 0 and early > _ROUNDING and not history.skewed:
                yield f"{parcel.name} was delivered {early // MS} ms before it was due"
            late = history.parcels.drained and parcel.arrived < 0
            if late and parcel.place is not None and not history.values_expire:
                yield f"{parcel.name} was confirmed at {parcel.place}, and never delivered"
            done = history.parcels.drained and parcel.arrived >= 0
            if done and not parcel.told and not history.values_expire:
                yield f"{parcel.name} is done, and nobody who got it said so"


def _printed_again(printed: Printed) -> Iterator[str]:
    # One that began later may have printed a message, and gone before it acked it.
    ended = [run for run in printed.runs if run.calm and run.ended_at >= 0]
    first: dict[Place, Taken] = {}
    for run in sorted(ended, key=lambda run: run.ended_at):
        for place in run.places:
            first.setdefault(place, run)
    for run in printed.runs:
        for place, at in zip(run.places, run.times, strict=True):
            one = first.get(place)
            if one is not None and at > one.ended_at:
                yield f"{one.name} ended well with {place}, and {run.name} printed it again"


class HandedOver:
    """What `weir sub` acked was printed: in the end each message was. One that ends after so many
    printed just those, and once all is calm, nobody prints them again.
    """

    name = "HandedOver"

    def check(self, history: History) -> Iterator[str]:
        """Compare what was printed with the log."""
        printed = history.printed
        if printed is None:
            return
        for run in printed.runs:
            if len(run.places) > (run.count or len(run.places)):
                yield f"{run.name} was to print {run.count}, and printed {len(run.places)}"
            if run.ended_at >= 0 and len(run.places) != run.count:
                yield f"{run.name} ended well with {len(run.places)} of {run.count}"
        yield from _printed_again(printed)
        there = {place for run in printed.runs for place in run.places}
        for partition, records in history.drained.items() if printed.drained else ():
            for record in records:
                for offset in range(record.offset, record.offset + len(record.values)):
                    if (partition, offset) not in there:
                        yield f"nobody printed {offset} of partition {partition}"
