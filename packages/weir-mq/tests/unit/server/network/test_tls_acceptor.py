"""TLS on the port of all dialects: who comes in, who does not, and in which words."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import struct
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import weir
from rigs.certificates import SYSTEM, TestCa, node_running
from rigs.clients import pool_of
from weir.access.devices import Level
from weir.client.connection.connection import Connection
from weir.device.client import Client as Device
from weir.device.connection import DeviceSecret
from weir.errors import (
    BadRequest,
    Disconnected,
    NotAuthenticated,
    ProofNeeded,
    Unauthorized,
    WeirError,
)
from weir.protocol import device as wire
from weir.server.key_files import create_key_file
from weir.server.network import tls as acceptor
from weir.server.observability.metrics import Metrics
from weir.tls.authority import Issued
from weir.tls.files import ALPN, ClientFiles

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
FAIL_WITHIN = 0.6


class Place:
    """A CA, a node's certificate of it, and where the node's data lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = TestCa(folder / "ca")
        self.node = self.ca.issue("node/1")
        self.data = folder / "data"

    def run(
        self,
        body: Callable[[int], Coroutine[Any, Any, None]],
        node: Issued | None = None,
        revoked: str = "",
        run: Callable[..., Any] = asyncio.run,
        **tls: Any,
    ) -> None:
        async def whole() -> None:
            files = self.ca.files(node or self.node, revoked)
            async with asyncio.timeout(60), node_running(self.data, files, **tls) as port:
                await body(port)

        run(whole())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return it; the node's system is the CA's."""
    monkeypatch.setattr("weir.server.disk.node_folder.new_system", lambda: SYSTEM)
    return Place(tmp_path)


async def refusal_of(url: str, seconds: float = FAIL_WITHIN) -> str:
    """Connect, which must not succeed, and return why."""
    with pytest.raises(WeirError) as found:
        async with weir.connect(url, request_timeout=seconds):
            pass
    return f"{type(found.value).__name__}: {found.value}"


@LOOPS
def test_a_client_comes_in_and_so_does_a_device(place: Place, run: Callable[..., Any]) -> None:
    lock = place.ca.issue("device/7/0")
    anna = place.ca.issue("user/default/anna")

    async def body(port: int) -> None:
        large = bytes(range(256)) * 20_000
        async with weir.connect(place.ca.url(port, anna)) as w:
            await w.create_topic("doors")
            await w.publish("doors", large)
            files = place.ca.client(lock)
            code = await asyncio.to_thread(publish, port, files)
            assert code == 0
            found = [message.value async for message in w.reader("doors", follow=False)]
            assert found == [large, b"open"]

    place.run(body, run=run)


def publish(port: int, files: ClientFiles | None, timeout: float = 10.0) -> int:
    with Device("127.0.0.1", port, 7, 1, "doors", timeout=timeout, tls=files) as device:
        return device.publish_sequenced(b"open").code


@pytest.mark.parametrize("plaintext", ["loopback", "allow"])
def test_who_may_do_without_tls_does(place: Place, plaintext: str) -> None:
    async def body(port: int) -> None:
        async with weir.connect(f"weir://127.0.0.1:{port}") as w:
            await w.create_topic("doors")
        assert await asyncio.to_thread(publish, port, None) == 0

    place.run(body, plaintext=plaintext)


@pytest.mark.parametrize("plaintext", ["loopback", "refuse"])
def test_others_are_told_that_they_need_it(
    place: Place, plaintext: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "is_loopback", lambda _: False)

    async def body(port: int) -> None:
        assert "Unauthorized: this broker takes TLS only" in await refusal_of(
            f"weir://127.0.0.1:{port}"
        )
        with pytest.raises(Unauthorized):
            await asyncio.to_thread(publish, port, None)
        async with weir.connect(place.ca.url(port)):
            pass

    place.run(body, plaintext=plaintext)


def test_addresses_of_this_machine_alone_are_loopback() -> None:
    assert [acceptor.is_loopback(one) for one in ("127.0.0.1", "127.9.9.9", "::1", "")] == [
        True
    ] * 4
    others = ("10.0.0.1", "::ffff:10.0.0.1", "0.0.0.0", "localhost", "fe80::1")
    assert not any(map(acceptor.is_loopback, others))


def test_a_client_without_tls_at_a_broker_with_it_and_the_other_way_round(place: Place) -> None:
    async def plain() -> None:
        async with asyncio.timeout(30), node_running(place.data) as port:
            why = await refusal_of(place.ca.url(port))
            assert "hung up in the TLS handshake: it may take no TLS" in why

    asyncio.run(plain())


def test_a_broker_that_is_not_who_was_dialled_is_not_believed(place: Place, tmp_path: Path) -> None:
    foreign = TestCa(tmp_path / "foreign")

    async def body(port: int) -> None:
        ca = place.ca
        assert "mismatch" in await refusal_of(ca.url(port) + "&server_name=broker9")
        why = await refusal_of(foreign.url(port))
        assert "give the CA of the set" in why
        assert await refusal_of(f"weirs://127.0.0.1:{port}")  # the CAs of the machine
        async with weir.connect(ca.url(port) + "&server_name=localhost"):
            pass

    place.run(body)


def test_a_name_that_the_certificate_lacks_is_a_mismatch(place: Place) -> None:
    node = place.ca.issue("node/2", "broker2", "10.1.2.3")

    async def body(port: int) -> None:
        assert "mismatch" in await refusal_of(place.ca.url(port))
        # By its name it is verified; then it says that it is node 1.
        why = await refusal_of(place.ca.url(port) + "&server_name=broker2")
        assert "says it is node 1" in why
        assert "node/2" in why

    place.run(body, node)


@pytest.mark.parametrize(("days_ahead", "words"), [(-20, "expired"), (20, "not yet valid")])
def test_a_client_whose_certificate_is_not_of_now_is_told_so(
    place: Place, days_ahead: float, words: str
) -> None:
    anna = place.ca.issue("user/default/anna", days_ahead=days_ahead)

    async def body(port: int) -> None:
        why = await refusal_of(place.ca.url(port, anna))
        assert "certificate of this client" in why
        assert words.split()[0] in why or "not valid yet" in why
        with pytest.raises(Disconnected, match="certificate of this client"):
            await asyncio.to_thread(publish, port, place.ca.client(anna), 1.0)

    place.run(body)


def test_a_client_of_a_foreign_ca_is_told_so(place: Place, tmp_path: Path) -> None:
    foreign = TestCa(tmp_path / "foreign")
    anna = foreign.issue("user/default/anna")
    files = f"certificate={anna.certificate}&key={anna.key}"

    async def body(port: int) -> None:
        why = await refusal_of(f"{place.ca.url(port)}&{files}")
        assert "does not know the CA" in why

    place.run(body)


def test_a_client_without_a_certificate_is_told_that_one_is_required(place: Place) -> None:
    anna = place.ca.issue("user/default/anna")

    async def body(port: int) -> None:
        assert "asks for a certificate of this client" in await refusal_of(place.ca.url(port))
        async with weir.connect(place.ca.url(port, anna)):
            pass

    place.run(body, clients="require")


def test_a_revoked_certificate_and_one_of_another_system_are_refused(place: Place) -> None:
    anna, otto = (place.ca.issue(f"user/default/{name}") for name in ("anna", "otto"))
    lock = place.ca.issue("device/7/0")
    revoked = place.folder / "revoked.txt"
    revoked.write_text(f"{anna.serial} # left\n00{lock.serial.upper()}\n", encoding="utf-8")
    place.ca.become(SYSTEM + 1)
    eve = place.ca.issue("user/default/eve")

    async def body(port: int) -> None:
        assert "Unauthorized: the certificate of this client is revoked" in await refusal_of(
            place.ca.url(port, anna)
        )
        assert "belongs to system abc" in await refusal_of(place.ca.url(port, eve))
        with pytest.raises(NotAuthenticated):  # as for any other that is no good
            await asyncio.to_thread(publish, port, place.ca.client(lock))
        async with weir.connect(place.ca.url(port, otto)):
            pass

    place.run(body, revoked=str(revoked))


def test_a_device_of_a_fleet_comes_by_its_own_certificate(place: Place) -> None:
    """And by no other: of a neighbour, a user, a node, or another generation."""
    key_file = place.folder / "key"
    create_key_file(key_file)
    own, later, other, anna, node = (
        place.ca.issue(who)
        for who in ("device/7/0", "device/7/1", "device/8/0", "user/default/anna", "node/2")
    )
    secret = DeviceSecret.derived(b"f" * 32, SYSTEM, 7, signed=True)

    def come(port: int, issued: Issued | None, secret: DeviceSecret | None = None) -> int:
        files = place.ca.client(issued)
        with Device("127.0.0.1", port, 7, 1, "doors", timeout=10, tls=files, secret=secret) as one:
            return one.publish_sequenced(b"open").code

    async def body(port: int) -> None:
        async with weir.connect(place.ca.url(port)) as w:
            await w.create_topic("doors")
            await w.fleets.put("doors", 1, 9, Level.SIGNED, 1, b"f" * 32)
            assert await asyncio.to_thread(come, port, own) == 0
            for impostor in (other, later):
                with pytest.raises(NotAuthenticated):
                    await asyncio.to_thread(come, port, impostor)
            for nobody in (anna, node, None):
                with pytest.raises(ProofNeeded):
                    await asyncio.to_thread(come, port, nobody)
            with pytest.raises(BadRequest, match="one of them"):
                await asyncio.to_thread(come, port, own, secret)
            # The same message, now by a proof and signed frames inside of TLS: it is known.
            assert await asyncio.to_thread(come, port, None, secret) == 0
            found = [one.origin async for one in w.reader("doors", follow=False)]
            assert [(one.hub, one.verified, one.generation) for one in found] == [(7, True, 0)]
            await w.fleets.replace_device(7, 1)
            assert await asyncio.to_thread(come, port, later) == 0
            with pytest.raises(NotAuthenticated):
                await asyncio.to_thread(come, port, own)

    place.run(body, key_file=str(key_file))


def versions(port: int, ca: TestCa, newest: ssl.TLSVersion, ciphers: str = "ALL") -> str:
    """Shake hands with no newer version than that, and return which it became."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca.bundle)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that it is old is the point
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = newest
    context.set_alpn_protocols([ALPN])
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as made,
    ):
        return str(made.version())


