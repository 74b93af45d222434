"""What the programs of a run share: the world, the nodes, the history, and their habits."""

from __future__ import annotations

from dataclasses import dataclass

from weir.model.limits import MAX_AHEAD_MS
from weir.model.topic import Order
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.world import World
from weir_lab.sim.history import History


@dataclass(frozen=True, slots=True)
class Scene:
    """The surroundings of every program."""

    world: World
    brokers: BrokerSet
    history: History
    #: Of the topic that most programs share; a few make others for themselves alone.
    partitions: int
    #: How many times longer than in a hurry pauses between two pieces of work are, and rests.
    pace: tuple[int, int] = (1, 1)
    #: How long a program waits for an answer before it hangs up, in virtual µs; 0: for ever.
    patience: int = 0
    #: Where programs run.
    sites: tuple[int, ...] = (-1,)
    #: Of the topic: "partition", or "total" where consumers of the client as it ships take turns.
    order: Order = "partition"
    #: Whether messages may be delayed: where a cluster keeps the order of all partitions, none may.
    delays: bool = True

    @property
    def ahead_ms(self) -> int:
        """How far stamps may be ahead of the time, and a lease that a new leader inherits may last
        too long.
        """
        wrong = any(host.hardware.time.pushed for host in self.brokers.all)
        return MAX_AHEAD_MS if wrong or self.history.readings else 0

    def a_site(self) -> int:
        """Draw a place for a program."""
        return self.sites[0] if len(self.sites) == 1 else self.world.dice.choice(self.sites)
