"""A relay whose log has more than the lineage of a promoted set: what was cut off is counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from weir.relay.lower import Me
from weir.relay.messages import Answer, LineageEnded, OffsetOutOfRange, Pull
from weir.relay.ports import AnswerCame, RefusalCame, SendToUpper, UpperNode
from weir.relay.rows import Row, RowKind
from weir.relay_node.partitions import Outcome, RelayPartitions
from weir.relay_node.store import RelayStore

CORE, GROUP = UpperNode(0, 1, True), 3 << 16


class Relay:
    """One partition, of which [50, 60) has come in the first lineage."""

    def __init__(self) -> None:
        store = SimpleNamespace(states={}, append=lambda *_: 0)
        self.partitions = RelayPartitions(cast(RelayStore, store), Me(7, 0, 5, 0), CORE, 0)
        self.pull = self._pulled(self.partitions.open(GROUP, None, (), 0))
        self.refuse(OffsetOutOfRange(GROUP, self.pull.number, 50))
        self.answer(10)
        self.held = self.partitions.held[GROUP]

    def answer(self, count: int) -> None:
        pull = self.pull
        rows, end = (Row(RowKind.SKIPPED, count),), pull.offset + count
        told = Answer(GROUP, pull.number, pull.lineage, pull.offset, end, rows, 0, end)
        self._take(self.partitions.handle(GROUP, AnswerCame(CORE, told, memoryview(b"")), 0))

    def refuse(self, refusal: OffsetOutOfRange | LineageEnded) -> None:
        self._take(self.partitions.handle(GROUP, RefusalCame(CORE, refusal), 0))

    def fork(self, lineage: int, fork: int, *forks: tuple[int, int]) -> None:
        self.refuse(LineageEnded(GROUP, self.pull.number, lineage, fork, forks))

    def _take(self, outcome: Outcome) -> None:
        self.pull = self._pulled(outcome.sends)

    def _pulled(self, sends: list[SendToUpper]) -> Pull:
        return next(one.message for one in sends if isinstance(one.message, Pull))


def test_what_a_later_lineage_does_not_have_is_counted() -> None:
    relay = Relay()
    assert (relay.held.state.end, relay.held.cut) == (60, 0)
    relay.fork(1, 57, (1, 57))
    # The log is cut where an entry begins; from there to the fork all comes again.
    assert (relay.pull.lineage, relay.pull.offset, relay.held.cut) == (1, 50, 3)
    relay.answer(20)
    relay.fork(3, 60, (1, 57), (2, 60), (3, 65))
    assert (relay.held.state.lineage, relay.held.cut) == (3, 13)


def test_a_lineage_that_begins_at_the_end_or_behind_it_takes_nothing_away() -> None:
    relay = Relay()
    relay.fork(1, 60, (1, 60))
    relay.fork(2, 70, (1, 60), (2, 70))
    assert (relay.held.state.lineage, relay.held.state.end, relay.held.cut) == (2, 60, 0)
