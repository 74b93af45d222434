"""How long a revocation takes until the session ends that it concerns, in a loaded closed set.

Users come one after another, each with one session of the kind whose turn it is. Once that was
served its user, or its device, is revoked, while others publish. The clock runs from the call that
revokes to the error that ends the session at its client. A session is late that gets a message, or
a confirm of one, that was sent after the revocation was confirmed.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from weir.access.devices import Level, derive_secret
from weir.client.access import AccessRule
from weir.client.client import Client, connect
from weir.client.producer.receipts import BatchReceipt
from weir.device.client import Client as Device
from weir.device.connection import DeviceSecret
from weir.errors import (
    AccessRevoked,
    BadRequest,
    LevelTooLow,
    NotAuthenticated,
    Unauthorized,
    WeirError,
)
from weir.model.limits import FORMAT_LEVEL_ACCESS
from weir.server.key_files import create_key_file
from weir.testing.nodes import SMALL, NodeSet, running_set
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.harness.spread import percentiles

#: The second has one order over its partitions.
TOPIC, LEDGER = "orders", "ledger"
_ROLE, _FLEET, _ROOT, _LOADER = "clerk", "locks", "root", "loader"
_FIRST_HUB = 1_000
_NODES = 3
#: Users and devices that publish do so this often.
_BETWEEN_S = 0.005
#: One in so many messages of the load goes to the topic in total order.
_ORDERED = 5
#: A session that lives on for so long counts as such.
_END_WITHIN_S = 15.0
_SERVED_WITHIN_S = 30.0
_TOKEN_S = 3_600
#: What a session ends with that was revoked.
_REVOKED = AccessRevoked, NotAuthenticated, Unauthorized
#: What a value begins with: when it was sent, in monotonic nanoseconds.
_SENT_BYTES = 8
Progress = Callable[[int], None]


class BenchFailed(WeirError):
    """A measurement came to no figure; the message says why."""


class Settings(msgspec.Struct, frozen=True):
    """So many revocations, beside `load` messages a second of `size` bytes."""

    revocations: int = 200
    load: int = 500
    size: int = 100
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(
            revocations=(self.revocations, len(KINDS), 100_000),
            load=(self.load, 1, 100_000), size=(self.size, _SENT_BYTES, 100_000),
        )  # fmt: skip


class OfKind(msgspec.Struct, frozen=True):
    """Sessions of one kind: how many were ended, of them `late`, and how long that took in ms."""

    kind: str
    ended: int
    late: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Result(msgspec.Struct, frozen=True):
    """What came of it. `unended` sessions went on, `late` ones were served what was sent after
    their revocation was confirmed, and `unreached` shards had not heard of it then. Of the load
    `load_per_s` messages a second were confirmed meanwhile.
    """

    revocations: int
    unended: int
    late: int
    unreached: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    load_per_s: float
    kinds: list[OfKind]

    @property
    def clean(self) -> bool:
        """Whether each session ended, and none was served anything behind its revocation."""
        return not (self.unended or self.late)


@dataclass(slots=True)
class _Session:
    """One session at work: when what it was served last was sent, in monotonic ns."""

    served: asyncio.Event = field(default_factory=asyncio.Event)
    sent_ns: int = 0

    def serve(self, sent_ns: int) -> None:
        """It got a message, or the confirm of one, that was sent then."""
        self.sent_ns = max(self.sent_ns, sent_ns)
        self.served.set()


@dataclass(frozen=True, slots=True)
class _Target:
    """The set that runs: its administrator, the password of all users, and the fleet's key."""

    nodes: NodeSet
    root: Client
    password: str
    fleet_key: bytes

    def url(self, user: str) -> str:
        """Return what a user connects to."""
        return self.nodes.url.replace("//", f"//{user}@")


#: Does the work of the session of this number until an error ends it.
_Work = Callable[[_Target, int, _Session], Awaitable[None]]


async def _publish(target: _Target, number: int, session: _Session) -> None:
    async with connect(target.url(_user(number)), password=target.password) as client:
        while True:
            sent_ns = time.monotonic_ns()
            await client.publish(TOPIC, _value(sent_ns, _SENT_BYTES))
            session.serve(sent_ns)
            await asyncio.sleep(_BETWEEN_S)


async def _read(target: _Target, number: int, session: _Session) -> None:
    async with connect(target.url(_user(number)), password=target.password) as client:
        await _follow(client, session)


async def _read_by_token(target: _Target, number: int, session: _Session) -> None:
    token = await target.root.access.issue_token(_TOKEN_S, user=_user(number))
    async with connect(target.nodes.url, token=token.token) as client:
        await _follow(client, session)


