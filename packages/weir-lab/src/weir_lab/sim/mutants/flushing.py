"""Rules of what is written, and of what may be said before it is, that can be taken away."""

from __future__ import annotations

from weir_lab.sim.mutants.planting import Patch, bug
from weir_lab.sim.outcome import CRASH

_MERGE = "weir.order.merge"
_WRITER = "weir.broker.replica.writer"


@bug(breaks={"Durable", "OneOffset", CRASH})
def a_flush_counts_before_it_has_returned(patch: Patch) -> None:
    """What waited for a flush is told when that is done, not when it begins."""
    patch.source(
        _WRITER,
        "            self._outbox.effects.append(StartFlush(self.number, flush, rest_ms))\n",
        "            self._outbox.effects.append(StartFlush(self.number, flush, rest_ms))\n"
        "            for token in flush.tokens:\n"
        "                assert isinstance(token, Token)\n"
        "                group = self.groups.get(token.group)\n"
        "                if group is not None and group.node is token.node:\n"
        "                    group.persisted(token.ready)\n",
    )
    patch.source(
        _WRITER,
        "        for token in flush.tokens:\n            assert isinstance",
        "        for token in ():\n            assert isinstance",
    )


@bug(breaks={"Durable"})
def what_a_start_stages_is_named_durable(patch: Patch) -> None:
    """The durable-position file names what recovery made durable: a node that is killed before its
    first flush starts again.
    """
    patch.source(
        "weir.host.log_start",
        "log].reached(start.durable)",
        "log].reached(start.opened.log.tail)",
    )


@bug(breaks={"BarrierHolds", "OneOrder"})
def a_promise_counts_before_its_bound_is_written(patch: Patch) -> None:
    """Nobody promises beyond the bound that the disk has."""
    patch.source(
        _WRITER,
        "            self.log.extend_bound(bound)\n",
        "            self.log.extend_bound(bound)\n            self.bound.written(bound)\n",
    )


@bug(breaks={"Live"})
def a_flush_that_failed_to_take_all_is_the_last(patch: Patch) -> None:
    """What could not be cut while leadership is handed over is cut later."""
    patch.source(
        _WRITER,
        "                    self.dirty[partition.group.id] = partition\n        if self",
        "                    pass\n        if self",
    )


@bug(breaks={"OneOrder"})
def the_order_of_one_stamp_is_that_of_arrival(patch: Patch) -> None:
    """Batches of one stamp come in the order of their partitions."""
    patch.source(
        _MERGE,
        "        while heap and heap[0][0] <= barrier:\n"
        "            merged = Merged(*heapq.heappop(heap))\n",
        "        heap.sort(key=lambda one: one[0])\n"
        "        while heap and heap[0][0] <= barrier:\n"
        "            merged = Merged(*heap.pop(0))\n",
    )
