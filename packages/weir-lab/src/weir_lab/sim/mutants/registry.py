"""All mutants, and the hunt for them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from weir_lab.sim.mutants import (
    clusters,
    consuming,
    exactly_once,
    hosts,
    leases,
    order,
    publishing,
    reads,
    replication,
    scatterings,
    storage,
)
from weir_lab.sim.mutants.planting import Mutant, all_in
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.scenarios.filters import play_filters
from weir_lab.sim.scenarios.users import PLAYS

_WRITTEN: tuple[Mutant, ...] = tuple(
    mutant
    for module in (
        storage,
        exactly_once,
        clusters,
        leases,
        hosts,
        replication,
        order,
        scatterings,
        consuming,
        publishing,
        reads,
    )
    for mutant in all_in(vars(module))
)

#: Of access: tests of their own play a few worlds each, for a world of users takes seconds.
ACCESS = tuple(mutant for mutant in _WRITTEN if mutant.play in PLAYS)
#: Of readers and clusters with tags, as of access.
FILTERS = tuple(mutant for mutant in _WRITTEN if mutant.play is play_filters)
#: All others.
MUTANTS = tuple(mutant for mutant in _WRITTEN if mutant.play not in (*PLAYS, play_filters))

#: Those with which a seed is kept.
KEPT: tuple[Mutant, ...] = tuple(mutant for mutant in MUTANTS if mutant.is_kept)

#: What a mutant raises that was written for other code: nobody has caught it by that.
_OUT_OF_DATE = ("AttributeError", "TypeError", "NameError", "UnboundLocalError")
#: How many other seeds are played, as a rule, where the one that is kept has lost its mutant.
MORE = 120


@dataclass(frozen=True, slots=True)
class Hunt:
    """What became of a mutant: the seed that caught it, and what was said; or none did."""

    name: str
    rule: str
    #: -1 if no seed did.
    seed: int
    #: Whether that is the seed that is kept with it.
    kept: bool
    promise: str
    text: str
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether a checker complained."""
        return self.seed >= 0


def complaints(mutant: Mutant, outcome: Outcome) -> list[tuple[str, str]]:
    """Return what the checkers said by which a mutant is caught, as (promise, sentence)."""
    return [
        (promise, text)
        for promise, text in outcome.violations
        if promise in mutant.breaks and not text.startswith(_OUT_OF_DATE)
    ]


def hunt(mutant: Mutant, more: int = MORE) -> Hunt:
    """Play the seed that is kept with a mutant, and if that is in vain others from 0 on, `more`.

    A seed is another run with every change of the code: one that caught a mutant may not do so any
    more, and is to be replaced by the one that is found instead.
    """
    started = time.perf_counter()
    seeds = [mutant.seed, *(seed for seed in range(more) if seed != mutant.seed)]
    found = Hunt(mutant.name, mutant.rule, -1, False, "", "", 0.0)
    with mutant.planted():
        for seed in seeds:
            if said := complaints(mutant, mutant.play(seed, mutant.shape)):
                promise, text = said[0]
                kept = seed == mutant.seed
                found = replace(found, seed=seed, kept=kept, promise=promise, text=text)
                break
    return replace(found, seconds=time.perf_counter() - started)
