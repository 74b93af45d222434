"""Seeds of worlds that draw what they are. `make test` plays 200 of sets and 2,000 of packets,
beside all other tests.

WEIR_SET_SEEDS and WEIR_TOC_SEEDS say how many, and WEIR_FIRST_SET_SEED where to begin; else weir's
code does.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rigs.many_seeds import SEEDS, TOC_SEEDS, judged
from weir_lab.sim.checkers.exercised import ALL


@pytest.mark.timeout(2_700)
def test_every_promise_is_kept_in_drawn_worlds(many_seeds: Path) -> None:
    found = judged(many_seeds)
    for told, complaints in found:
        assert not told["violations"], complaints
    seeds, operations, faults = (
        sum(told[what] for told, _ in found) for what in ("seeds", "operations", "faults")
    )
    assert seeds == SEEDS
    # A simulation in which nothing happens keeps every promise too.
    assert operations >= 200 * seeds
    assert faults >= 10 * seeds
    # Nor is a promise broken that no world can break: this stands for sweeps of one kind each.
    worlds = Counter[str]()
    for told, _ in found:
        worlds.update(told["worlds_of"])
    assert not {name: worlds[name] for name in ALL if worlds[name] < seeds // 50}


@pytest.mark.timeout(2_700)
def test_every_invariant_holds_in_drawn_worlds_of_packets(many_seeds: Path) -> None:
    found = judged(many_seeds, "toc")
    for told, complaints in found:
        assert not told["violations"], complaints
    seeds, delivered, failed = (
        sum(told[what] for told, _ in found) for what in ("seeds", "delivered", "send_failed")
    )
    assert seeds == TOC_SEEDS
    # A network that delivers nothing, or loses nothing, breaks no invariant either.
    assert delivered >= 20 * seeds
    assert failed >= seeds
