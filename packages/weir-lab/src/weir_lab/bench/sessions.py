"""Sessions of each kind that can be revoked: how each works at a loaded closed set, and by what.

A session works until an error ends it. It tells when what it was served last was sent, so that one
is seen that is served behind its revocation.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from weir.access.devices import derive_secret
from weir.client.client import Client, connect
from weir.device.client import Client as Device
from weir.device.connection import DeviceSecret
from weir.server.network.certificate_files import ASKED, states
from weir.testing.nodes import NodeSet
from weir.tls.authority import opened
from weir.tls.files import ClientFiles
from weir_lab.bench.sides.certified import Certified

#: The second has one order over its partitions; the third holds one message, for clients that then
#: wait.
TOPIC, LEDGER, STILL = "orders", "ledger", "still"
FIRST_HUB = 1_000
#: What a value begins with: when it was sent, in monotonic nanoseconds.
SENT_BYTES = 8
#: Users and devices that publish do so this often.
BETWEEN_S = 0.005
_TOKEN_S = 3_600
#: So many requests at once, of a user that may send one a second.
_QUEUED = 8
#: They are in line by then.
_IN_LINE_S = 0.1
_READ_WITHIN_S = 15.0
_LOOK_S = 0.01


@dataclass(slots=True)
class Session:
    """One session at work: when what it was served last was sent, in monotonic ns."""

    served: asyncio.Event = field(default_factory=asyncio.Event)
    sent_ns: int = 0

    def serve(self, sent_ns: int) -> None:
        """It got a message, or the confirm of one, that was sent then."""
        self.sent_ns = max(self.sent_ns, sent_ns)
        self.served.set()


@dataclass(frozen=True, slots=True)
class Target:
    """The set that runs: its administrator, the password of all users, the fleet's key, the CA's
    folder, and the address of a relay.
    """

    nodes: NodeSet
    root: Client
    password: str
    fleet_key: bytes
    certified: Certified
    relay: str

    def connect(self, number: int) -> AbstractAsyncContextManager[Client]:
        """Connect as the user of this number, by password."""
        return connect(as_user(self.nodes.url, user_of(number)), password=self.password)

    def files(self, who: str) -> ClientFiles:
        """Issue a certificate, and carry it to who connects by it: the CA forgets it when it is
        revoked.
        """
        issued, ca = self.certified.issue(who), self.certified.ca
        carried = ca.parent / "carried"
        carried.mkdir(exist_ok=True)
        of, key = (shutil.copy(one, carried) for one in (issued.certificate, issued.key))
        return ClientFiles(self.certified.files(mutual=False).ca, str(of), str(key))

    def revoke_certificate(self, name: str) -> int:
        """Revoke what the CA issued by this name; return how many nodes have not read that in time,
        as `weir cert revoke` and `weir cert reload` do.
        """
        with opened(self.certified.ca) as ca:
            ca.revoke(name)
        asked, deadline = secrets.token_hex(8), time.monotonic() + _READ_WITHIN_S
        folders = [self.nodes.node(one.node).folder for one in self.nodes.members]
        for folder in folders:
            (folder / ASKED).write_text(asked, encoding="utf-8")
        while (late := _unread(folders, asked)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return late


def _unread(folders: list[Path], asked: str) -> int:
    return sum(
        any(state.asked != asked or state.problem for state in states(folder).values())
        for folder in folders
    )


#: Does the work of the session of this number until an error ends it.
Work = Callable[[Target, int, Session], Awaitable[None]]


class Kind(NamedTuple):
    """How sessions of a kind work, and what of theirs is revoked."""

    work: Work
    by: Literal["user", "device", "certificate"] = "user"


async def _publish(target: Target, number: int, session: Session) -> None:
    async with target.connect(number) as client:
        while True:
            sent_ns = time.monotonic_ns()
            await client.publish(TOPIC, value(sent_ns, SENT_BYTES))
            session.serve(sent_ns)
            await asyncio.sleep(BETWEEN_S)


async def _read(target: Target, number: int, session: Session) -> None:
    async with target.connect(number) as client:
        await _follow(client, session)


async def _read_by_token(target: Target, number: int, session: Session) -> None:
    token = await target.root.access.issue_token(_TOKEN_S, user=user_of(number))
    async with connect(target.nodes.url, token=token.token) as client:
        await _follow(client, session)


async def _read_by_certificate(target: Target, number: int, session: Session) -> None:
    files = await asyncio.to_thread(target.files, f"user/default/{user_of(number)}")
    of = f"&certificate={files.certificate}&key={files.key}"
    async with connect(target.certified.url + of) as client:
        await _follow(client, session)


async def _read_at_relay(target: Target, number: int, session: Session) -> None:
    url = as_user(target.relay, user_of(number))
    async with connect(url, password=target.password) as client:
        await _follow(client, session)


async def _scatter(target: Target, number: int, session: Session) -> None:
    async with target.connect(number) as client:
        while True:
            sent_ns = time.monotonic_ns()
            async with client.scatter() as scattering:
                for partition in range(2):
                    scattering.publish(LEDGER, value(sent_ns, SENT_BYTES), partition=partition)
            session.serve(sent_ns)
            await asyncio.sleep(BETWEEN_S)


async def _merge(target: Target, number: int, session: Session) -> None:
    async with target.connect(number) as client:
        await _follow(client, session, LEDGER)


async def _take_turns(target: Target, number: int, session: Session) -> None:
    async with (
        target.connect(number) as client,
        client.consumer(
            LEDGER, cluster=user_of(number), mode="ordered", start="latest"
        ) as consumer,
    ):
        async for message in consumer:
            session.serve(_sent_ns(message.value))
            await message.ack()


async def _follow(client: Client, session: Session, topic: str = TOPIC) -> None:
    async with client.reader(topic, start="latest") as reader:
        async for message in reader:
            session.serve(_sent_ns(message.value))


async def _consume(target: Target, number: int, session: Session) -> None:
    async with (
        target.connect(number) as client,
        client.consumer(TOPIC, cluster=user_of(number), start="latest") as consumer,
    ):
        async for message in consumer:
            session.serve(_sent_ns(message.value))
            await message.ack()


async def _await_news(target: Target, number: int, session: Session) -> None:
    """Read the only message of a topic, and wait for another one."""
    async with target.connect(number) as client, client.reader(STILL, start="earliest") as reader:
        async for message in reader:
            session.serve(_sent_ns(message.value))


async def _wait_in_line(target: Target, number: int, session: Session) -> None:
    """Make more requests at once than a quota allows: they wait until there is room for them."""
    async with target.connect(number) as client:
        await client.describe(TOPIC)
        await target.root.quotas.set(f"user:default/{user_of(number)}", {"requests": 1})
        waiting = [asyncio.ensure_future(client.describe(TOPIC)) for _ in range(_QUEUED)]
        try:
            await asyncio.sleep(_IN_LINE_S)
            session.serve(0)
            while True:
                await asyncio.gather(*waiting)
                waiting = [asyncio.ensure_future(client.describe(TOPIC)) for _ in range(_QUEUED)]
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def _publish_as_device(target: Target, number: int, session: Session) -> None:
    hub = FIRST_HUB + number
    secret = DeviceSecret(derive_secret(target.fleet_key, target.nodes.system, hub, 0))
    await _be_device(target, number, session, secret, None)


async def _publish_by_certificate(target: Target, number: int, session: Session) -> None:
    files = await asyncio.to_thread(target.files, f"device/{FIRST_HUB + number}/0")
    await _be_device(target, number, session, None, files)


async def _be_device(
    target: Target, number: int, session: Session, secret: DeviceSecret | None,
    files: ClientFiles | None,
) -> None:  # fmt: skip
    loop, over = asyncio.get_running_loop(), threading.Event()
    at = target.nodes.members[number % len(target.nodes.members)]

    def work() -> None:
        hub = FIRST_HUB + number
        with Device(at.host, at.port, hub, 1, TOPIC, secret=secret, tls=files) as device:
            while not over.wait(BETWEEN_S):
                sent_ns = time.monotonic_ns()
                device.publish_sequenced(value(sent_ns, SENT_BYTES))
                loop.call_soon_threadsafe(session.serve, sent_ns)

    try:
        await asyncio.to_thread(work)
    finally:
        over.set()


#: What is revoked in turn.
KINDS: dict[str, Kind] = {
    "producer": Kind(_publish),
    "reader": Kind(_read),
    "consumer": Kind(_consume),
    "token": Kind(_read_by_token),
    "device": Kind(_publish_as_device, "device"),
    "scattering": Kind(_scatter),
    "total order": Kind(_merge),
    "turn": Kind(_take_turns),
    "long poll": Kind(_await_news),
    "in line for a quota": Kind(_wait_in_line),
    "at a relay": Kind(_read_at_relay),
    "certificate": Kind(_read_by_certificate, "certificate"),
    "device's certificate": Kind(_publish_by_certificate, "certificate"),
}


def certificate_of(kind: str, number: int) -> str:
    """Return by which name the CA has the certificate of the session of this number."""
    if kind == "certificate":
        return f"user-{user_of(number)}@default"
    return f"device-{FIRST_HUB + number}-0"


def as_user(url: str, user: str) -> str:
    """Return what a user connects to, from what anybody does."""
    return url.replace("//", f"//{user}@", 1)


def user_of(number: int) -> str:
    """Return the name of the user whose session has this number."""
    return f"user{number}"


def value(sent_ns: int, size: int) -> bytes:
    """Return a value of so many bytes that says when it was sent."""
    return sent_ns.to_bytes(SENT_BYTES, "big").ljust(size, b".")


def _sent_ns(value: bytes) -> int:
    return int.from_bytes(value[:SENT_BYTES], "big")