def test_old_versions_and_weak_ciphers_are_refused(place: Place) -> None:
    def tried(port: int, newest: ssl.TLSVersion, ciphers: str = "ALL") -> str:
        try:
            return versions(port, place.ca, newest, ciphers)
        except OSError as error:
            return type(error).__name__

    async def only_13(port: int) -> None:
        assert await asyncio.to_thread(tried, port, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        assert await asyncio.to_thread(tried, port, ssl.TLSVersion.TLSv1_2) == "SSLError"

    async def from_12(port: int) -> None:
        assert await asyncio.to_thread(tried, port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert await asyncio.to_thread(tried, port, ssl.TLSVersion.TLSv1_1) == "SSLError"
        weak = "ECDHE-ECDSA-AES128-SHA256"  # no AEAD
        assert await asyncio.to_thread(tried, port, ssl.TLSVersion.TLSv1_2, weak) == "SSLError"

    place.run(only_13)
    place.run(from_12, minimum="1.2")


def test_another_protocol_by_alpn_is_none_of_ours(place: Place) -> None:
    """What was meant for a web server and led here must not be read as requests."""

    def ask(port: int, protocols: list[str]) -> bytes:
        context = ssl.create_default_context(cafile=place.ca.bundle)
        if protocols:
            context.set_alpn_protocols(protocols)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as made,
        ):
            assert made.session is None or not made.session.has_ticket, "no tickets"
            made.sendall(wire.hello(7, 1, "doors", 0))
            return made.recv(100)

    async def body(port: int) -> None:
        for protocols in ([], ["http/1.1"]):
            reply = await asyncio.to_thread(ask, port, protocols)
            assert code_of(reply) == Unauthorized.code
        reply = await asyncio.to_thread(ask, port, [ALPN])
        assert code_of(reply) not in (0, Unauthorized.code), "there is no such topic"

    place.run(body)


def code_of(reply: bytes) -> int:
    """Return the code in the reply to a hello."""
    (code,) = struct.unpack_from(">H", reply, wire.HEADER.size)
    return int(code)


def test_a_stranger_inside_tls_has_its_10_s_and_16_kib_too(place: Place) -> None:
    async def body(port: int) -> None:
        context = ssl.create_default_context(cafile=place.ca.bundle)
        context.set_alpn_protocols([ALPN])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        # A client frame of 16 MiB, before hello.
        writer.write(b"\x02\0\1\0" + struct.pack("<I", 1 << 24) + bytes(8 + 20_000))
        assert await reader.read() == b"", "it hung up"
        writer.close()

    place.run(body)


def test_half_a_handshake_is_cut(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.host.strangers.STRANGER_SECONDS", 0.2)

    async def body(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100))
        assert await reader.read() == b""
        writer.close()

    place.run(body)


def test_a_handshake_of_16_kib_is_cut(place: Place) -> None:
    async def body(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # A client hello that says it has 60,000 bytes, in records of 1,000.
        part = b"\x01\x00\xea\x60\x03\x03" + bytes(994)
        for _ in range(20):
            writer.write(b"\x16\x03\x01\x03\xe8" + part)
            part = bytes(1_000)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 20) in (
                b"",
                b"\x15\x03\x01\x00\x02\x02\x32",
            )
        writer.close()

    place.run(body)


def test_a_session_ends_with_its_certificate(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.server.network.certificate_files._SWEEP_SECONDS", 0.0)
    anna = place.ca.issue("user/default/anna", days=1)

    async def body(port: int) -> None:
        async with (
            weir.connect(place.ca.url(port, anna)) as w,
            weir.connect(place.ca.url(port)) as other,
        ):
            await w.create_topic("doors")
            ended = connection_of(w).over
            other_over = connection_of(other).over
            clock = acceptor.time.time
            monkeypatch.setattr(acceptor.time, "time", lambda: clock() + 2 * 86_400)
            await asyncio.wait_for(ended.wait(), 10)
            monkeypatch.undo()
            assert not other_over.is_set(), "who has no certificate has no end"

    place.run(body)


def connection_of(client: Any) -> Connection:
    """Return the connection at home."""
    found = pool_of(client).home
    assert found is not None
    return found


def test_the_figures_tell_of_handshakes_and_of_the_certificate(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Metrics] = []
    init = Metrics.__init__
    monkeypatch.setattr(
        Metrics, "__init__", lambda self, *args: (made.append(self), init(self, *args))[1]
    )

    async def body(port: int) -> None:
        async with weir.connect(place.ca.url(port)):
            await refusal_of(place.ca.url(port) + "&server_name=broker9")
        (metrics,) = made
        text = await metrics.text()
        figures = dict(re.findall(r"^(weir_tls_\w+) (\S+)$", text, re.MULTILINE))
        assert int(figures["weir_tls_handshakes_total"]) >= 1
        assert int(figures["weir_tls_failed_total"]) >= 1
        assert figures["weir_tls_waiting"] == figures["weir_tls_files_unused"] == "0"
        assert float(figures["weir_tls_handshake_seconds_total"]) > 0
        ends = float(figures["weir_tls_certificate_ends_seconds"])
        assert abs(ends - place.node.ends.timestamp()) < 1

    place.run(body, metrics="127.0.0.1:0")


def test_a_certificate_of_a_user_of_this_set_is_that_user(place: Place) -> None:
    """A node's, a device's and an unknown user's are nobody's, in the same words as none at all."""
    anna, otto = (place.ca.issue(f"user/default/{name}") for name in ("anna", "otto"))
    node, lock = place.ca.issue("node/2"), place.ca.issue("device/7/0")

    async def body(port: int) -> None:
        async with weir.connect(place.ca.url(port)) as w:
            await w.access.create_user("root", "rr", ["admin"])
            await w.access.create_user("anna", "aa", ["admin"])
        root = place.ca.url(port).replace("//", "//root@")
        async with weir.connect(root, password="rr") as w:
            await w.access.set_mode("closed")
            async with weir.connect(place.ca.url(port, anna)) as by_certificate:
                state = await by_certificate.access.describe()
                assert {one.name for one in state.users} == {"default/anna", "default/root"}
            alone = await refusal_of(place.ca.url(port))
            for other in (otto, node, lock):
                assert await refusal_of(place.ca.url(port, other)) == alone
            assert "this set is closed" in alone
            await w.access.revoke_user("anna")
            assert await refusal_of(place.ca.url(port, anna)) == alone

    place.run(body)
