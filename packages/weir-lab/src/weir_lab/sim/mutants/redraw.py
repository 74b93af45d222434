"""The hunt for all mutants, several at a time, and the seeds that are found, kept in the source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

from weir_lab.sim.mutants.planting import Mutant
from weir_lab.sim.mutants.registry import MUTANTS, Hunt, hunt


def hunt_many(mutants: Sequence[Mutant], more: int, jobs: int) -> Iterator[Hunt]:
    """Hunt for each, `jobs` at a time; what became of them comes in their order."""
    if jobs == 1:
        yield from (hunt(mutant, more) for mutant in mutants)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(_hunt_named, [mutant.name for mutant in mutants], repeat(more))


def _hunt_named(name: str, more: int) -> Hunt:
    return hunt(next(mutant for mutant in MUTANTS if mutant.name == name), more)


def keep(found: Hunt) -> bool:
    """Write a seed into the source of its mutant; return whether another one stood there.

    Raises `OSError` where the source cannot be written.
    """
    mutant = next(one for one in MUTANTS if one.name == found.name)
    source = inspect.getsourcefile(mutant.plant)
    assert source is not None  # they are all in files
    path, text = Path(source), Path(source).read_text()
    new = with_seed(text, mutant.plant.__name__, found.seed)
    if new != text:
        path.write_text(new)
    return new != text


def with_seed(text: str, function: str, seed: int) -> str:
    """Return a module's text with another seed in the decorator of a function.

    >>> with_seed("@mutant(seed=3, breaks={'Live'})\\ndef late(patch): ...", "late", 7)
    "@mutant(seed=7, breaks={'Live'})\\ndef late(patch): ..."
    """
    pattern = rf"(@mutant\(\s*seed=)\d+((?:(?!@mutant).)*?\ndef {function}\()"
    return re.sub(pattern, rf"\g<1>{seed}\g<2>", text, flags=re.DOTALL)
