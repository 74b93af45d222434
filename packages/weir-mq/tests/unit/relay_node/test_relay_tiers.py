"""Where the topology puts a relay node: whom it pulls from, and who pulls from it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rigs.relay_nodes import ALL, fill, fill_until, is_linked, make_small, play, relay, rows
from weir.client.client import connect
from weir.protocol.client.topology import TopologyState
from weir.relay.ports import Event
from weir.relay_node.tiers import Tiers, children_in, uppers_in
from weir.relay_node.uppers import UpperRelays
from weir.testing.memory_node import Node
from weir.testing.nodes import free_ports
from weir.topology.sets import SetNode, SetRow, TopicTags, Topology


def at(number: int, port: int = 6800) -> SetNode:
    return SetNode(number, "127.0.0.1", port)


TREE = Topology(1, (
    SetRow(1, "core", "core", nodes=(at(1),)),
    SetRow(4, "north", "tandem", 1, nodes=(at(4),), upper=(1,)),
    SetRow(5, "south", "tandem", 1, nodes=(at(5, 1), at(6, 2)), upper=(1,)),
    SetRow(7, "near", "access", 2, nodes=(at(7), at(8)), upper=(5, 4, 1)),
    SetRow(9, "far", "access", 2, nodes=(at(9),), upper=(4,), tags=(TopicTags("a/b", ("x",)),)),
))  # fmt: skip


def hosts(*ports: int) -> tuple[tuple[tuple[str, int]], ...]:
    return tuple((("127.0.0.1", port),) for port in ports)


def test_uppers_are_the_nodes_of_sets_above_in_order_of_preference() -> None:
    assert uppers_in(TREE, 4, 4) == ()
    assert uppers_in(TREE, 7, 8) == hosts(1, 2, 6800)
    assert uppers_in(TREE, 7, 7) == hosts(2, 1, 6800), "another one is the first"
    assert uppers_in(TREE, 9, 9) == hosts(6800)
    assert uppers_in(TREE, 3, 3) == ()


def test_children_are_the_nodes_of_sets_below_that_may_hold_the_topic() -> None:
    assert children_in(TREE, 5, "a/b") == {(7, 7), (7, 8)}
    assert children_in(TREE, 4, "a/b") == {(7, 7), (7, 8), (9, 9)}
    assert children_in(TREE, 4, "a/c") == {(7, 7), (7, 8)}
    assert children_in(TREE, 9, "a/b") == set()


def test_the_command_line_goes_before_the_topology() -> None:
    async def work() -> None:
        for fixed, found in ((hosts(77), hosts(77)), ((), hosts(1, 2, 6800))):
            uppers = UpperRelays(7, 2)
            tiers = Tiers(7, 8, uppers, fixed)
            tiers.start()
            assert tiers.children("a/b") is None
            assert tiers.take(TopologyState(3, TREE))
            assert not tiers.take(TopologyState(3, TREE))
            assert tiers.children("a/b") == frozenset()
            assert [uppers.find(one).hosts for one in uppers.nodes] == [*found]  # type: ignore[union-attr]
            await uppers.close()

    play(work)


def test_upper_relays_that_stay_keep_their_names() -> None:
    async def work() -> None:
        uppers = UpperRelays(7, 2)
        assert uppers.use(hosts(1, 2))
        first, second = uppers.nodes
        assert not uppers.use(hosts(1, 2))
        assert uppers.use(hosts(3, 2))
        third, again = uppers.nodes
        assert again == second
        assert third not in (first, second)
        assert uppers.find(first) is None
        await uppers.close()
        assert uppers.nodes == ()

    play(work)


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def test_a_relay_pulls_from_the_set_above_it(core: Node, tmp_path: Path, told: list[Event]) -> None:
    async def work() -> None:
        (port,) = free_ports(1)
        sets = (
            SetRow(0, "core", "core", nodes=(at(1, 6801),)),
            SetRow(4, "north", "tandem", 1, nodes=(at(7, port),), upper=(0,)),
            SetRow(5, "near", "access", 2, nodes=(at(8, 6803),), upper=(4,)),
        )
        await fill(core, 3)
        async with connect(core.url) as client:
            await client.topology.apply(Topology(0, sets), 0)
        async with (
            relay(core, tmp_path / "tandem", ("127.0.0.1", port), brokerset=4, node=7),
            relay(core, tmp_path / "access", brokerset=5, node=8) as url,
        ):
            count = await fill_until(core, 3, is_linked(told))
            while len(found := await rows(url, **ALL)) < count:
                await asyncio.sleep(0.02)
            assert found == await rows(core.url, **ALL)

    play(work)
