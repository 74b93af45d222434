"""The bank of the documentation: one sum at every stamp, and a killed replica that comes back."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rigs.examples import FOLDER, Rows, Threads, example, rows_of, wait_for_all, wait_until
from rigs.loopback import loopback
from rigs.programs import programs

BANK = example("replicated_bank")


def orders(rows: Rows) -> Rows:
    """What was applied, in its order: stamp, shard, sum and balances."""
    return [row[1:] for row in rows if row[0] in ("transfer", "done", "join")]


def is_sound(said: dict[str, Rows], killed: Rows) -> None:
    """All replicas of a shard are equal, and the sum over both shards never changes."""
    total = 2 * len(BANK.ACCOUNTS["a"]) * BANK.OPENING
    for shard in "ab":
        rows = [orders(said[name]) for name in BANK.NAMES if name[0] == shard]
        whole = max(rows, key=len)
        # That of the replica that came back begins at its place.
        assert all(one == whole[-len(one) :] for one in rows)
        if shard == "a":
            before = orders(killed)
            assert before == whole[: len(before)]
            assert len(rows[0]) < len(whole)
    sums = {
        shard: {int(row[0]): int(row[2]) for row in orders(said[f"{shard}2"])} for shard in "ab"
    }
    assert sums["a"].keys() == sums["b"].keys()
    assert all(one < other for one, other in pairwise(sums["a"]))
    assert all(sums["a"][stamp] + sums["b"][stamp] == total for stamp in sums["a"])
    assert len({*sums["a"].values()}) > 5
    assert all(rows[-1] == ["end"] for rows in said.values())
    assert len([row for row in said["a1"] if row[0] == "rejoined"]) == 1


def test_a_replica_comes_back_and_the_sum_is_the_same_at_every_stamp(tmp_path: Path) -> None:
    with loopback(tmp_path) as network:
        crew = Threads(network.url)
        for name in BANK.NAMES:
            count = 10_000 if name == "a1" else 8
            crew.start(name, lambda me, say, count=count: BANK.run(me, count, False, say))
        wait_until(lambda: len(crew.said["a1"]) > 5, lambda: crew.errors)
        killed = crew.kill("a1")
        crew.start("a1", lambda me, say: BANK.run(me, 8, True, say))
        crew.wait()
    is_sound(crew.said, killed)


@pytest.mark.slow
def test_a_killed_process_comes_back(tmp_path: Path) -> None:
    names, path = BANK.NAMES, str(FOLDER / "replicated_bank.py")
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", "100")
        crew.start("aggregator", "-m", "weir_toc", "aggregator", crew.url)
        for name in names:
            crew.start(name, path, crew.url, name, "1000000" if name == "a1" else "30")
        wait_until(lambda: len(rows_of(crew, "a1")) > 20, lambda: [*map(crew.errors, names)])
        crew.kill("a1")
        killed = rows_of(crew, "a1")
        (crew.folder / "a1.out").unlink()
        crew.start("a1", path, crew.url, "a1", "30", "rejoin")
        wait_for_all(crew, names)
        is_sound({name: rows_of(crew, name) for name in names}, killed)
