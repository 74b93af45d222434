"""The rule of barriers explored at random, and each of its parts taken away: then it must break.

Real Raft nodes and the real rule, on bad networks and disks, with clocks that jump. A seed is a
group of three or five, or one whose members change (counterexamples 1 to 3).

WEIR_BARRIER_SEEDS sets how many seeds are run.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from weir import raft
from weir.order.barrier import Barrier
from weir.raft.ground import Pledge
from weir.testing.ordered_actor import BarrierChecks, OrderedActor
from weir.testing.ordered_rehearsal import OrderedRehearsal
from weir.testing.rehearsal import STEPS

SEEDS = int(os.environ.get("WEIR_BARRIER_SEEDS", "25"))
LENGTH = 3_000
WEIGHTS = {
    **STEPS,
    **{"tick": 40, "sync": 90, "deliver": 260, "propose": 16, "ask": 16, "hand_out": 24},
    **{"crash": 2, "start": 6, "cut": 1, "heal": 6, "campaign": 2, "jump": 2, "compact": 2},
    **{"change": 3, "read": 0},
}
#: Three sorts of days: of all troubles, of crashes on slow disks, of members that come and go.
DAYS = (
    WEIGHTS,
    {
        **WEIGHTS,
        "crash": 5,
        "start": 12,
        "sync": 40,
        "campaign": 6,
        "jump": 4,
        "propose": 4,
        "drop": 8,
    },
    {**WEIGHTS, "change": 8, "swap": 6, "cut": 3, "campaign": 5, "jump": 5, "propose": 3},
)


class Explorer(OrderedRehearsal):
    """A group of a shape drawn by the seed, on a day drawn by it."""

    def __init__(self, seed: int, actor: type[OrderedActor] = OrderedActor) -> None:
        voters, spare, kept = (
            ((1, 2, 3), (), 0), ((1, 2, 3, 4, 5), (), 0), ((1, 2, 3), (4, 5), 0),
            ((1, 2, 3), (4, 5), 15),
        )[seed % 4]  # fmt: skip
        self.actor = actor
        super().__init__(seed, voters, spare, kept, linked=True, election_ms=200)
        for id in self.actors:
            self.of(id).wall_ms += self.dice.randint(-3_000, 3_000)

    def explore(self) -> BarrierChecks:
        """A bad day, and then a good one on which all must come to rest."""
        self.run(LENGTH, DAYS[self.seed // 4 % len(DAYS)])
        self.settle()
        return self.barriers


def test_no_barrier_is_ever_broken() -> None:
    promised = 0
    for seed in range(SEEDS):
        promised += Explorer(seed).explore().promised
    assert promised > 5 * SEEDS, "hardly a barrier lay above what was committed anyhow"


# What the rule forbids, each as the one part of it that is missing


class Forgetful(OrderedActor):
    """Who starts again stands by nothing it promised (counterexample 2)."""

    def start(self) -> None:
        bound, self._durable_bound = self._durable_bound, 0
        super().start()
        self._durable_bound = bound
        self.multi.fence_bound = bound


class Heedless(OrderedActor):
    """It goes on to stamp below what it asked others to promise."""

    def ask(self) -> None:
        promised = self.highest.promised
        super().ask()
        self.highest.promised = promised


class Blind(OrderedActor):
    """It stamps above its log, and not above what its voters had promised."""

    def leads(self, leadership: raft.Leadership) -> None:
        super().leads(raft.Leadership(leadership.term, 0))


class Short(OrderedActor):
    """It stamps above what its voters had promised, and not above its log."""

    def leads(self, leadership: raft.Leadership) -> None:
        tail, self.tail = self.tail, {}
        last, self.last_stamp = self.last_stamp, 0
        super().leads(leadership)
        self.tail, self.last_stamp = tail, last


class Eager(OrderedActor):
    """It hands out what is promised above what it stamped and has not committed."""

    def hand_out(self) -> Barrier:
        tail, self.tail = self.tail, {}
        barrier = super().hand_out()
        self.tail = tail
        return barrier


def _unsaid(patch: pytest.MonkeyPatch) -> None:
    """Votes say nothing of promises that were given since the start."""
    patch.setattr(Pledge, "raise_to", lambda self, fence: None)


Patch = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, type[OrderedActor] | Patch] = {
    **{actor.__name__: actor for actor in (Forgetful, Heedless, Blind, Short, Eager)},
    "Unsaid": _unsaid,
}


@pytest.mark.parametrize("name", FAULTS)
def test_without_a_part_of_the_rule_a_barrier_breaks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    actor = fault if isinstance(fault, type) else OrderedActor
    if not isinstance(fault, type):
        fault(monkeypatch)
    with pytest.raises(AssertionError, match="was handed out"):
        _explore_all(200, actor)


def _explore_all(seeds: int, actor: type[OrderedActor]) -> None:
    for seed in range(seeds):
        Explorer(seed, actor).explore()
