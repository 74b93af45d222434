"""Who may link to a shard, and what is read of whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rigs import drivers
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.model.ids import place_of
from weir.protocol import link
from weir.protocol.link import Lane, Verdict

MIB = 1 << 20
Runner = Callable[..., AbstractAsyncContextManager[list[Any]]]
Made = Callable[..., Any]
Greet = Callable[..., Awaitable[Any]]
Run = Callable[[Callable[[], Awaitable[None]]], None]


def test_what_came_of_a_frame_is_counted_until_the_shard_has_it(
    running: Runner, own: Made, greet: Greet, hello: Made, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1)) as (one,):
            loop = asyncio.get_running_loop()
            _, quick = await greet(one.port, hello())
            answer, bulk = await greet(one.port, hello(lane=Lane.BULK))
            assert answer.verdict == Verdict.ACCEPTED
            (head,) = link.encode(9, 1)
            size = 4 * MIB
            await loop.sock_sendall(bulk, head[:4] + size.to_bytes(4, "little") + head[8:] + b"x")
            async with asyncio.timeout(30):
                while one.driver.links.local.unfinished.used != 17:  # what came, not what it claims
                    await asyncio.sleep(0)
            await loop.sock_sendall(bulk, bytes(size - 1))
            ((_, kind, _, whole),) = await one.frames(1)
            assert (kind, len(whole), one.driver.links.local.unfinished.used) == (9, size, 0)
            # A client waits when the budget is used up; a node that frees some must not.
            drivers.hold(one.driver)
            await loop.sock_sendall(bulk, head)
            assert len(await one.frames(2)) == 2
            await loop.sock_sendall(bulk, head[:4] + b"\xff\xff\xff\xff" + head[8:])
            assert await loop.sock_recv(bulk, 1) == b""
            assert await loop.sock_recv(quick, 1) == b""
            assert one.driver.links.local.unfinished.used == 0
            quick.close()
            bulk.close()

    run(body)


@pytest.mark.parametrize(
    ("changes", "verdict", "why"),
    [
        ({"protocol": 2}, Verdict.UNKNOWN_PROTOCOL, "upgrade"),
        ({"system": 8}, Verdict.STRANGER, "another system"),
        ({"node": 6, "brokerset": 2}, Verdict.STRANGER, "of BrokerSet 2, and here it is of Bro"),
        ({"node": 6}, Verdict.STRANGER, "of BrokerSet 0, and here it is of BrokerSet 3"),
        ({"logs": 3}, Verdict.STRANGER, "3 logs"),
        ({"shards": 3}, Verdict.STRANGER, "no node has"),
        ({"shard": 9}, Verdict.STRANGER, "no node has"),
        ({"node": 1}, Verdict.STRANGER, "number of its own"),
        ({"to": 3}, Verdict.STRANGER, "this is node 1, not 3"),
        ({"to_shard": 1}, Verdict.ELSEWHERE, "shard 0"),
        ({"node": 4}, Verdict.REMOVED, "removed"),
        ({"node": 5, "birth": 8}, Verdict.STRANGER, "another data folder"),
        ({"node": 5}, Verdict.STRANGER, "weir node add"),
        ({"lane": Lane.BULK}, Verdict.UNCLEAR, "quick lane"),
    ],
)
def test_strangers_are_refused_and_told_why(
    running: Runner,
    own: Made,
    greet: Greet,
    hello: Made,
    run: Run,
    changes: dict[str, Any],
    verdict: Verdict,
    why: str,
) -> None:
    async def body() -> None:
        async with running(own(1)) as (one,):
            one.do(ef.Disconnect(4))
            one.do(ef.Connect(5, "127.0.0.1", 1, 9))
            one.do(ef.Connect(6, "127.0.0.1", 2, 9, 3))
            answer, sock = await greet(one.port, hello(**changes))
            assert (answer.verdict, answer.node, answer.shard) == (verdict, 1, 0)
            assert why in answer.reason
            assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""
            sock.close()
            assert one.incoming == {}

    run(body)


def test_nodes_of_several_sets_link_and_one_of_another_than_is_known_is_cut_off(
    running: Runner, own: Made, greet: Greet, hello: Made, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1)) as (one,):
            socks = []
            for node, brokerset in ((2, 0), (3, 7), (4, 8)):
                answer, sock = await greet(one.port, hello(node=node, brokerset=brokerset))
                assert answer.verdict == Verdict.ACCEPTED, answer.reason
                socks.append(sock)
            for node, brokerset in ((2, 0), (3, 7), (4, 9)):
                one.do(ef.Connect(node, "127.0.0.1", node, 0, brokerset))
            assert await asyncio.get_running_loop().sock_recv(socks[2], 1) == b""
            assert list(one.incoming) == [place_of(2, 0), place_of(3, 0)]
            for sock in socks:
                sock.close()

    run(body)


def test_a_node_founded_anew_is_cut_off_as_soon_as_the_set_knows_the_other_folder(
    running: Runner, own: Made, greet: Greet, hello: Made, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1)) as (one,):
            _, right = await greet(one.port, hello(birth=9))
            _, wrong = await greet(one.port, hello(node=3, birth=8))
            for node in (2, 3):
                one.do(ef.Connect(node, "127.0.0.1", 1, 9))
            assert await asyncio.get_running_loop().sock_recv(wrong, 1) == b""
            assert list(one.incoming) == [place_of(2, 0)]
            right.close()
            wrong.close()

    run(body)


def test_no_link_is_kept_to_a_node_founded_anew(
    running: Runner, own: Made, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """It was up for all others while it could not answer: they refused its links, not theirs."""

    async def body() -> None:
        anew = replace(own(2), identity=replace(own(2).identity, birth=8))
        async with running(own(1), anew) as (one, two):
            one.connect(two)
            await one.until(ev.LinkOpened)
            one.do(ef.Connect(2, "127.0.0.1", two.port, 9))
            await one.until(ev.LinkClosed)
            while "has no link yet: node 2 of this set has another data folder" not in caplog.text:
                await asyncio.sleep(0.01)
            assert len(one.heard(ev.LinkOpened)) == 1
            one.do(ef.Connect(2, "127.0.0.1", two.port, 8))
            await one.until(ev.LinkOpened, 2)

    run(body)


def test_who_is_refused_every_second_is_told_of_once_until_it_is_let_in(
    running: Runner,
    own: Made,
    greet: Greet,
    hello: Made,
    run: Run,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        async with running(own(1)) as (one,):
            for system in (8, 8, 8, 7, 8):
                _, sock = await greet(one.port, hello(system=system))
                sock.close()

    run(body)
    told = [r.getMessage() for r in caplog.records if "a link from node" in r.getMessage()]
    assert len(told) == 2
    assert all("node 2" in line and "another system" in line for line in told)


def test_a_hello_that_makes_no_sense_is_answered_and_one_too_long_is_not_kept(
    running: Runner, own: Made, greet: Greet, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1)) as (one,):
            answer, sock = await greet(one.port, b"\3\0\1\0\xc0")
            assert answer.verdict == Verdict.UNCLEAR
            sock.close()
            for data in (b"\3\0\xff\xff", b"\3" + bytes(64)):
                with pytest.raises(AssertionError, match="without an answer"):
                    await greet(one.port, data)

    run(body)


def test_a_node_nobody_told_of_is_linked_back_where_it_says_that_it_is(
    running: Runner, own: Made, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.be_at(host="127.0.0.1", port=one.port)
            one.connect(two)
            assert (await two.until(ev.LinkOpened))[0].place == place_of(1, 0)
            assert list(two.links.nodes) == [1]
            two.send(place_of(1, 0), True, b"granted")
            assert await one.frames(1) == [(place_of(2, 0), 1, 5, b"granted")]

    run(body)


def test_a_host_that_cannot_be_one_costs_no_link(
    running: Runner, own: Made, greet: Greet, hello: Made, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            said = hello(host="a..b", port=1)
            _, sock = await greet(one.port, said)
            one.connect(two)
            await one.until(ev.LinkOpened)
            sock.close()

    run(body)


def test_links_come_in_while_clients_wait(running: Runner, own: Made, run: Run) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.links.found.add("127.0.0.1")
            drivers.hold(one.driver)  # its budget is used up: what frees it may come by a link
            two.connect(one)
            await two.until(ev.LinkOpened)
            two.send(place_of(1, 0), False, b"committed")
            assert len(await one.frames(1)) == 1
            _, client = await asyncio.open_connection("127.0.0.1", one.port)
            client.write(b"\2" + bytes(15))
            async with asyncio.timeout(30):
                while not any(p.stream.stream for p in drivers.peers(one.driver).values()):
                    await asyncio.sleep(0)
            (peer,) = drivers.peers(one.driver).values()
            assert not drivers.is_read(peer)
            client.close()

    run(body)


def test_a_shard_that_waits_for_others_is_linked_and_lets_clients_in_then(
    running: Runner, own: Made, run: Run
) -> None:
    async def body() -> None:
        async with running(own(1), own(2)) as (one, two):
            one.shard.ready = False
            starting = asyncio.ensure_future(one.driver.start())
            _, client = await asyncio.open_connection("127.0.0.1", one.port)
            client.write(b"\2\0\1\0\1\0\0\0" + bytes(9))
            async with asyncio.timeout(30):
                while not any(p.stream.stream for p in drivers.peers(one.driver).values()):
                    await asyncio.sleep(0)
            assert not starting.done()
            assert one.shard.heard == []
            # It has never heard of the other node, without which it will not be ready.
            two.be_at(host="127.0.0.1", port=two.port)
            two.connect(one)
            await one.until(ev.LinkOpened)
            await starting
            (received,) = await one.until(ev.Received)
            assert [frame.opcode for frame in received.frames] == [1]
            client.close()
            drivers.end(one.driver)

    run(body)


def test_an_answer_tells_no_birth_and_proves_it_to_who_knows_it(
    running: Runner, own: Made, greet: Greet, hello: Made, run: Run
) -> None:
    async def body() -> None:
        mine = replace(own(1), identity=replace(own(1).identity, birth=8))
        async with running(mine) as (one,):
            said = hello(nonce=77)
            answer, sock = await greet(one.port, said)
            assert (answer.verdict, answer.birth) == (Verdict.ACCEPTED, 0)
            assert link.is_of(answer, said, 8)
            assert not link.is_of(answer, said, 9)
            assert not link.is_of(answer, hello(nonce=78), 8)  # it cannot be said again
            sock.close()
            for changes in ({"system": 1, "nonce": 77}, {}):  # a stranger, an earlier release
                answer, sock = await greet(one.port, hello(**changes))
                assert (answer.birth, answer.proof) == (0, b"")
                sock.close()

    run(body)


def test_who_says_that_it_is_a_node_unknown_here_is_told_no_birth(
    own: Made, greet: Greet, hello: Made, running: Runner, run: Run
) -> None:
    """It is dialled where it says; the system's id is no secret, so it may be anybody."""

    async def body() -> None:
        mine = replace(own(1), identity=replace(own(1).identity, birth=8))
        heard: asyncio.Future[link.LinkHello] = asyncio.Future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            said = link.Greeting().receive(await reader.read(4_096))
            if said is not None and not heard.done():
                heard.set_result(link.decode_hello(said))
            writer.close()

        async with running(mine) as (one,), await asyncio.start_server(serve, "127.0.0.1") as door:
            port = door.sockets[0].getsockname()[1]
            _, sock = await greet(one.port, hello(node=9, host="127.0.0.1", port=port))
            async with asyncio.timeout(10):
                said = await heard
            assert said.birth == 0
            assert link.is_from(said, 8)
            assert not link.is_from(said, 9)
            elsewhere = msgspec.structs.replace(said, to_node=2)
            assert not link.is_from(elsewhere, 8), "it says a node's hello to another"
            sock.close()
            one.do(ef.Connect(9, "127.0.0.1", port, 5))
            assert one.links.hello(link.Lane.QUICK, 9, 0).birth == 8, "earlier releases need it"

    run(body)


