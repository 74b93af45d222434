"""The lock service of the documentation: four processes, of which one is killed as it holds."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest

import weir_toc
from rigs.examples import FOLDER, Rows, Say, Threads, example, rows_of, wait_for_all, wait_until
from rigs.loopback import loopback
from rigs.programs import programs
from weir_toc import Message, ProcessFailed

NAMES = ["a", "b", "c", "d"]
ROUNDS = 2


def is_sound(said: dict[str, Rows]) -> None:
    """All that went on saw the same holders, by rising fences; the killed one is there once."""
    held = [[row[2:] for row in said[name] if row[:2] == ["held", "by"]] for name in NAMES[:3]]
    # Those that are done first have not seen the end; until then all have seen the same.
    longest = max(held, key=len)
    assert all(one == longest[: len(one)] for one in held)
    fences = [(int(stamp), int(process)) for stamp, process in longest]
    assert all(one < other for one, other in pairwise(fences))
    for name in NAMES[:3]:
        mine = [(int(row[1]), int(row[2])) for row in said[name] if row[0] == "mine"]
        assert len(mine) == ROUNDS
        assert {*mine} <= {*fences}
    assert len(fences) == ROUNDS * 3 + 1


def test_two_holders_of_one_stamp_have_two_fencing_numbers() -> None:
    lock, said = example("lock_service"), list[tuple[object, ...]]()
    replica = lock.Replica([1, 2], lambda *words: said.append(words))
    for event in (Message(5, 1, lock.LOCK), Message(5, 2, lock.LOCK), Message(6, 2, lock.UNLOCK),
                  Message(7, 1, lock.UNLOCK)):  # fmt: skip
        replica.apply(event)
    assert said == [("held by", 5, 1), ("held by", 5, 2)]
    replica.apply(Message(8, 1, lock.LOCK))
    replica.apply(ProcessFailed(2, 8))
    assert said[2:] == [("held by", 8, 1)]


def test_a_holder_that_is_gone_frees_the_lock_at_one_place(tmp_path: Path) -> None:
    lock, hangs = example("lock_service"), threading.Event()

    def run(me: weir_toc.sync.Member, say: Say) -> None:
        lock.run(me, NAMES, ROUNDS, 0, say)

    def hold(me: weir_toc.sync.Member, say: Say) -> None:
        me.wait_for(*NAMES)
        client = lock.LockClient(me, NAMES, say)
        say("mine", *client.acquire())
        hangs.set()
        while True:
            client.next()

    with loopback(tmp_path) as network:
        crew = Threads(network.url)
        for name in NAMES:
            crew.start(name, hold if name == "d" else run)
        wait_until(hangs.is_set, lambda: (crew.errors, crew.said))
        crew.kill("d")
        crew.wait()
    is_sound(crew.said)


@pytest.mark.slow
def test_a_killed_holder_frees_the_lock_at_one_place(tmp_path: Path) -> None:
    with programs(tmp_path) as crew:
        # Long intervals: processes of a test share two cores, and must not be taken for dead.
        for id in (1, 2, 3):
            crew.controller(id, "--interval-ms", "300")
        crew.start("aggregator", "-m", "weir_toc", "aggregator", crew.url)
        for name in NAMES:
            hold = "3600" if name == "d" else "0"
            crew.start(name, str(FOLDER / "lock_service.py"), crew.url, name, ",".join(NAMES),
                       str(ROUNDS), hold)  # fmt: skip
        wait_until(lambda: any(row[0] == "mine" for row in rows_of(crew, "d")),
                   lambda: [crew.errors(name) for name in NAMES])  # fmt: skip
        crew.kill("d")
        wait_for_all(crew, NAMES[:3])
    is_sound({name: rows_of(crew, name) for name in NAMES[:3]})