async def _scatter(target: _Target, number: int, session: _Session) -> None:
    async with connect(target.url(_user(number)), password=target.password) as client:
        while True:
            sent_ns = time.monotonic_ns()
            async with client.scatter() as scattering:
                for partition in range(2):
                    scattering.publish(LEDGER, _value(sent_ns, _SENT_BYTES), partition=partition)
            session.serve(sent_ns)
            await asyncio.sleep(_BETWEEN_S)


async def _merge(target: _Target, number: int, session: _Session) -> None:
    async with connect(target.url(_user(number)), password=target.password) as client:
        await _follow(client, session, LEDGER)


async def _take_turns(target: _Target, number: int, session: _Session) -> None:
    async with (
        connect(target.url(_user(number)), password=target.password) as client,
        client.consumer(LEDGER, cluster=_user(number), mode="ordered", start="latest") as consumer,
    ):
        async for message in consumer:
            session.serve(_sent_ns(message.value))
            await message.ack()


async def _follow(client: Client, session: _Session, topic: str = TOPIC) -> None:
    async with client.reader(topic, start="latest") as reader:
        async for message in reader:
            session.serve(_sent_ns(message.value))


async def _consume(target: _Target, number: int, session: _Session) -> None:
    async with (
        connect(target.url(_user(number)), password=target.password) as client,
        client.consumer(TOPIC, cluster=_user(number), start="latest") as consumer,
    ):
        async for message in consumer:
            session.serve(_sent_ns(message.value))
            await message.ack()


async def _publish_as_device(target: _Target, number: int, session: _Session) -> None:
    loop, over = asyncio.get_running_loop(), threading.Event()
    member = target.nodes.members[number % _NODES]
    hub = _FIRST_HUB + number
    secret = DeviceSecret(derive_secret(target.fleet_key, target.nodes.system, hub, 0))

    def work() -> None:
        with Device(member.host, member.port, hub, 1, TOPIC, secret=secret) as device:
            while not over.wait(_BETWEEN_S):
                sent_ns = time.monotonic_ns()
                device.publish_sequenced(_value(sent_ns, _SENT_BYTES))
                loop.call_soon_threadsafe(session.serve, sent_ns)

    try:
        await asyncio.to_thread(work)
    finally:
        over.set()


#: What is revoked in turn: how a session works, and whether it is a device's.
KINDS: dict[str, _Work] = {
    "producer": _publish,
    "reader": _read,
    "consumer": _consume,
    "token": _read_by_token,
    "device": _publish_as_device,
    "scattering": _scatter,
    "total order": _merge,
    "turn": _take_turns,
}


def measure(settings: Settings, progress: Progress) -> Result:
    """Run the test on a set of its own, which is removed afterwards; tell revocations done.

    Raises `ValueError` for settings that make no sense, and `WeirError` for a run without a figure.
    """
    settings.check()
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=settings.folder) as name:
        key_file = Path(name) / "keys"
        create_key_file(key_file)
        folder = Path(name) / "set"
        folder.mkdir()
        given = {**SMALL, "WEIR__ACCESS__KEY_FILE": str(key_file)}
        with running_set(folder, _NODES, settings=given) as nodes:
            return asyncio.run(_measure(settings, nodes, progress))


async def _measure(settings: Settings, nodes: NodeSet, progress: Progress) -> Result:
    password, fleet_key = secrets.token_hex(16), secrets.token_bytes(32)
    async with connect(nodes.url) as first:
        await raise_level(first)
        await first.create_topic(TOPIC, partitions=_NODES)
        await first.create_topic(LEDGER, partitions=_NODES, order="total")
        await first.access.create_user(_ROOT, password, ["admin"])
    url = nodes.url.replace("//", f"//{_ROOT}@")
    async with connect(url, password=password) as root:
        target = _Target(nodes, root, password, fleet_key)
        await _begin(settings, target)
        loading = _Load(settings, target)
        task = asyncio.create_task(loading.run())
        try:
            ends = [
                await _revoke(target, number, task, progress)
                for number in range(settings.revocations)
            ]
        finally:
            task.cancel()
            await asyncio.wait([task])
    return _result(ends, loading.per_s)


async def raise_level(client: Client) -> None:
    """Let a set that has just started take users; it must have heard of all nodes for that.

    Raises `TimeoutError` if it has not in time.
    """
    async with asyncio.timeout(_SERVED_WITHIN_S):
        while True:
            with suppress(BadRequest, LevelTooLow):
                if (await client.nodes.raise_level()).level >= FORMAT_LEVEL_ACCESS:
                    return
            await asyncio.sleep(0.1)


async def _begin(settings: Settings, target: _Target) -> None:
    """Let there be what users and devices need, and close the set."""
    root = target.root
    verbs = ("publish", "read", "consume")
    rules = [AccessRule(verbs, "topic", topic) for topic in (TOPIC, LEDGER)]
    await root.access.change_rules(_ROLE, rules)
    await root.access.change_rules(f"fleet.{_FLEET}", [AccessRule(("publish",), "topic", TOPIC)])
    await root.access.create_user(_LOADER, target.password, [_ROLE])
    await root.access.create_token_key()
    last = _FIRST_HUB + settings.revocations
    await root.fleets.put(_FLEET, _FIRST_HUB, last, Level.PROOF, 1, target.fleet_key)
    await root.access.set_mode("closed")


