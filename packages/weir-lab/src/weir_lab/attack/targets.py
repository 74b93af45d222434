"""The targets of attacks: an open node, and a closed one with TLS, users, and a fleet of devices.

Both have the same topics. The closed node takes peers without TLS, too, as one does whose devices
have none: so each attack is tried by both ways.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import ssl
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from weir.access.devices import Level, derive_secret
from weir.access.signatures import PrivateKey, load
from weir.access.tokens import write_jwks
from weir.access.wrapping import write_key_line
from weir.client.access import AccessRule
from weir.client.arguments import parse_url
from weir.client.connection.credentials import find_credentials, split_user
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import SYSTEM
from weir.client.core.retries import Backoff
from weir.client.sync.client import Client, connect
from weir.errors import WeirError
from weir.protocol.client.nodes import ChangeNode
from weir.protocol.link import join_key
from weir.server.disk.node_folder import NodeFolder
from weir.testing.nodes import running_node
from weir.tls.authority import begun, opened
from weir.tls.identity import parse_identity

#: Whose tokens are taken for users of one namespace, and for which audience.
ISSUER, AUDIENCE, TENANT = "issuer", "the set", "tenant"
LOCKS, SIGNED, DOOMED, OWN = "locks", "alarms", "doomed", "mallory"
#: Hubs of the fleet that proves, of the one that signs, and the one that the attacker has.
FIRST, LAST, SIGNS_FROM, SIGNS_TO = 40, 49, 50, 59
VICTIM, INSIDER, SIGNER = 42, 41, 51
SECONDS = 5.0
_HOSTS = ("127.0.0.1", "localhost")


class Target(msgspec.Struct, frozen=True):
    """A node, and what an attacker may have: a user with a topic of its own, the secrets of two
    devices, certificates that are no good. `marks` are secrets that nobody may find anywhere.
    """

    host: str
    port: int
    system: int
    folder: str
    is_closed: bool
    password: str = ""
    bundle: str = ""
    insider: bytes = b""
    signer: bytes = b""
    #: The private key, in PEM, of an issuer of tokens.
    issuer: bytes = b""
    #: What is wrong with it: certificate and key.
    bad: dict[str, tuple[str, str]] = {}
    marks: dict[str, bytes] = {}

    def dial(self, by_tls: bool = False) -> socket.socket:
        """Connect, as a stranger does."""
        made = self.plain()
        if not by_tls:
            return made
        return self.context().wrap_socket(made, server_hostname=self.host)

    def plain(self) -> socket.socket:
        """Connect without TLS, from an address of its own: who fails is slowed by its address."""
        own = ".".join(map(str, (127, *(1 + secrets.randbelow(250) for _ in range(3)))))
        made = socket.create_connection((self.host, self.port), SECONDS, (own, 0))
        made.settimeout(SECONDS)
        return made

    def context(self) -> ssl.SSLContext:
        """Return what a peer connects with that has no certificate."""
        context = ssl.create_default_context(cafile=self.bundle)
        context.set_alpn_protocols(["weir"])
        return context

    def connect(self, user: str = "", password: str = "") -> Client:
        """Return a client, as `user` if one is named; by TLS where there is some."""
        return connect(self._url(user), password=password or None, request_timeout=SECONDS)

    def answers(self, user: str, password: str, requests: Sequence[Any]) -> list[Any]:
        """Make requests as `user` (empty: as nobody), one after another, which a client may have no
        method for; return the replies to those that were not refused.
        """
        return asyncio.run(self._answers(user, password, requests))

    async def _answers(self, user: str, password: str, requests: Sequence[Any]) -> list[Any]:
        hosts = parse_url(split_user(self._url(user))[0])
        system, found = SYSTEM.get(), list[Any]()
        network = NetworkClient(
            hosts, name=user, retry=Backoff(), request_timeout=SECONDS, random=random.Random(),
            system=system, credentials=find_credentials(user, password or None, None, hosts),
        )  # fmt: skip
        await network.start()
        try:
            for request in requests:
                with suppress(WeirError, TimeoutError):
                    found.append(await network.request(request, object, again=False))
        finally:
            await network.close()
        return found

    def _url(self, user: str) -> str:
        scheme, query = ("weirs", f"?ca={self.bundle}") if self.bundle else ("weir", "")
        at = f"{user}@" if user else ""
        return f"{scheme}://{at}{self.host}:{self.port}{query}"

    @contextmanager
    def added_node(self, *secrets: bytes) -> Iterator[int]:
        """Add a node that never connects; again with each of the secrets, like an administrator who
        has lost the command that founds it. Returns its number.
        """
        who = ("root", self.password) if self.is_closed else ("", "")
        adding = [ChangeNode("add", 1, self.host, self.port)]
        adding += [ChangeNode("add", 0, self.host, 1, join_key(secret)) for secret in secrets]
        answers = self.answers(*who, adding)
        if len(answers) < len(adding):
            raise WeirError("the target takes no other node: nobody can come in its place")
        node = max(row.id for row in answers[-1].nodes)
        try:
            yield node
        finally:
            self.answers(*who, [ChangeNode("remove", node)])

    def administrator(self) -> Client:
        """Return the client of a user that may see everything."""
        return self.connect("root", self.password) if self.is_closed else self.connect()


@contextmanager
def open_target() -> Iterator[Target]:
    """Run a node on which everybody may do everything."""
    with tempfile.TemporaryDirectory(prefix="weir-attack-") as name:
        data = Path(name) / "data"
        system = NodeFolder(data).found(1).system
        with running_node(data, shards=1) as node:
            target = Target(node.host, node.port, system, str(data), is_closed=False)
            with target.administrator() as root:
                _make_topics(root)
            yield target


@contextmanager
def closed_target() -> Iterator[Target]:
    """Run a node that is closed, with users, fleets and certificates."""
    with tempfile.TemporaryDirectory(prefix="weir-attack-") as name, ExitStack() as stack:
        place = Path(name)
        system = NodeFolder(place / "data").found(1).system
        bundle, files, bad = _certificates(place, system)
        key = secrets.token_bytes(32)
        key_file = place / "keys"
        key_file.write_bytes(write_key_line(key))
        os.chmod(key_file, 0o600)
        node = stack.enter_context(
            running_node(place / "data", shards=1, key_file=str(key_file), **files)
        )
        fleet, password = secrets.token_bytes(32), secrets.token_hex(16)
        target = Target(
            node.host, node.port, system, str(place / "data"), True, password, bundle,
            derive_secret(fleet, system, INSIDER, 0), derive_secret(fleet, system, SIGNER, 0),
            bad=bad,
            issuer=_issuer_key(), marks={
             "the password": password.encode(), "a fleet's key": fleet, "the wrapping key": key,
             "a device's secret": derive_secret(fleet, system, VICTIM, 0)},
        )  # fmt: skip
        with msgspec.structs.replace(target, is_closed=False).connect() as first:
            _make_topics(first)
            first.access.create_user("root", password, ["admin"])
        with target.administrator() as root:
            _let_in(root, fleet)
            jwks = write_jwks([PrivateKey(target.issuer).public(ISSUER)])
            root.access.trust_issuer(ISSUER, AUDIENCE, TENANT, jwks)
            root.access.create_token_key()
            root.access.create_user(f"{TENANT}/eve", "eve's own", ["own"])
        yield target


def is_in(mark: bytes, folder: Path) -> bool:
    """Return whether a secret is in a folder: as it is, in hex, or in base64."""
    forms = (mark, mark.hex().encode(), b64encode(mark))
    return any(
        form in file.read_bytes()
        for file in folder.rglob("*") if file.is_file() for form in forms
    )  # fmt: skip


def _issuer_key() -> bytes:
    """Return a new private key of Ed25519."""
    serialization = load("hazmat.primitives.serialization")
    key = load("hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey.generate()
    return bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ))  # fmt: skip


def _make_topics(root: Client) -> None:
    for topic in (LOCKS, SIGNED, DOOMED, OWN):
        root.create_topic(topic)
        root.publish(topic, b"a secret of its owner")


def _let_in(root: Client, fleet: bytes) -> None:
    """Let there be fleets and an attacker with a topic of its own, and close the set."""
    root.fleets.put("proving", FIRST, LAST, Level.PROOF, 1, fleet)
    root.fleets.put("signing", SIGNS_FROM, SIGNS_TO, Level.SIGNED, 1, fleet)
    for name, topic in (("proving", LOCKS), ("signing", SIGNED)):
        root.access.change_rules(f"fleet.{name}", [AccessRule(("publish",), "topic", topic)])
    own = AccessRule(("publish", "read", "consume", "alter"), "topic", OWN)
    root.access.change_rules("own", [own])
    root.access.create_user("mallory", "mallory's own", ["own"])
    root.access.set_mode("closed")


def _certificates(
    place: Path, system: int
) -> tuple[str, dict[str, str], dict[str, tuple[str, str]]]:
    """Return the bundle, the node's settings, and certificates that are not to be taken."""
    bad: dict[str, tuple[str, str]] = {}
    anna = parse_identity(f"weir://{system:x}/0/user/default/root")
    folder = place / "ca"
    with begun(folder, system, now=lambda: datetime.now(UTC) - timedelta(days=1)) as ca:
        mine = ca.issue(parse_identity(f"weir://{system:x}/0/node/1"), _HOSTS, 10)
        bundle = str(ca.bundle)
    for what, days in (("expired", -20.0), ("early", 20.0)):
        with opened(folder, lambda days=days: datetime.now(UTC) + timedelta(days=days)) as ca:  # type: ignore[misc]
            made = ca.issue(anna, (), 5)
            bad[what] = _moved(place / what, made.certificate, made.key)
    with opened(folder) as ca:
        made = ca.issue(anna, (), 5)
        stolen = place / "revoked"
        stolen.mkdir()
        bad["revoked"] = str(stolen / "certificate.pem"), str(stolen / "key.pem")
        for file, copy in zip((made.certificate, made.key), bad["revoked"], strict=True):
            Path(copy).write_bytes(file.read_bytes())
        ca.revoke(made.name)
    bad["of a node"] = str(mine.certificate), str(mine.key)
    with opened(folder) as ca:
        made = ca.issue(parse_identity(f"weir://{system:x}/0/device/{VICTIM}/0"), (), 5)
        bad["of a device"] = str(made.certificate), str(made.key)
    with begun(place / "foreign", system) as ca:
        made = ca.issue(anna, (), 5)
        bad["of a foreign CA"] = str(made.certificate), str(made.key)
    revoked = folder / "revoked.txt"
    files = {"certificate": str(mine.certificate), "key": str(mine.key), "trust": bundle}
    if revoked.exists():
        files["revoked"] = str(revoked)
    return bundle, files, bad


def _moved(place: Path, certificate: Path, key: Path) -> tuple[str, str]:
    place.mkdir()
    certificate.rename(place / "certificate.pem")
    key.rename(place / "key.pem")
    return str(place / "certificate.pem"), str(place / "key.pem")
