"""The seed that is kept with a mutant is written where it stands in the source."""

from __future__ import annotations

import inspect
from pathlib import Path

from weir_lab.sim.mutants.redraw import with_seed
from weir_lab.sim.mutants.registry import KEPT

TEXT = '''
@mutant(seed=3, breaks={"Live"})
def early(patch: Patch) -> None:
    """A rule."""


@mutant(
    seed=4,
    breaks={"Durable", "Live"},
)
def late(patch: Patch) -> None:
    """Another rule."""
'''


def test_only_the_one_seed_is_another() -> None:
    assert with_seed(TEXT, "early", 12) == TEXT.replace("seed=3", "seed=12")
    assert with_seed(TEXT, "late", 5) == TEXT.replace("seed=4", "seed=5")
    assert with_seed(TEXT, "nobody", 5) == TEXT


def test_every_mutant_has_a_seed_that_can_be_written() -> None:
    for mutant in KEPT:
        source = inspect.getsourcefile(mutant.plant)
        assert source is not None
        text, name = Path(source).read_text(), mutant.plant.__name__
        assert with_seed(text, name, mutant.seed) == text
        assert with_seed(text, name, 987_654).count("seed=987654") == 1, name