class _Load:
    """Publishes at a steady rate as a user who keeps its rights."""

    def __init__(self, settings: Settings, target: _Target) -> None:
        self._settings = settings
        self._target = target
        self._began = 0.0
        self._confirmed = 0

    @property
    def per_s(self) -> float:
        """Messages confirmed a second."""
        return self._confirmed / (time.monotonic() - self._began)

    async def run(self) -> None:
        """Publish until cancelled. Raises what the producer raises."""
        target, rate = self._target, self._settings.load
        async with connect(target.url(_LOADER), password=target.password) as client:
            sent, self._began = 0, time.monotonic()
            async with (
                client.producer(TOPIC, linger=0, on_confirm=self._confirm) as producer,
                client.producer(LEDGER, linger=0, on_confirm=self._confirm) as ordered,
            ):
                while True:
                    due = int((time.monotonic() - self._began) * rate)
                    for number in range(sent, due):
                        one = producer if number % _ORDERED else ordered
                        one.send(_value(time.monotonic_ns(), self._settings.size))
                    sent = max(sent, due)
                    await asyncio.sleep(_BETWEEN_S)

    def _confirm(self, receipt: BatchReceipt) -> None:
        self._confirmed += receipt.count


class _End(NamedTuple):
    """How the session of a kind ended: after so many ms, or not (-1)."""

    kind: str
    ms: float
    late: bool
    unreached: int


async def _revoke(
    target: _Target, number: int, loading: asyncio.Task[None], progress: Progress
) -> _End:
    """Let a session work, revoke it, and wait for its end."""
    kind = [*KINDS][number % len(KINDS)]
    if kind != "device":
        await target.root.access.create_user(_user(number), target.password, [_ROLE])
    session = _Session()
    working = asyncio.ensure_future(KINDS[kind](target, number, session))
    try:
        await _served(session, working, loading, kind)
        began = time.monotonic()
        if kind == "device":
            change = await target.root.fleets.revoke_device(_FIRST_HUB + number, 0)
        else:
            change = await target.root.access.revoke_user(_user(number))
        unreached = len(change.unreached)
        confirmed_ns = time.monotonic_ns()
        done, _ = await asyncio.wait([working], timeout=_END_WITHIN_S)
        ms = (time.monotonic() - began) * 1e3 if done else -1.0
        error = working.exception() if done else None
        if error is not None and not isinstance(error, _REVOKED):
            raise BenchFailed(f"a {kind} ended by something else: {error!r}") from error
    finally:
        working.cancel()
        with suppress(WeirError, OSError, asyncio.CancelledError):
            await working
    progress(number + 1)
    return _End(kind, ms, session.sent_ns > confirmed_ns, unreached)


async def _served(
    session: _Session, working: asyncio.Future[None], loading: asyncio.Task[None], kind: str
) -> None:
    """Return once a session was served. Raises `BenchFailed`, or what ended it or the load."""
    served = asyncio.ensure_future(session.served.wait())
    try:
        tasks: list[asyncio.Future[Any]] = [served, working, loading]
        done, _ = await asyncio.wait(
            tasks, timeout=_SERVED_WITHIN_S, return_when=asyncio.FIRST_COMPLETED
        )
        for task in (working, loading):
            if task in done:
                task.result()
        if served not in done:
            raise BenchFailed(f"a {kind} was not served within {_SERVED_WITHIN_S:g} s")
    finally:
        served.cancel()


def _result(ends: Sequence[_End], load_per_s: float) -> Result:
    took = {kind: [one.ms for one in ends if one.kind == kind and one.ms >= 0] for kind in KINDS}
    late = Counter(one.kind for one in ends if one.late)
    every = [ms for one in took.values() for ms in one]
    if not every:
        raise BenchFailed("no session ended by its revocation")
    return Result(
        len(ends), len(ends) - len(every), late.total(),
        sum(one.unreached for one in ends), *_spread(every), load_per_s,
        [OfKind(kind, len(ms), late[kind], *_spread(ms)) for kind, ms in took.items()],
    )  # fmt: skip


def _spread(took: Sequence[float]) -> tuple[float, float, float]:
    p50, p99 = percentiles(took, 0.5, 0.99)
    return p50 or 0.0, p99 or 0.0, max(took, default=0.0)


def _user(number: int) -> str:
    return f"user{number}"


def _value(sent_ns: int, size: int) -> bytes:
    return sent_ns.to_bytes(_SENT_BYTES, "big").ljust(size, b".")


def _sent_ns(value: bytes) -> int:
    return int.from_bytes(value[:_SENT_BYTES], "big")
