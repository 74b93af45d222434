"""Where the topology puts a relay node: whom it pulls from, and who pulls from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rigs.relay_nodes import (
    ALL,
    fill,
    fill_until,
    is_linked,
    make_small,
    play,
    relay,
    rows,
    until_known,
)
from weir.client.client import connect
from weir.model.limits import HOLD_BYTES_DEFAULT, HOLD_MS_DEFAULT
from weir.protocol.client.topology import TopologyState
from weir.relay.holds import HoldLimits, limits_in
from weir.relay.ports import ChildrenSet, Event
from weir.relay_node.tiers import Tiers, children_in, uppers_in
from weir.relay_node.uppers import UpperRelays
from weir.testing.memory_node import Node
from weir.testing.nodes import free_ports
from weir.tls.dialling import SecureHost
from weir.tls.files import ClientFiles
from weir.topology.sets import Caps, SetNode, SetRow, TopicTags, Topology


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


def test_uppers_of_the_topology_are_reached_as_the_core_is() -> None:
    files = ClientFiles(ca="ca.pem", certificate="8.pem", key="8.key")
    found = uppers_in(TREE, 7, 8, SecureHost("core", files))
    assert found == tuple(((SecureHost("127.0.0.1", files), port),) for port in (1, 2, 6800))
    assert found != uppers_in(TREE, 7, 8, "core") == uppers_in(TREE, 7, 8)
    core = SecureHost("10.0.0.1", files._replace(server_name="core.example"))
    assert uppers_in(TREE, 7, 8, core) == found, "each has its own name in its certificate"


def test_children_are_the_nodes_of_sets_below_that_may_hold_the_topic() -> None:
    assert children_in(TREE, 5, "a/b") == {(7, 7), (7, 8)}
    assert children_in(TREE, 4, "a/b") == {(7, 7), (7, 8), (9, 9)}
    assert children_in(TREE, 4, "a/c") == {(7, 7), (7, 8)}
    assert children_in(TREE, 9, "a/b") == set()


def test_each_relay_of_the_topology_has_the_limits_of_its_set() -> None:
    caps = Caps(hold_bytes=9, hold_seconds=2)
    sets = (*TREE.sets[:2], SetRow(8, "capped", "access", 1, nodes=(at(2),), caps=caps))
    assert limits_in(Topology(1, sets)) == {
        (4, 4): HoldLimits(HOLD_MS_DEFAULT, HOLD_BYTES_DEFAULT), (8, 2): HoldLimits(2_000, 9)
    }  # fmt: skip


def test_the_command_line_goes_before_the_topology() -> None:
    async def work() -> None:
        for fixed, found in ((hosts(77), hosts(77)), ((), hosts(1, 2, 6800))):
            uppers = UpperRelays(7, 2)
            tiers = Tiers(7, 8, uppers, fixed)
            tiers.start()
            assert tiers.children("a/b") is None
            assert tiers.take(TopologyState(3, TREE))
            assert not tiers.take(TopologyState(3, TREE))
            assert tiers.children("a/b") == ChildrenSet(frozenset(), limits_in(TREE))
            assert [uppers.find(one).hosts for one in uppers.nodes] == [*found]  # type: ignore[union-attr]
            tiers.take(TopologyState(0, Topology()))
            assert tiers.children("a/b") == ChildrenSet(frozenset()), "there is no topology"
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


def test_the_core_keeps_for_a_day_what_a_relay_that_is_away_needs(
    core: Node, tmp_path: Path
) -> None:
    hour = 3_600
    sets = (
        SetRow(0, "core", "core", nodes=(at(1, 6801),)),
        SetRow(4, "near", "access", 1, nodes=(at(7, 6802),), upper=(0,)),
    )

    async def start(topic: str) -> int:
        async with connect(core.url) as client:
            return min(part.start for part in await client.parts(topic))

    async def pass_hours(hours: int, until: Callable[[], Awaitable[bool]]) -> None:
        """Let time pass, and wait until retention has let something go by that."""
        for _ in range(hours // 4):
            await asyncio.to_thread(core.advance, 4 * hour)
        while not await until():
            await asyncio.sleep(0.02)

    async def other_is_gone() -> bool:
        return await start("other") == 1

    async def is_gone() -> bool:
        return await start("t") == 11

    async def work() -> None:
        of: dict[str, Any] = {"brokerset": 4, "node": 7, "topics": frozenset({"default/t"})}
        async with connect(core.url) as client:
            await client.topology.apply(Topology(0, sets), 0)
            for topic in ("t", "other"):
                await client.create_topic(topic, partitions=1, retention="1h", order="total")
            await client.publish("other", b"1")
        async with relay(core, tmp_path, **of) as url:
            await fill(core, 6)
            await until_known(url, 6)
        await fill(core, 5, 6)
        await pass_hours(12, other_is_gone)
        assert await start("t") <= 6, "what the relay lacks stays"
        async with relay(core, tmp_path, **of) as url:
            await until_known(url, 11)
            assert [row[1] for row in await rows(url, **ALL)][-5:] == [6, 7, 8, 9, 10]
        await pass_hours(32, is_gone)

    play(work)
