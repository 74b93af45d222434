"""What is promised of what applications did: effects, errands, parcels, and what was printed."""

from __future__ import annotations

from collections.abc import Iterator

from weir.testing.simulator.world import MS
from weir_lab.sim.history import History
from weir_lab.sim.observations import Ledger, Place

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
        calm: dict[Place, str] = {}
        for run in printed.runs:
            for place in run.places:
                if place in calm:
                    yield f"{calm[place]} ended well with {place}, and {run.name} printed it again"
            if len(run.places) > (run.count or len(run.places)):
                yield f"{run.name} was to print {run.count}, and printed {len(run.places)}"
            if run.ended and len(run.places) != run.count:
                yield f"{run.name} ended well with {len(run.places)} of {run.count}"
            if run.ended and run.calm:
                calm.update(dict.fromkeys(run.places, run.name))
        there = {place for run in printed.runs for place in run.places}
        for partition, records in history.drained.items() if printed.drained else ():
            for record in records:
                for offset in range(record.offset, record.offset + len(record.values)):
                    if (partition, offset) not in there:
                        yield f"nobody printed {offset} of partition {partition}"
