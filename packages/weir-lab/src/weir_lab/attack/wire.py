"""What attackers say: frames of both dialects, and hellos of nodes, over a socket; and what came
back.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from weir.access.devices import Claim, prove_device
from weir.errors import RemoteProtocolError
from weir.protocol import device as d
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_reply, encode_request
from weir.protocol.device import BY_HUB, DeviceReplies, DeviceReply
from weir.protocol.link import (
    Greeting,
    LinkHello,
    Verdict,
    decode_answer,
    decode_hello,
)
from weir.protocol.proof import Challenge, DeviceProof
from weir_lab.attack.targets import Target

#: What attackers take for a device's nonce.
NONCE = b"attackers' nonce"
#: How long a node may take to answer a hello.
_LINK_SECONDS = 2.0
_HELLO_BYTES_MAX = 1_024


@contextmanager
def connection(target: Target, by_tls: bool = False) -> Iterator[socket.socket]:
    """Connect, and close in the end."""
    sock = target.dial(by_tls)
    try:
        yield sock
    finally:
        sock.close()


def ask(sock: socket.socket, *requests: m.Request) -> list[Any]:
    """Send client requests at once; return the replies until the node closes, or all are there."""
    stream, found = ClientStream(), list[Any]()
    sock.sendall(b"".join(
        bytes(part) for number, one in enumerate(requests, 1)
        for part in encode_request(one, number)
    ))  # fmt: skip
    while len(found) < len(requests):
        data = received(sock)
        if not data:
            break
        found += [decode_reply(frame) for frame in stream.receive(data)]
    return found


def say(sock: socket.socket, frames: bytes, count: int) -> list[DeviceReply]:
    """Send device frames; return up to `count` replies."""
    replies, found = DeviceReplies(), list[DeviceReply]()
    sock.sendall(frames)
    while len(found) < count:
        data = received(sock)
        if not data:
            break
        try:
            found += replies.receive(data)
        except RemoteProtocolError:
            break
    return found


def received(sock: socket.socket) -> bytes:
    """Return what comes; nothing if the node closes, or says nothing for too long."""
    try:
        return sock.recv(65_536)
    except OSError:
        return b""


def challenged(sock: socket.socket, hub: int, topic: str) -> Challenge | None:
    """Say hello as a hub; return the challenge, if it is asked for a proof."""
    replies = say(sock, d.hello(hub, 1, topic), 1)
    content = replies[0].content if replies else None
    return content if isinstance(content, Challenge) else None


def claim_of(asked: Challenge, hub: int, topic: str, level: int) -> Claim:
    """Return what a hub claims that answers a challenge."""
    return Claim(asked.system, hub, 0, 1, 1, BY_HUB, level, topic, asked.nonce, NONCE)


def prove(secret: bytes, claim: Claim) -> bytes:
    """Return the frame that proves a claim by a secret."""
    return prove_with(claim, prove_device(secret, claim))


def prove_with(claim: Claim, proof: bytes) -> bytes:
    """Return the frame of a claim with this proof."""
    return d.prove(DeviceProof(
        0, claim.generation, claim.key_version, claim.level, claim.device_nonce, proof
    ))  # fmt: skip


def is_let_in(target: Target, greeting: bytes, context: ssl.SSLContext | None = None) -> bool:
    """Return whether a peer that sends a node's greeting is accepted; without a context, without
    TLS.
    """
    with suppress(OSError, RemoteProtocolError):
        sock = target.plain()
        sock.settimeout(_LINK_SECONDS)
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname=target.host)
        with sock:
            sock.sendall(greeting)
            body = Greeting().receive(received(sock))
            return body is not None and decode_answer(body).verdict == Verdict.ACCEPTED
    return False


def first_hello(said: bytes) -> tuple[LinkHello, bytes] | None:
    """Return the hello that who links says first, and its bytes; None if that is none, as in TLS.
    What comes behind it was sent once it was answered.
    """
    for size in range(1, min(len(said), _HELLO_BYTES_MAX) + 1):
        with suppress(RemoteProtocolError):
            if (body := Greeting().receive(said[:size])) is not None:
                return decode_hello(body), said[:size]
    return None
