"""By TLS as without: devices stay with the crowd, all others move, and nothing is lost."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from rigs.certificates import TestCa
from rigs.tls_wires import End, Heard, Watching
from weir.protocol import device
from weir.server.network.poller import DevicePoller, ListeningSocket
from weir.server.network.tls import TlsAcceptor
from weir.tls.files import ServerTls, client_context, server_tls
from weir.tls.transport import TlsTransport

PING = device.frame(device.DeviceOpcode.PING, 1, b"")
CLIENT = b"\x02" + bytes(15)
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


class Peer(Heard):
    """The protocol of a connection, which may be given another transport."""

    transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def moved(self, transport: Any) -> None:
        self.transport = transport

    def update(self) -> None:
        self.transport.resume_reading()


class Acceptor(Watching):
    """Opens what begins with TLS."""

    def __init__(self, serving: ServerTls) -> None:
        super().__init__()
        self.serving = serving
        self.layers: list[TlsTransport] = []

    def accept(self, lower: Any, peer: Any, begins: Any) -> TlsTransport:
        make = partial(self.serving.context.wrap_bio, server_side=True)
        self.layers.append(TlsTransport(self, make, peer, lower, begins))
        peer.moved(self.layers[-1])
        return self.layers[-1]

    def check_plaintext(self, lower: Any, data: bytes) -> None:
        """All may do without."""


class Gathering:
    """Nothing is gathered."""

    frames = 0

    def gather(self) -> None:
        """Keep nothing."""

    def release(self) -> None:
        """Hand nothing on."""


async def say(acceptor: Acceptor, client: ssl.SSLContext, said: bytes) -> tuple[Peer, bytes, Any]:
    """Connect by hand, say something by TLS, be answered; return the peer, the answer, and what is
    below TLS at the end.
    """
    loop = asyncio.get_running_loop()
    came: list[Peer] = []

    def protocol() -> Peer:
        came.append(Peer())
        return came[-1]

    poller = DevicePoller(protocol, Gathering(), cast(TlsAcceptor, acceptor))
    listener = ListeningSocket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setblocking(False)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    poller.open(listener)
    end = End(client, is_server=False)
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, listener.getsockname())
        answered = False
        async with asyncio.timeout(20):
            while not end.heard.data:
                if data := end.wire.take():
                    await loop.sock_sendall(sock, data)
                if end.host.shook and said:
                    end.tls.write(said)
                    said = b""
                    continue
                if came and came[0].data and not answered:
                    came[0].transport.write(b"answer to " + came[0].data[:1])
                    answered = True
                if not said:
                    await asyncio.sleep(0.01)
                try:
                    end.tls.data_received(sock.recv(1 << 16))
                except BlockingIOError:
                    await asyncio.sleep(0)
        below = acceptor.layers[0].get_extra_info("socket")
    poller.shut()
    await asyncio.sleep(0.05)
    return came[0], end.heard.data, below


@LOOPS
@pytest.mark.parametrize(
    ("said", "stays"), [(PING, True), (CLIENT + bytes(200_000), False)], ids=["device", "client"]
)
def test_a_device_stays_and_a_client_moves(
    tmp_path: Path, run: Callable[..., Any], said: bytes, stays: bool
) -> None:
    ca = TestCa(tmp_path / "ca")
    acceptor = Acceptor(server_tls(ca.files(ca.issue("node/1"))))
    peer, answer, below = run(say(acceptor, client_context(ca.client()), said))
    assert answer == b"answer to " + said[:1]
    assert (type(below) is socket.SocketType) == stays, "the crowd's sockets are plain ones"
    assert said.startswith(peer.data[:16])
    assert acceptor.bytes == 0
    assert not acceptor.errors
