"""What handlers did to their database, and what is promised of it: each effect happens once."""

from __future__ import annotations

from collections.abc import Iterator

from weir_lab.sim.history import History
from weir_lab.sim.observations import Ledger, Place


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
                yield f"{_name(place)} has its effect {count} times"
            if place in ledger.hopeless:
                yield f"{_name(place)} has an effect, and handlers rejected it each time"
        for place, delivered in sorted(ledger.dead.items()):
            if not ledger.attempts:
                yield f"{_name(place)} is a dead letter, and there is no topic for such"
            elif not delivered and not ledger.failed[place]:
                yield f"{_name(place)} is a dead letter, and no handler of it failed"
        if ledger.drained:
            yield from _left_out(history, ledger)


def _left_out(history: History, ledger: Ledger) -> Iterator[str]:
    for partition, records in sorted(history.drained.items()):
        for record in records:
            for offset in range(record.offset, record.offset + len(record.values)):
                place = partition, offset
                if not ledger.effects[place] and place not in ledger.dead:
                    yield f"{_name(place)} has no effect, and the cluster has done it"


def _name(place: Place) -> str:
    return f"{place[1]} of partition {place[0]}"