@pytest.mark.parametrize(("birth", "is_let_in"), [(8, True), (9, False)])
def test_a_hello_is_judged_by_what_it_proves(
    own: Made, greet: Greet, hello: Made, running: Runner, run: Run, birth: int, is_let_in: bool
) -> None:
    async def body() -> None:
        async with running(own(1)) as (one,):
            one.do(ef.Connect(2, "127.0.0.1", 1, 8))
            said = hello(nonce=77)
            said = msgspec.structs.replace(said, proof=link.vouch(birth, said))
            answer, sock = await greet(one.port, said)
            assert (answer.verdict == Verdict.ACCEPTED) == is_let_in
            sock.close()

    run(body)


def test_an_answer_of_an_earlier_release_is_judged_by_the_birth_it_tells(hello: Made) -> None:
    answer = link.LinkAnswer(Verdict.ACCEPTED, "", 1, 0, 1, 1, 5, birth=8)
    assert link.is_of(answer, hello(nonce=77), 8)
    assert not link.is_of(answer, hello(nonce=77), 9)
    assert link.is_of(msgspec.structs.replace(answer, birth=0), hello(nonce=77), 9)


def test_so_many_nodes_that_nobody_has_named_may_link_here(
    running: Runner, own: Made, greet: Greet, hello: Made, run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("weir.host.links.LINK_NODES_MAX", 2)

    async def body() -> None:
        async with running(own(1)) as (one,):
            most = 2 * drivers.own_of(one.driver).logs
            socks = []
            for node in range(100, 100 + most):
                answer, sock = await greet(one.port, hello(node=node))
                assert answer.verdict == Verdict.ACCEPTED
                socks.append(sock)
            for node in (200, 201):
                answer, sock = await greet(one.port, hello(node=node))
                assert (answer.verdict, len(one.incoming)) == (Verdict.UNCLEAR, most)
                assert "not in the registry" in answer.reason
                sock.close()
            # One that the set has named comes in all the same, and who has gone makes room.
            one.do(ef.Connect(201, "127.0.0.1", 1))
            answer, sock = await greet(one.port, hello(node=201))
            assert answer.verdict == Verdict.ACCEPTED
            socks.append(sock)
            for sock in socks:
                sock.close()
            async with asyncio.timeout(30):
                while not all(link.over for link in one.incoming.values()):
                    await asyncio.sleep(0)
            answer, sock = await greet(one.port, hello(node=200))
            assert answer.verdict == Verdict.ACCEPTED
            sock.close()

    run(body)
