"""The bank of the documentation: one sum at every stamp, and a killed replica that comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from rigs.examples import FOLDER, Rows, Threads, example, rows_of, wait_for_all, wait_until
from rigs.loopback import loopback
from rigs.programs import programs
from weir_toc import Message

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


class Scripted:
    """A member without a network: it gives out events that a test has, and keeps what is sent."""

    def __init__(self, name: str, process: int, names: dict[str, int]) -> None:
        self.name, self.process, self.names = name, process, names
        self.events: list[Message] = []
        self.sent: list[list[tuple[int, bytes]]] = []
        self.stamp = 0

    def come(self, stamp: int, source: int, **told: object) -> None:
        self.events.append(Message(stamp, source, json.dumps(told).encode()))

    @property
    def reliable(self) -> Iterator[Message]:
        while self.events:
            yield self.events.pop(0)

    def send_reliable(self, parts: list[tuple[int, bytes]]) -> int:
        """Send, and be given it back as an event if it is among the receivers."""
        self.stamp += 10
        self.sent.append(parts)
        own = dict(parts).get(self.process)
        if own is not None:
            self.events.append(Message(self.stamp, self.process, own))
        return self.stamp


#: As they are once A1 is back.
PROCESSES = {"a1": 7, "a2": 2, "a3": 3, "b1": 4, "b2": 5, "b3": 6}


def test_a_replica_that_comes_back_applies_what_came_behind_the_state() -> None:
    said: Rows = []
    me = Scripted("a1", 7, PROCESSES)
    bank = BANK.Bank(me, lambda *words: said.append([*map(str, words)]))
    bank.rejoin()
    other = BANK.Replica("a", PROCESSES)
    other.view, other.balances["ada"], other.place = 1, 90, [10, 7]
    order = {"kind": "transfer", "view": 1}
    me.come(10, 2, **order, changes={"ada": -50})  # below the join: the state has it
    me.come(12, 2, **order, changes={"ada": -7})
    me.come(13, 3, **order, changes={"alan": 5})
    me.come(14, 2, kind="state", of=10, state=vars(other))
    me.come(15, 3, kind="state", of=10, state=vars(other))  # the second one does nothing
    for _ in range(5):
        bank.take()
    assert bank.replica.balances == {"ada": 83, "alan": 105, "alonzo": 100}
    assert bank.replica.place == [13, 3]
    assert [row[:2] for row in said] == [["rejoined", "10"], ["transfer", "12"], ["transfer", "13"]]
    assert bank.held is None


def test_a_join_that_misses_a_replica_does_not_count_and_is_sent_again() -> None:
    me = Scripted("a2", 2, PROCESSES)
    bank = BANK.Bank(me, lambda *_: None)
    bank.replica.members = {name: one for name, one in PROCESSES.items() if name != "a1"}
    me.come(5, 7, kind="join", name="a1", changes={}, to=[2, 4, 5, 6, 7])  # not to A3
    me.come(8, 7, kind="join", name="a1", changes={}, to=[2, 3, 4, 5, 6, 7])
    assert not bank.take()[1]
    assert (bank.replica.view, "a1" in bank.replica.members) == (0, False)
    assert bank.take()[1]
    assert (bank.replica.view, bank.replica.members["a1"]) == (1, 7)
    answers = [[(to, json.loads(told)) for to, told in parts] for parts in me.sent]
    assert [[to for to, _ in one] for one in answers] == [[7], [7]]
    assert [one[0][1]["of"] for one in answers] == [5, 8]
    assert answers[0][0][1]["state"] is None
    assert answers[1][0][1]["state"]["view"] == 1

    # Its sender asks again, and what it held for the first one is over.
    back = Scripted("a1", 7, PROCESSES)
    bank = BANK.Bank(back, lambda *_: None)
    bank.rejoin()
    back.come(11, 2, kind="state", of=10, state=None)
    bank.take()
    assert (len(back.sent), bank.asked) == (2, 20)
    assert [event.stamp for event in bank.held] == [20]


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
