"""Real processes on loopback: one order of both services for all, and one place of a failure."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rigs import worker
from rigs.accounts import best_effort_in_order, lines, prefixes, reliable_everywhere, wait_for
from rigs.programs import PATIENCE_SECONDS, Programs, programs
from weir_toc import Message, sync

COUNT = 10
#: The processes of a test share two cores: they must not be taken for dead.
INTERVAL_MS = "400"


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_processes_deliver_in_one_order_and_see_a_failure_at_one_place(
    tmp_path: Path, count: int
) -> None:
    names = [f"p{number}" for number in range(count)]
    victim, survivors = names[-1], names[:-1]
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", INTERVAL_MS)
        crew.start("aggregator", "-m", "weir_toc", "aggregator", crew.url)
        for name in names:
            crew.start(name, worker.__file__, crew.url, name, str(COUNT), ",".join(names), victim)
        wait_for(crew, names, "ready")
        crew.kill(victim)
        wait_for(crew, survivors, "done")
        said = {name: lines(crew, name) for name in survivors}
        gone = {victim: lines(crew, victim)}
    ids = next(one[1] for one in said[survivors[0]] if one[0] == "ids")
    reliable_everywhere(said, ids, gone, COUNT)
    prefixes(said, gone)
    best_effort_in_order(said, ids, gone)


def test_two_racks_have_one_order_and_one_goes_on_without_the_others_aggregator(
    tmp_path: Path,
) -> None:
    count = 4
    racks = [[f"p{rack}{number}" for number in range(4)] for rack in range(2)]
    survivors, victims = racks
    names = survivors + victims
    with programs(tmp_path) as crew:
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", INTERVAL_MS, "--racks", "2", "--spines", "1",
                            "--cores", "1")  # fmt: skip
        for switch in ("rack-0", "rack-1", "spine-0", "core-0"):
            crew.start(switch, "-m", "weir_toc", "aggregator", crew.url, "--switch", switch)
        for rack, named in enumerate(racks):
            for name in named:
                crew.start(name, worker.__file__, crew.url, name, str(count), ",".join(names),
                           ",".join(victims), str(rack))  # fmt: skip
        wait_for(crew, names, "ready")
        crew.kill("rack-1")
        wait_for(crew, survivors, "done")
        wait_for(crew, victims, "excluded")
        said = {name: lines(crew, name) for name in survivors}
        gone = {name: lines(crew, name) for name in victims}
        a_rack_comes_back(crew, survivors)
    ids = next(one[1] for one in said[survivors[0]] if one[0] == "ids")
    assert {ids[name] >> 16 for name in survivors} == {0}
    assert {ids[name] >> 16 for name in victims} == {1}
    reliable_everywhere(said, ids, gone, count)
    prefixes(said, gone)
    best_effort_in_order(said, ids, gone)


def a_rack_comes_back(crew: Programs, others: list[str]) -> None:
    """Another aggregator is started for the rack; a process joins there, and the others hear it."""
    crew.start("rack-1", "-m", "weir_toc", "aggregator", crew.url, "--switch", "rack-1")
    with sync.join(crew.url, name="late", rack=1, timeout=PATIENCE_SECONDS) as me:
        me.wait_for(*others)
        stamp = me.send_reliable([(name, b"late 0") for name in (*others, "late")])
        event = next(iter(me.reliable))
        assert event == Message(stamp, me.process, b"late 0")
        until = time.monotonic() + PATIENCE_SECONDS
        while not all(["r", stamp, me.process, "late 0"] in lines(crew, name) for name in others):
            assert time.monotonic() < until, {name: lines(crew, name)[-3:] for name in others}
            time.sleep(0.1)
