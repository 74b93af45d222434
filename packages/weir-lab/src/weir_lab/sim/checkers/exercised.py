"""Which promises a run put to the test: a promise about something that never happened says nothing.

Each promise is known by its checker's name, and by what must lie in the history for it to be able
to break.
"""

from __future__ import annotations

from collections.abc import Callable

from weir.model.columns import generation_of
from weir.model.topic import Mode
from weir_lab.sim.history import History

_TESTED: dict[str, Callable[[History], object]] = {
    "Durable": lambda history: history.publishes,
    "OneOffset": lambda history: history.publishes,
    "RisingStamps": lambda history: len(history.publishes) > 1,
    "RealTime": lambda history: history.looks or len(history.publishes) > 1,
    "Fenced": lambda history: history.fences or _has_epochs(history),
    "Retained": lambda history: any(history.starts.values()),
    "AckedOnce": lambda history: history.acks,
    "Leased": lambda history: len(history.grants) > 1,
    "HeldBack": lambda history: any(one.delay_ms for one in history.returns),
    "KeyOrder": lambda history: Mode.KEYED in history.modes.values(),
    "OrderedOnce": lambda history: Mode.ORDERED in history.modes.values(),
    "NotBeforeDue": lambda history: history.dues,
    "Honest": lambda history: history.drained,
    "Live": lambda history: history.operations,
    "Timely": lambda history: any(
        confirm.stamp and confirm.at < history.one_wrong_until
        for publish in (history.publishes if history.one_wrong_until else ())
        for confirm in publish.confirms
    ),
    "BarrierHolds": lambda history: history.barriers,
    "OneOrder": lambda history: any(one.partition < 0 for one in history.readings),
    "ReadWhole": lambda history: any(
        one.partition >= 0 or one.cut >= 0 for one in history.readings
    ),
    "Causal": lambda history: any(publish.after for publish in history.publishes),
    "AllOrNone": lambda history: history.scatterings,
    "OneCursor": lambda history: history.moves or history.handled,
    "EffectOnce": lambda history: history.ledger and history.ledger.began,
    "Delivered": lambda history: history.parcels and history.parcels.all,
    "HandedOver": lambda history: history.printed and any(r.places for r in history.printed.runs),
    "WorkDone": lambda history: history.errands and history.errands.done,
    "SchemaNamed": lambda history: history.typed and history.typed.read,
    "SunkOnce": lambda history: history.sunk and any(history.sunk.readings),
    "Streamed": lambda history: any(one.batches for one in history.queries),
    "OneTurn": lambda history: len(history.turns) > 1 or len(_turns_handled(history)) > 1,
}
#: Those that a run of `weir_lab.sim.shape.SET` can break: in none of them is one clock wrong alone,
#: do handlers run, parcels go, commands print, or queries read.
_ELSEWHERE = (
    "Timely",
    "EffectOnce",
    "Delivered",
    "HandedOver",
    "Streamed",
    "WorkDone",
    "SchemaNamed",
    "SunkOnce",
)
#: Those that worlds of the default distribution can break.
ALL = tuple(_TESTED)
OF_SETS = tuple(name for name in _TESTED if name not in _ELSEWHERE)


def _has_epochs(history: History) -> bool:
    """Tell whether some producer wrote in two epochs, or devices of two generations as one hub:
    (kind, number, ..., epoch) of its records.
    """
    epochs: dict[object, set[object]] = {}
    for records in history.drained.values():
        for record in records:
            kind, number, *rest = record.rows[0][0]
            if kind == "producer":
                epochs.setdefault(number, set()).add(rest[-1])
            elif kind == "device":
                for (_, hub, *_, epoch), _ in record.rows:
                    assert isinstance(epoch, int)
                    epochs.setdefault(("device", hub), set()).add(generation_of(epoch))
    return any(len(known) > 1 for known in epochs.values())


def _turns_handled(history: History) -> set[tuple[str, int]]:
    """Return the turns of which consumers of the client as it ships were handed something."""
    return {(one.cluster, one.fence) for one in history.handled}


def promises_tested(history: History) -> frozenset[str]:
    """Return the names of the promises that this run could have broken."""
    return frozenset(name for name, happened in _TESTED.items() if happened(history))
