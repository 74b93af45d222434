"""The lock service of the documentation: four processes, of which one is killed as it holds."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

from rigs.programs import PATIENCE_SECONDS, programs

EXAMPLE = Path(__file__).parents[3] / "examples" / "lock_service.py"
NAMES = ["a", "b", "c", "d"]


def test_a_killed_holder_frees_the_lock_at_one_place(tmp_path: Path) -> None:
    with programs(tmp_path) as crew:
        # Long intervals: processes of a test share two cores, and must not be taken for dead.
        crew.controller(1, "--interval-ms", "300")
        crew.controller(2, "--interval-ms", "300")
        crew.start("aggregator", "-m", "weir_toc", "aggregator", crew.url)
        for name in NAMES:
            hold = "3600" if name == "d" else "0"
            crew.start(name, str(EXAMPLE), crew.url, name, ",".join(NAMES), "2", hold)
        until = time.monotonic() + 2 * PATIENCE_SECONDS

        def said(name: str) -> list[str]:
            return (tmp_path / f"{name}.out").read_text().splitlines()

        while not any(one.startswith("mine") for one in said("d")):
            assert time.monotonic() < until, [crew.errors(name) for name in NAMES]
            time.sleep(0.1)
        crew.kill("d")
        for name in NAMES[:3]:
            assert crew.running[name].wait(until - time.monotonic()) == 0, crew.errors(name)
            crew.running.pop(name).stdin.close()  # type: ignore[union-attr]
    held = [[one for one in said(name) if one.startswith("held by")] for name in NAMES[:3]]
    # Those that are done first have not seen the end; until then all have seen the same.
    longest = max(held, key=len)
    assert all(one == longest[: len(one)] for one in held)
    fences = [int(one.split()[3]) for one in longest]
    assert all(one < other for one, other in pairwise(fences))
    for name in NAMES[:3]:
        mine = [int(one.split()[1]) for one in said(name) if one.startswith("mine")]
        assert len(mine) == 2
        assert {*mine} <= {*fences}
    assert len(fences) == 2 * 3 + 1  # that of the killed one is there, once
