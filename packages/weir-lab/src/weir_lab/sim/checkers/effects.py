"""What handlers did to their database, and what is promised of it: each effect happens once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir_lab.sim.history import History

#: A message: its partition and offset.
Place = tuple[int, int]


@dataclass(slots=True)
class Ledger:
    """What the database of handlers holds, and what else is known of their messages."""

    #: By message, how often its effect is in the database.
    effects: Counter[Place] = field(default_factory=Counter)
    #: By message, how often a handler of it began.
    began: Counter[Place] = field(default_factory=Counter)
    #: How often a handler of it raised, or was stopped.
    failed: Counter[Place] = field(default_factory=Counter)
    #: Messages that handlers reject each time.
    hopeless: set[Place] = field(default_factory=set)
    #: What lies in the dead-letter topic, and whether for this reason: it was delivered too often,
    #: and no handler came to an end. Who is granted messages and is lost before it began with any
    #: has tried one of them as far as brokers can know.
    dead: dict[Place, bool] = field(default_factory=dict)
    #: Of them, those that are not rejected were tried so often; 0: for ever.
    attempts: int = 0
    #: Whether their cluster had nothing left to do in the end.
    drained: bool = False
    #: How often a transaction was lost, and how often an answer to a commit was.
    lost: int = 0
    unanswered: int = 0


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
