"""Links between drivers: what they carry, how they end, and how they come back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from rigs import drivers
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.host.outbound_link import NodeAddress
from weir.model.ids import place_of
from weir.model.limits import (
    FORMAT_LEVEL,
    LINK_FRAME_BYTES_MAX,
    LINK_STALLED_MS,
    LINK_UNSENT_BYTES_MAX,
)
from weir.protocol import trunk
from weir.protocol.link import Lane

MIB = 1 << 20
Runner = Callable[..., AbstractAsyncContextManager[list[Any]]]
Made = Callable[..., Any]
Greet = Callable[..., Awaitable[Any]]
Run = Callable[[Callable[[], Awaitable[None]]], None]
MANY_TICKS = 70


def test_frames_go_both_ways_on_lanes_of_their_own(running: Runner, own: Made, run: Run) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            two.connect(one)
            opened = (await one.until(ev.LinkOpened))[0]
            assert opened == ev.LinkOpened(place_of(2, 0), 1, two.links.run, FORMAT_LEVEL)
            await two.until(ev.LinkOpened)
            await one.until(ev.TrunkOpened)
            one.send(place_of(2, 0), True, b"vote")
            one.send(place_of(2, 0), False, bytes(2 * MIB), b"end", charged=2 * MIB)
            found = await two.frames(2)
            assert sorted(len(body) for *_, body in found) == [4, 2 * MIB + 3]
            assert {place for place, *_ in found} == {place_of(1, 0)}
            two.send(place_of(1, 0), True, b"granted")
            assert await one.frames(1) == [(place_of(2, 0), 1, 5, b"granted")]
            one.tick()
            assert one.shard.budget.used == 0
            assert two.shard.budget.used == 0

    run(body)


def test_requests_are_passed_on_by_the_trunk_lane(running: Runner, own: Made, run: Run) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            (opened,) = await one.until(ev.TrunkOpened)
            assert opened.shard == place_of(2, 0)
            frame = trunk.encode(trunk.Kind.OPENED, 4, b"alice")
            one.driver.trunks.send(ef.Pass(place_of(2, 0), frame))
            *lanes, session = await two.until(ev.Opened, 4)
            assert (session.principal, session.place) == ("alice", place_of(1, 0))
            assert [event.session for event in two.heard(ev.Closed)] == [e.session for e in lanes]
            drivers.do(two.driver, ef.Send(session.session, (b"\2reply",)))
            (back,) = await one.until(ev.PassedBack)
            assert back.shard == place_of(2, 0)
            assert bytes(back.frames[0].body) == b"\2reply"
            one.do(ef.Disconnect(2))
            await one.until(ev.TrunkClosed)
            assert (await two.until(ev.Closed, 4))[-1].session == session.session

    run(body)


def test_the_shards_that_share_a_port_are_found_by_their_own(
    running: Runner, own: Made, run: Run, make_node: Made
) -> None:
    async def body() -> None:
        async with running(own(1)) as (one,):
            ones = [make_node(own(2, shard, 2)) for shard in (0, 1)]
            servers = [await node.listen() for node in ones]
            ports = tuple(node.port for node in ones)
            for node in ones:
                node.be_at(ports=ports)
            # Whoever answers the shared port, here always shard 1, says where the others are.
            one.connect(ones[1])
            opened = await one.until(ev.LinkOpened, 2)
            assert {event.place for event in opened} == {place_of(2, 0), place_of(2, 1)}
            assert {event.shards for event in opened} == {2}
            for shard, node in enumerate(ones):
                one.send(place_of(2, shard), False, b"%d" % shard)
                assert (await node.frames(1))[0][3] == b"%d" % shard
            for server, node in zip(servers, ones, strict=True):
                server.close()
                node.links.close()

    run(body)


def test_entries_go_only_between_shards_that_share_a_log(
    running: Runner, own: Made, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1, 0, 2, logs=4), own(1, 1, 2, logs=4)) as (even, odd):
            there = NodeAddress(2)
            there.shards = 2
            assert even.links.lanes_to(there, 0) == [Lane.QUICK, Lane.BULK, Lane.TRUNK]
            assert even.links.lanes_to(there, 1) == [Lane.QUICK, Lane.TRUNK]
            there.shards = 3
            assert Lane.BULK in even.links.lanes_to(there, 2)
            assert Lane.BULK not in odd.links.lanes_to(there, 2)

    run(body)


def test_a_lost_link_is_told_and_dialled_again(running: Runner, own: Made, run: Run) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            await one.until(ev.LinkOpened)
            two.incoming[place_of(1, 0)].cut()
            assert await one.until(ev.LinkClosed) == [ev.LinkClosed(place_of(2, 0))]
            one.send(place_of(2, 0), False, b"nobody", charged=100)
            assert one.shard.budget.used == 0
            await one.until(ev.LinkOpened, 2)
            await one.until(ev.TrunkOpened, 2)
            one.send(place_of(2, 0), False, b"again")
            assert [body for *_, body in await two.frames(1)] == [b"again"]
            assert [type(event).__name__ for event in one.shard.heard] == [
                "TrunkOpened", "LinkOpened", "LinkClosed", "TrunkClosed", "TrunkOpened",
                "LinkOpened",
            ]  # fmt: skip

    run(body)


def test_a_node_that_comes_back_is_another_run_of_it(
    running: Runner, own: Made, run: Run, make_node: Made
) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            (first,) = await one.until(ev.LinkOpened)
            again = make_node(own(2))
            server = await again.listen(two.port)
            two.links.close()
            two.be_linked_as(again)
            _, second = await one.until(ev.LinkOpened, 2)
            assert (first.run, second.run) == (two.links.run, again.links.run)
            server.close()
            again.links.close()

    run(body)


def test_who_answers_nothing_is_given_up_and_who_asks_nothing_too(
    running: Runner, own: Made, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            await one.until(ev.LinkOpened)
            # Its loop turns, but from here nothing is heard of it: ticks are counted, not seconds.
            for _ in range(MANY_TICKS):
                one.tick()
            await one.until(ev.LinkClosed)
            await one.until(ev.LinkOpened, 2)
            for _ in range(MANY_TICKS):
                two.tick()
            await one.until(ev.LinkClosed, 2)
            await one.until(ev.LinkOpened, 3)

    run(body)


def test_pings_keep_a_link_that_has_nothing_to_say(running: Runner, own: Made, run: Run) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            await one.until(ev.LinkOpened)
            for _ in range(5 * MANY_TICKS):
                before = one.silence_to(2)
                one.tick()
                two.tick()
                async with asyncio.timeout(30):
                    while one.silence_to(2) > before and before % 10 == 9:  # it has asked just now
                        await asyncio.sleep(0)
            assert one.heard(ev.LinkClosed) == []
            assert two.heard(ev.PeerSent) == []

    run(body)


def test_who_takes_nothing_is_cut_and_who_lets_too_much_pile_up(
    running: Runner, own: Made, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            await one.until(ev.LinkOpened)
            two.stop_reading(place_of(1, 0), Lane.BULK)
            one.send(place_of(2, 0), False, bytes(40 * MIB), charged=40 * MIB)
            lane = one.lane_to(2, Lane.BULK)
            for _ in range(LINK_STALLED_MS // ev.TICK_MS + 30):
                lane.check_silence()
            await one.until(ev.LinkClosed)
            while one.shard.budget.used:
                await asyncio.sleep(0)
            await one.until(ev.LinkOpened, 2)
            two.stop_reading(place_of(1, 0), Lane.BULK)
            for _ in range(LINK_UNSENT_BYTES_MAX // (8 * MIB) + 2):
                one.send(place_of(2, 0), False, bytes(8 * MIB), charged=8 * MIB)
            await one.until(ev.LinkClosed, 2)
            while one.shard.budget.used:
                await asyncio.sleep(0)

    run(body)


def test_a_node_that_moved_is_dialled_where_it_is_now(running: Runner, own: Made, run: Run) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            with socket.socket() as nobody:
                nobody.bind(("127.0.0.1", 0))
                one.connect(two, port=nobody.getsockname()[1])
                one.do(ef.Connect(2, "localhost", two.port))
                assert (await one.until(ev.LinkOpened))[0].place == place_of(2, 0)

    run(body)


def test_a_shard_that_broke_links_no_more(
    running: Runner, own: Made, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            two.connect(one)
            await two.until(ev.LinkOpened)
            monkeypatch.setattr(one.shard, "step", None)
            two.send(place_of(1, 0), True, b"vote")
            await two.until(ev.LinkClosed)
            assert drivers.is_broken(one.driver)
            _, client = await asyncio.open_connection("127.0.0.1", one.port)
            client.close()

    run(body)


def test_a_frame_of_the_longest_length_goes_through(running: Runner, own: Made, run: Run) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.connect(two)
            await one.until(ev.LinkOpened)
            one.send(place_of(2, 0), False, bytes(LINK_FRAME_BYTES_MAX))
            assert len((await two.frames(1))[0][3]) == LINK_FRAME_BYTES_MAX

    run(body)
