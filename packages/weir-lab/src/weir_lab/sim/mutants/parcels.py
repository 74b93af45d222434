"""Rules of large values and delayed messages, of the client that ships, that can be taken away."""

from __future__ import annotations

from dataclasses import replace

from weir.broker.consumers.modes.picker import PickerContext
from weir.model.stamp import milliseconds_of
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.shape import EVEN_PARCELS, NODE_PARCELS

#: One node, and nothing in total order, whose stamps may run ahead of the time.
SHAPE = replace(NODE_PARCELS, parcels=(60,), ordered=(0,), takers=(0,), scatterers=(0,), rots=(0,))


@mutant(seed=9, breaks={"Delivered"}, shape=SHAPE)
def a_large_value_is_closed_without_its_last_piece(patch: Patch) -> None:
    """A large value is closed by references to all of its chunks."""
    patch.source(
        "weir.client.producer.chunker",
        "            extend(runs, (await hands.confirmed(waiting.popleft())).index)\n"
        "        references",
        "            extend(runs, (await hands.confirmed(waiting.popleft())).index)\n"
        "        runs = runs[:-1] if len(runs) > 1 else runs\n"
        "        references",
    )


@mutant(seed=9, breaks={"Delivered"}, shape=SHAPE)
def delays_count_from_this_machines_clock(patch: Patch) -> None:
    """A delay counts from what the clock of the broker says."""
    patch.source(
        "weir.client.connection.broker_clock",
        "self._asked = said, steady, wall",
        "self._asked = wall, steady, wall",
    )


@mutant(seed=1, breaks={"Delivered"}, shape=SHAPE)
def delays_follow_a_wall_clock_that_jumps(patch: Patch) -> None:
    """What the clock of the broker says now is counted by a clock that is never set back."""
    patch.source(
        "weir.client.connection.broker_clock", "passed = max(steadily, by_wall)", "passed = by_wall"
    )


@mutant(seed=62, breaks={"Delivered"}, shape=EVEN_PARCELS)
def delays_end_by_stamps(patch: Patch) -> None:
    """What is due is so by the leader's wall clock, which stamps may be ahead of."""
    honest = PickerContext.due_ms

    def due_ms(self: PickerContext) -> int:
        honest(self)
        return milliseconds_of(self.clock.last)

    patch.setattr(PickerContext, "due_ms", due_ms)


@mutant(seed=11, breaks={"Delivered"}, shape=SHAPE)
def the_next_message_says_that_the_one_before_is_done(patch: Patch) -> None:
    """A message is done once that is said, and never because the next one was asked for."""
    patch.source(
        "weir.client.consumer.consumer",
        "        task, settlement = asyncio.current_task(), self.settlement\n",
        "        task, settlement = asyncio.current_task(), self.settlement\n"
        "        for one in [*self._in_hand._holders]:\n"
        "            settlement.done(one)\n",
    )


@mutant(seed=3, breaks={"Delivered"}, shape=SHAPE)
def a_block_that_raises_says_that_its_message_is_done(patch: Patch) -> None:
    """What a block raises gives its message back."""
    patch.source(
        "weir.client.consumer.settlement",
        "            self.give_back(leased, verdict.delay, untried=False)\n",
        "            self.done(leased)\n",
    )


@mutant(seed=22, breaks={"Delivered"}, shape=SHAPE)
def what_is_not_settled_is_acked_when_its_consumer_closes(patch: Patch) -> None:
    """What has no outcome when its consumer is left goes to others."""
    patch.source(
        "weir.client.consumer.leases",
        "        try:\n            await self._withdraw()\n",
        "        try:\n            for one in [*self.held.values()]:\n"
        "                self.settle(one, one.grant.offset, one.handed)\n"
        "            await self._withdraw()\n",
    )
