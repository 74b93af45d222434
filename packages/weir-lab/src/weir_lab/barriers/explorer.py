"""The rule of barriers explored at random; `weir sim barriers` plays many seeds.

Real Raft nodes, their real votes and the real promises, on bad networks and disks, with clocks that
jump. A seed is a group of three or five, or one whose members change (counterexamples 1 to 3).
"""

from __future__ import annotations

from weir_lab.barriers.actor import BarrierChecks, OrderedActor
from weir_lab.barriers.rehearsal import OrderedRehearsal
from weir_raft.testing.rehearsal import STEPS

#: How much happens in a seed.
LENGTH = 1_500
_WEIGHTS = {
    **STEPS,
    **{"tick": 40, "sync": 90, "deliver": 260, "propose": 16, "ask": 16, "hand_out": 24},
    **{"crash": 2, "start": 6, "cut": 1, "heal": 6, "campaign": 2, "jump": 2, "compact": 2},
    **{"change": 3, "read": 0},
}
#: Three sorts of days: of all troubles, of crashes on slow disks, of members that come and go.
_DAYS = (
    _WEIGHTS,
    {
        **_WEIGHTS,
        "crash": 5,
        "start": 12,
        "sync": 40,
        "campaign": 6,
        "jump": 4,
        "propose": 4,
        "drop": 8,
    },
    {**_WEIGHTS, "change": 8, "swap": 6, "cut": 3, "campaign": 5, "jump": 5, "propose": 3},
)


class Explorer(OrderedRehearsal):
    """A group of a shape drawn by the seed, on a day drawn by it."""

    def __init__(self, seed: int, actor: type[OrderedActor] = OrderedActor) -> None:
        """Make a group of `actor`s whose clocks differ by seconds."""
        voters, spare, kept = (
            ((1, 2, 3), (), 0), ((1, 2, 3, 4, 5), (), 0), ((1, 2, 3), (4, 5), 0),
            ((1, 2, 3), (4, 5), 15),
        )[seed % 4]  # fmt: skip
        self.actor = actor
        super().__init__(seed, voters, spare, kept, linked=True, election_ms=200)
        for id in self.actors:
            self.of(id).wall_ms += self.dice.randint(-3_000, 3_000)

    def explore(self, length: int = LENGTH) -> BarrierChecks:
        """A bad day, and then a good one on which all must come to rest. Raises `AssertionError`
        for a barrier, or a property of Raft, that does not hold.
        """
        self.run(length, _DAYS[self.seed // 4 % len(_DAYS)])
        self.settle()
        return self.barriers
