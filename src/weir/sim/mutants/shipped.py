"""Rules of the client as it ships that can be taken away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weir.broker.clusters.begun import Begun, Run
from weir.client.aside import Aside
from weir.client.barriers import Barriers, Moment
from weir.client.scattering import Scatterings, _Row, _Seat
from weir.client.turns import Turns
from weir.errors import Disconnected, Unavailable
from weir.model.ids import Address
from weir.sim.mutants.planting import Patch, mutant
from weir.sim.shape import NODE, NODE_SHIPPED, SET
from weir.wire import messages as m

#: One node on which clients consume in turns, read in total order, and scatter.
ONE = replace(NODE_SHIPPED, takers=(3,), scatterers=(3,), rots=(0,), retentions=(0,))
#: One, with large values, devices and an operator beside them.
BESIDE = replace(NODE, shipped=(True,))
#: Three, over a network that breaks.
THREE = replace(SET, shipped=(True,), rots=(0,), retentions=(0,), takers=(0,), scatterers=(2,))


@mutant(seed=0, breaks={"OneCursor"}, shape=ONE)
def a_turn_is_kept_after_it_was_lost(patch: Patch) -> None:
    """Who is told that its turn is over hands out nothing more of it, and has not done it."""
    patch.setattr(Turns, "_lost", lambda self, offsets: None)


@mutant(seed=5, breaks={"OneOrder", "ReadWhole"}, shape=ONE)
def barriers_are_asked_for_once(patch: Patch) -> None:
    """A cut through the one order lies at one stamp, which every partition has passed."""

    async def now(self: Barriers) -> Moment:
        before = await self.reached(0)
        stamp = max(barrier.stamp for barrier in before.values())
        ends = {partition: barrier.through for partition, barrier in before.items()}
        return Moment(stamp, ends, ends)

    patch.setattr(Barriers, "now", now)


@mutant(seed=0, breaks={"AckedOnce"}, shape=BESIDE)
def whoever_told_nothing_tried_nothing(patch: Patch) -> None:
    """Of a grant that is lost with nothing told as begun, the first message had an attempt."""

    def of_grants(self: Begun, name: str, fences: Iterable[int]) -> list[Run]:
        lost = [fence for fence in fences if not self._clusters[name].grants[fence].is_counted]
        return [run for fence in lost for run in self._begun(name, self._clusters[name], fence)]

    patch.setattr(Begun, "of_grants", of_grants)


@mutant(seed=0, breaks={"AllOrNone", "Durable"}, shape=THREE)
def a_producer_id_is_used_again_in_doubt(patch: Patch) -> None:
    """Of a producer id it is known what it sent last, or it scatters nothing more."""
    honest, seats = Scatterings._seat, "_in_hand"

    def seat(self: Scatterings) -> _Seat | None:
        found = honest(self)
        vars(self)[seats] = found
        return found

    sends = Scatterings.send

    async def send(
        self: Scatterings, rows: dict[Address, list[_Row]], acks: list[Aside]
    ) -> m.ScatterConfirm:
        try:
            return await sends(self, rows, acks)
        except (Disconnected, Unavailable):
            used = vars(self).get(seats)
            if used is not None:
                self._idle.append(used)
            raise

    patch.setattr(Scatterings, "_seat", seat)
    patch.setattr(Scatterings, "send", send)
