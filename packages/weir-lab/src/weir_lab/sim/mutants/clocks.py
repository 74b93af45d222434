"""Rules about wall clocks that can be taken away."""

from __future__ import annotations

from dataclasses import replace

from weir.broker.replica.peers.node_state import Clocks
from weir.testing.simulator.world import SECOND
from weir_lab.sim.mutants.planting import Patch, mutant
from weir_lab.sim.shape import UNORDERED

#: One clock at a time is wrong, for so long that all hear of it; nobody dies.
ASTRAY = replace(
    UNORDERED, kinds=("astray",), fault_every=(3 * SECOND, 6 * SECOND),
    hubs=0, receivers=0, authors=0,
)  # fmt: skip


@mutant(seed=14, breaks={"Timely"}, shape=ASTRAY)
def a_wrong_clock_is_gone_by(patch: Patch) -> None:
    """A node whose clock is far from the others' uses the median and stops leading (ADR 0019)."""
    patch.setattr(Clocks, "wall_ms", lambda self: self.own_ms())
    patch.setattr(Clocks, "is_astray", lambda self, group: False)
