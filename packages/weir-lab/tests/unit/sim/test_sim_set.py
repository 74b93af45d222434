"""A simulated set: nodes that stand still, faults of chosen kinds, and what the witness sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import weir_raft as raft
from weir.broker.api import events as ev
from weir.broker.shard import Shard
from weir.protocol.client import messages as m
from weir.protocol.client.codec import encode_request
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.nemesis import Storm
from weir.testing.simulator.network import Link
from weir.testing.simulator.process import Process
from weir.testing.simulator.witness import AGREED, Witness
from weir.testing.simulator.world import MS, SECOND, World
from weir_lab.sim.run import run_seed
from weir_lab.sim.shape import UNORDERED, machine


def started(seed: int, nodes: int = 3) -> tuple[World, BrokerSet]:
    world = World(seed)
    brokers = BrokerSet(world, machine(world, UNORDERED), nodes)
    brokers.start()
    world.run(4 * SECOND)
    return world, brokers


def test_three_nodes_find_a_leader() -> None:
    _, brokers = started(1)
    assert all(process.ready for process in brokers.running)
    assert brokers.leaders()
    assert brokers.witness.complaints == []


def test_a_node_that_stands_still_handles_nothing_and_then_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, brokers = started(2)
    still, handled = brokers.hosts[2], list[tuple[int, type]]()
    honest = Shard.step

    def step(self: Shard, *events: ev.Event) -> Any:
        if self.identity.node == still.node:
            handled.extend((world.now, type(event)) for event in events)
        return honest(self, *events)

    monkeypatch.setattr(Shard, "step", step)
    woken = world.now + 700 * MS
    still.pause(700 * MS)
    world.run(woken - 1)
    assert handled == []
    world.run(woken)
    assert {at for at, _ in handled} == {woken}
    assert {ev.Ticked, ev.PeerSent} <= {kind for _, kind in handled}


def test_what_a_dead_node_led_is_led_by_another() -> None:
    world, brokers = started(3)
    first = brokers.leaders()[0]
    first.die(power=True)
    world.run(world.now + 4 * SECOND)
    assert brokers.leaders()
    assert first not in brokers.leaders()


def test_a_part_without_a_majority_is_not_led() -> None:
    world, brokers = started(4)
    for one in (1, 2):
        for other in (2, 3):
            brokers.net.close(one, other)
            brokers.net.close(other, one)
    brokers.net.close(1, 3)
    brokers.net.close(3, 1)
    world.run(world.now + 3 * SECOND)
    assert brokers.leaders() == []
    brokers.net.heal()
    world.run(world.now + 4 * SECOND)
    assert brokers.leaders()


class _Nobody:
    """A client that hears nothing."""

    def received(self, link: Link, data: bytes) -> None:
        """Bytes have come."""

    def lost(self, link: Link) -> None:
        """The connection is gone."""


def test_clients_reach_a_node_that_has_lost_its_leaders_until_it_ends() -> None:
    world, brokers = started(6)
    client = brokers.connect(_Nobody(), -1, brokers.leaders()[0].node)
    assert client is not None
    for number, request in enumerate((m.Hello("client"), m.CreateTopic("weather", 2)), 1):
        client.to_host(b"".join(encode_request(request, number)))
    world.run(world.now + SECOND)
    one = brokers.hosts[1]
    for other in (2, 3):
        brokers.net.close(1, other)
        brokers.net.close(other, 1)
    world.run(world.now + 4 * SECOND)
    assert one not in brokers.leaders()
    assert not any(process.ready for process in one.running)
    assert brokers.connect(_Nobody(), -1, node=1) is not None
    one.die(power=False)
    assert brokers.connect(_Nobody(), -1, node=1) is None


def test_only_the_kinds_that_are_named_strike() -> None:
    shape = replace(UNORDERED, kinds=("pause",))
    world = World(5)
    brokers = BrokerSet(world, machine(world, shape), 3)
    brokers.start()
    Storm(world, brokers, shape.fault_plan).start()
    world.run(10 * SECOND)
    assert [host.boots for host in brokers.all] == [1, 1, 1]
    assert any(note[1] == "pause" for note in world.recent)


def _seen(node: int, run: int, terms: list[int], *, leads: bool, term: int) -> Process:
    """A process with one group that applied entries of these terms."""
    role = raft.Role.LEADER if leads else raft.Role.FOLLOWER
    at: Callable[[int], int] = lambda index: terms[index - 1]  # noqa: E731
    node_of_group = SimpleNamespace(
        role=role,
        term=term,
        log=SimpleNamespace(first_index=1, last_index=len(terms), applied=len(terms), term=at),
        lineages=SimpleNamespace(begun=0),
    )
    group = SimpleNamespace(
        id=9,
        node=node_of_group,
        has_others=True,
        damage=None,
        machine=SimpleNamespace(encode=lambda: terms),
    )
    shard = SimpleNamespace(writers=[SimpleNamespace(groups={9: group})])
    return SimpleNamespace(node=node, run=run, shard=shard)  # type: ignore[return-value]


def test_the_witness_sees_two_leaders_of_a_term() -> None:
    witness = Witness()
    witness.look(_seen(1, 1, [1], leads=True, term=1))
    witness.look(_seen(2, 2, [1], leads=True, term=2))
    assert witness.complaints == []
    witness.look(_seen(3, 3, [1], leads=True, term=2))
    assert witness.complaints == [(AGREED, "group 9: nodes 2 and 3 lead in term 2")]


def test_the_witness_sees_logs_and_states_that_differ() -> None:
    witness = Witness()
    one, other = (
        _seen(1, 1, [1, 2], leads=False, term=3),
        _seen(2, 2, [1, 3], leads=False, term=3),
    )
    witness.look(one)
    witness.look(other)
    witness.compare([one, other])
    assert [promise for promise, _ in witness.complaints] == [AGREED, AGREED]


def test_a_set_tells_how_to_see_it_fail_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Witness, process: Process) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(Witness, "look", broken)
    report = run_seed(1, UNORDERED).report()
    assert "weir sim run --shape unordered --seed 1 --seeds 1 " in report
    assert "checkpoints after" in report
