"""Links by mutual TLS: each side knows whose certificate the other has, on every lane."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from rigs.certificates import TestCa
from rigs.linked_nodes import SYSTEM, Node, dial, made_hello, made_own, secured
from weir.broker.api import events as ev
from weir.model.ids import place_of
from weir.protocol import link
from weir.protocol.link import Verdict
from weir.server.network import connections
from weir.tls.authority import Issued
from weir.tls.files import ALPN, ServerTls, server_tls

Body = Callable[[], Awaitable[None]]


class Set:
    """A CA, and what its nodes serve with."""

    def __init__(self, folder: Path) -> None:
        self.ca = TestCa(folder, SYSTEM)
        self.issued: dict[str, Issued] = {}

    def serving(self, who: str) -> ServerTls:
        if who not in self.issued:
            self.issued[who] = self.ca.issue(who)
        return server_tls(self.ca.files(self.issued[who]))


@pytest.fixture
def nodes(tmp_path: Path) -> Set:
    """Return the certificates of a set."""
    return Set(tmp_path / "ca")


async def linked(one: Node, two: Node) -> None:
    """Link both ways, and send on each lane."""
    one.connect(two)
    two.connect(one)
    await one.until(ev.LinkOpened)
    await two.until(ev.LinkOpened)
    for quick in (True, False):
        one.send(place_of(2, 0), quick, b"x" * 100_000)
        two.send(place_of(1, 0), quick, b"y" * 100_000)
    bodies = {body for _, _, _, body in await two.frames(2)}
    assert bodies == {b"x" * 100_000}
    assert {body for _, _, _, body in await one.frames(2)} == {b"y" * 100_000}


def test_all_lanes_are_by_mutual_tls(nodes: Set, run: Callable[[Body], None]) -> None:
    async def body() -> None:
        async with secured(
            (made_own(1), nodes.serving("node/1"), "require"),
            (made_own(2), nodes.serving("node/2"), "require"),
        ) as (one, two):
            await linked(one, two)
            assert one.tls_to(2) == two.tls_to(1) == ["TLSv1.3"] * 2
            assert one.driver.tls.counts.handshakes >= 3, "each lane shook hands"

    run(body)


def test_nodes_that_prefer_it_link_to_those_that_have_none(
    nodes: Set, run: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        async with secured(
            (made_own(1), nodes.serving("node/1"), "prefer"), (made_own(2), None, "off")
        ) as (one, two):
            await linked(one, two)
            assert one.tls_to(2) == two.tls_to(1) == [None] * 2
        async with secured(
            (made_own(1), nodes.serving("node/1"), "prefer"),
            (made_own(2), nodes.serving("node/2"), "prefer"),
        ) as (one, two):
            await linked(one, two)
            assert one.tls_to(2) == two.tls_to(1) == ["TLSv1.3"] * 2

    run(body)


def test_a_node_that_requires_it_links_to_nobody_without(
    nodes: Set, run: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_PLAIN_SECONDS", 60.0)

    async def body() -> None:
        async with secured(
            (made_own(1), nodes.serving("node/1"), "require"), (made_own(2), None, "off")
        ) as (one, two):
            answer, sock = await dial(one.port, made_hello())
            sock.close()
            assert answer.verdict == Verdict.STRANGER
            assert "by TLS only" in answer.reason
            two.connect(one)
            one.connect(two)
            await asyncio.sleep(1.0)
            assert not one.heard(ev.LinkOpened)
            assert not two.heard(ev.LinkOpened)

    run(body)


async def greeting_of(
    port: int, context: ssl.SSLContext, node: int = 2, brokerset: int = 0
) -> link.LinkAnswer:
    """Dial by TLS by hand, and say that this is a node."""
    context.set_alpn_protocols([ALPN])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    hello = msgspec.structs.replace(made_hello(node), brokerset=brokerset)
    writer.write(link.encode_greeting(hello))
    stream, answer = link.Greeting(), None
    while answer is None:
        data = await reader.read(4096)
        assert data, "hung up without an answer"
        answer = stream.receive(data)
    writer.close()
    return link.decode_answer(answer)


def context_of(ca: TestCa, issued: Issued | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(ca.bundle)
    if issued is not None:
        context.load_cert_chain(issued.certificate, issued.key)
    return context


def test_no_certificate_but_a_nodes_own_makes_a_node(
    nodes: Set, run: Callable[[Body], None], tmp_path: Path
) -> None:
    ca = nodes.ca
    later = TestCa(tmp_path / "later", SYSTEM + 1)

    async def body() -> None:
        serving = nodes.serving("node/1")
        async with secured((made_own(1), serving, "require")) as (one,):
            for issued, why in (
                (None, "of no node"),
                (ca.issue("user/default/anna"), "of no node"),
                (ca.issue("device/2/0"), "of no node"),
                (ca.issue("node/3"), "of node 3"),
            ):
                answer = await greeting_of(one.port, context_of(ca, issued))
                assert answer.verdict == Verdict.STRANGER
                assert why in answer.reason
            second = ca.issue("node/2")
            old = context_of(ca, second)
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(ssl.SSLError):
                await greeting_of(one.port, old)
            assert (await greeting_of(one.port, context_of(ca, second))).verdict == 0
            one.driver.tls.serve(serving._replace(revoked=frozenset({second.serial})))
            answer = await greeting_of(one.port, context_of(ca, second))
            assert answer.verdict == Verdict.STRANGER
            ca.become(SYSTEM + 1)
            answer = await greeting_of(one.port, context_of(ca, ca.issue("node/4")), node=4)
            assert "of no node of this system" in answer.reason, "the CA signs for two systems"
            with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
                await greeting_of(one.port, context_of(ca, later.issue("node/2")))

    run(body)


def test_a_certificate_is_of_a_node_in_one_set(nodes: Set, run: Callable[[Body], None]) -> None:
    async def body() -> None:
        async with secured((made_own(1), nodes.serving("node/1"), "require")) as (one,):
            context = context_of(nodes.ca, nodes.ca.issue("node/2", brokerset=7))
            assert (await greeting_of(one.port, context, 2, 7)).verdict == Verdict.ACCEPTED
            for brokerset in (0, 8):
                answer = await greeting_of(one.port, context, 2, brokerset)
                assert answer.verdict == Verdict.STRANGER
                said = f"node 2 of BrokerSet {brokerset}, and its certificate is of node 2 of Bro"
                assert f"{said}kerSet 7" in answer.reason

    run(body)


def test_a_link_is_never_by_an_older_version(nodes: Set, run: Callable[[Body], None]) -> None:
    async def body() -> None:
        node1 = nodes.ca.issue("node/1")
        serving = server_tls(nodes.ca.files(node1), "1.2")
        async with secured((made_own(1), serving, "require")) as (one,):
            context = context_of(nodes.ca, nodes.ca.issue("node/2"))
            assert (await greeting_of(one.port, context)).verdict == Verdict.ACCEPTED
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            answer = await greeting_of(one.port, context)
            assert answer.verdict == Verdict.STRANGER

    run(body)


@pytest.mark.parametrize("who", ["node/3", "user/default/anna"])
def test_who_is_dialled_must_have_the_certificate_of_that_node(
    nodes: Set, run: Callable[[Body], None], who: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        serving = nodes.serving("node/1")
        false = nodes.ca.issue(who)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(false.certificate, false.key)
        context.set_alpn_protocols([ALPN])
        heard: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(100))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with secured((made_own(1), serving, "require"), (made_own(2), None, "off")) as (
            one, two,
        ):  # fmt: skip
            one.connect(two, port)
            async with asyncio.timeout(20):
                while not any(
                    word in caplog.text for word in ("of this set was dialled", "purpose")
                ):
                    await asyncio.sleep(0.02)
            assert b"".join(heard) == b"", "it is told nothing"
        server.close()

    caplog.set_level("INFO")
    run(body)
