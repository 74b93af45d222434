"""Attacks on a set that a node has joined by a secret. The attacker knows the command that founded
that node, has read the network traffic meanwhile, and has copies of the folders of both nodes.

A closed set has mutual TLS on its links: without it, an attacker that reads traffic may repeat it.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from weir.broker.api.settings import Member
from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL, JOIN_SECRET_BYTES
from weir.protocol.client.nodes import ChangeNode, ListNodes
from weir.protocol.link import (
    LINK_PROTOCOL,
    Lane,
    LinkHello,
    announce,
    encode_greeting,
    join_key,
    vouch,
)
from weir.server.disk.node_folder import NodeFolder, Part, new_system
from weir.testing.nodes import HOST, free_ports, running_node
from weir.tls.authority import begun
from weir.tls.identity import node as node_identity
from weir_lab.attack.targets import Target, is_in
from weir_lab.attack.wire import first_hello, is_let_in

#: What these attacks are called; the last one is that of a stolen folder.
SPENT, REPEATED, STOLEN = (
    "join by a spent secret", "repeat what a node that joined said", "be a node by its folder"
)  # fmt: skip
ATTACKS = (SPENT, REPEATED)
FIRST, ADDED = 1, 2
_JOINS_WITHIN = 60.0
_LOOK = 0.05
#: Longer than a node takes from one tick to the next.
_TICKS = 0.25


class Joined(msgspec.Struct, frozen=True):
    """A set of two nodes, the second of which came by a join secret; and what an attacker has:
    that secret, what it said to the first one (each connection's bytes), and copies of both
    folders. `target` is the first node.
    """

    target: Target
    secret: bytes
    said: list[bytes]
    folders: tuple[Path, Path]


class Recorder:
    """A port that carries connections to another one, and keeps what who connects says."""

    def __init__(self, port: int, to: int) -> None:
        """Listen at `port`; carry what comes to port `to` of this machine."""
        self.said: list[bytearray] = []
        self._to = to
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Carry nothing any more."""
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                with suppress(OSError):
                    called = socket.create_connection((HOST, self._to))
                    self._sockets += (caller, called)
                    self.said.append(said := bytearray())
                    for ends in ((caller, called, said), (called, caller, bytearray())):
                        threading.Thread(target=_carry, args=ends, daemon=True).start()


def _carry(source: socket.socket, to: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            kept += data
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)


@contextmanager
def joined_set(is_closed: bool, links: str = "require") -> Iterator[Joined]:
    """Run a set that a second node has joined by its secret; in a closed one, `links` is what
    `links.tls` is set to. Raises `WeirError` if that node does not come.
    """
    with tempfile.TemporaryDirectory(prefix="weir-joined-") as name, ExitStack() as stack:
        place, password = Path(name), secrets.token_hex(16)
        first, second, between = free_ports(3)
        whole = NodeFolder(place / "one").found(1, part=Part(FIRST, (Member(FIRST, HOST, first),)))
        bundle, files = "", [dict[str, str](), dict[str, str]()]
        if is_closed:
            bundle, files = _certificates(place / "ca", whole.system, links)
        stack.enter_context(running_node(place / "one", shards=1, port=first, **files[0]))
        target = Target(
            HOST, first, whole.system, str(place / "one"), is_closed, password, bundle,
        )  # fmt: skip
        if is_closed:
            _close(target, password)
        secret = secrets.token_bytes(JOIN_SECRET_BYTES)
        who = ("root", password) if is_closed else ("", "")
        adding = ChangeNode("add", ADDED, HOST, second, join_key(secret))
        if not target.answers(*who, [adding]):
            raise WeirError("the target takes no other node: nobody can join it")
        recorder = Recorder(between, first)
        stack.callback(recorder.close)
        members = (Member(FIRST, HOST, between),)
        part = Part(ADDED, members, whole.system, join_key=join_key(secret))
        folder = NodeFolder(place / "two")
        folder.found(1, part=part)
        if is_closed:
            folder.note_access_mode("closed")
        stack.enter_context(running_node(place / "two", shards=1, port=second, **files[1]))
        _wait_until_joined(target)
        copies = place / "copies" / "one", place / "copies" / "two"
        for copy in copies:
            shutil.copytree(place / copy.name, copy, ignore_dangling_symlinks=True)
        yield Joined(target, secret, [bytes(one) for one in recorder.said], copies)


def _certificates(folder: Path, system: int, links: str) -> tuple[str, list[dict[str, str]]]:
    """Return the bundle, and the settings of both nodes."""
    with begun(folder, system) as ca:
        issued = [ca.issue(node_identity(system, one), (HOST,), 2) for one in (FIRST, ADDED)]
        bundle = str(ca.bundle)
    return bundle, [
        {"certificate": str(one.certificate), "key": str(one.key), "trust": bundle,
         "tls": links}
        for one in issued
    ]  # fmt: skip


def _close(target: Target, password: str) -> None:
    with msgspec.structs.replace(target, is_closed=False).connect() as anybody:
        anybody.access.create_user("root", password, ["admin"])
    with target.administrator() as root:
        root.access.set_mode("closed")


def _wait_until_joined(target: Target) -> None:
    """Return once the registry of the first node has the birth of the second, and its links know
    it, which spends the secret. The registry tells so of a node whose level and shards it knows;
    links are told at the next tick.
    """
    deadline = time.monotonic() + _JOINS_WITHIN
    who = ("root", target.password) if target.is_closed else ("", "")
    while True:
        found = target.answers(*who, [ListNodes()])
        if any(row.id == ADDED and row.shards for listed in found for row in listed.nodes):
            break
        if time.monotonic() > deadline:
            raise WeirError(f"the added node did not come within {_JOINS_WITHIN:g} s")
        time.sleep(_LOOK)
    time.sleep(_TICKS)
    for _ in range(2):  # a node that was late ticks before it answers a second time
        target.answers(*who, [ListNodes()])


# -- attacks -------------------------------------------------------------------------------------


def attack(joined: Joined) -> list[str]:
    """Return which of `ATTACKS` achieve what they are named after."""
    tried = {SPENT: _spent(joined), REPEATED: _repeated(joined)}
    return [name for name, hellos in tried.items() if _is_let_in(joined.target, hellos)]


def steal(joined: Joined) -> list[str]:
    """Return what the copies of both folders give away: the secret, and links to the first node."""
    found = [STOLEN] if _is_let_in(joined.target, _stolen(joined)) else []
    held = any(is_in(joined.secret, one) for one in joined.folders)
    return [*found, "find the join secret"] if held else found


def _is_let_in(target: Target, hellos: Iterable[bytes]) -> bool:
    """Return whether any of these is taken for a node's hello, without TLS or, where there is
    some, by TLS without a certificate.
    """
    contexts = [None, target.context()] if target.bundle else [None]
    return any(is_let_in(target, said, one) for said in hellos for one in contexts)


def _hello(joined: Joined, birth: int, key: bytes, proven: int = 0) -> bytes:
    """Return a hello of the added node that tells a birth, announces it by a join key, and proves
    the birth `proven`, if one is given.
    """
    hello = LinkHello(
        LINK_PROTOCOL, joined.target.system, 0, ADDED, 0, 1, 1, FORMAT_LEVEL,
        secrets.randbits(62), Lane.QUICK, FIRST, 0, HOST, joined.target.port, birth,
        secrets.randbits(62),
    )  # fmt: skip
    return encode_greeting(
        msgspec.structs.replace(hello, joins=announce(key, hello), proof=vouch(proven, hello))
    )


def _spent(joined: Joined) -> list[bytes]:
    """Return hellos of another folder that was founded by the same command."""
    key, birth = join_key(joined.secret), new_system()
    return [_hello(joined, 0, key), _hello(joined, birth, key), _hello(joined, birth, key, birth)]


def _repeated(joined: Joined) -> list[bytes]:
    """Return what the added node said first on each of its connections; and what is made of the
    births that it told.
    """
    said, key = list[bytes](), join_key(joined.secret)
    for stream in joined.said:
        found = first_hello(stream)
        if found is None:
            said.append(stream)  # it is TLS
            continue
        hello, greeting = found
        said.append(greeting)
        if hello.birth:
            said.append(_hello(joined, hello.birth, key, hello.birth))
    return said


def _stolen(joined: Joined) -> list[bytes]:
    """Return hellos by the births that the folders of both nodes hold, and the join key."""
    one, two = (NodeFolder(copy) for copy in joined.folders)
    founded = two.founded()
    assert founded is not None
    births = {founded.birth, one.births().get(ADDED, founded.birth)}
    return [_hello(joined, birth, founded.join_key, birth) for birth in births]
