"""How long a revocation takes until the session ends that it concerns, in a loaded closed set.

Users come one after another, each with one session of the kind whose turn it is. Once that was
served its user, device or certificate is revoked, while others publish. The clock runs from the
call that revokes to the error that ends the session at its client. A session is late that gets a
message, or a confirm of one, that was sent after the revocation was confirmed.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from weir.access.devices import Level
from weir.client.access import AccessRule
from weir.client.client import Client, connect
from weir.client.producer.receipts import BatchReceipt
from weir.errors import (
    AccessRevoked,
    BadRequest,
    LevelTooLow,
    NotAuthenticated,
    Unauthorized,
    Unavailable,
    UnknownTopic,
    WeirError,
)
from weir.model.limits import FORMAT_LEVEL_ACCESS
from weir.server.key_files import create_key_file
from weir.testing.nodes import SMALL, NodeSet, RelayProcess, free_ports
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.harness.spread import percentiles
from weir_lab.bench.sessions import (
    BETWEEN_S,
    FIRST_HUB,
    KINDS,
    LEDGER,
    SENT_BYTES,
    STILL,
    TOPIC,
    Session,
    Target,
    as_user,
    certificate_of,
    user_of,
    value,
)
from weir_lab.bench.sides.certified import Certified, certified_nodes

_ROLE, _FLEET, _ROOT, _LOADER, _RELAY = "clerk", "locks", "root", "loader", "relay"
_NODES = 3
#: One in so many messages of the load goes to the topic in total order.
_ORDERED = 5
#: A session that lives on for so long counts as such.
_END_WITHIN_S = 15.0
_SERVED_WITHIN_S = 30.0
#: What a session ends with that was revoked.
_REVOKED = AccessRevoked, NotAuthenticated, Unauthorized
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
            load=(self.load, 1, 100_000), size=(self.size, SENT_BYTES, 100_000),
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


def measure(settings: Settings, progress: Progress) -> Result:
    """Run the test on a set of its own, which is removed afterwards; tell revocations done.

    Raises `ValueError` for settings that make no sense, and `WeirError` for a run without a figure.
    """
    settings.check()
    with tempfile.TemporaryDirectory(prefix="weir-bench-", dir=settings.folder) as name:
        key_file = Path(name) / "keys"
        create_key_file(key_file)
        given = {**SMALL, "WEIR__ACCESS__KEY_FILE": str(key_file)}
        with certified_nodes(name, _NODES, settings=given) as certified:
            files = certified.issue(f"user/default/{_RELAY}")
            core = f"{certified.url}&certificate={files.certificate}&key={files.key}"
            relay = RelayProcess(core, Path(name) / "relay", free_ports(1)[0])
            try:
                return asyncio.run(_measure(settings, certified, relay, progress))
            finally:
                relay.kill()


async def _measure(
    settings: Settings, certified: Certified, relay: RelayProcess, progress: Progress
) -> Result:
    password, fleet_key = secrets.token_hex(16), secrets.token_bytes(32)
    nodes = certified.nodes
    assert isinstance(nodes, NodeSet)
    async with connect(nodes.url) as first:
        await raise_level(first)
        for topic in (TOPIC, STILL):
            await first.create_topic(topic, partitions=_NODES)
        await first.create_topic(LEDGER, partitions=_NODES, order="total")
        await first.publish(STILL, value(time.monotonic_ns(), SENT_BYTES))
        await first.access.create_user(_ROOT, password, ["admin"])
    async with connect(as_user(nodes.url, _ROOT), password=password) as root:
        target = Target(nodes, root, password, fleet_key, certified, relay.url)
        await _begin(settings, target)
        await asyncio.to_thread(relay.start)
        await _relayed(target)
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


async def _relayed(target: Target) -> None:
    """Return once the relay serves the topic to users. Raises `TimeoutError`."""
    async with (
        asyncio.timeout(_SERVED_WITHIN_S),
        connect(as_user(target.relay, _LOADER), password=target.password) as client,
    ):
        while True:
            with suppress(Unavailable, UnknownTopic):
                await client.describe(TOPIC)
                return
            await asyncio.sleep(0.1)


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


async def _begin(settings: Settings, target: Target) -> None:
    """Let there be what users and devices need, and close the set."""
    root = target.root
    for role, verbs in ((_ROLE, ("publish", "read", "consume")), (_RELAY, ("read", "describe"))):
        rules = [AccessRule(verbs, "topic", topic) for topic in (TOPIC, LEDGER, STILL)]
        await root.access.change_rules(role, rules)
    await root.access.create_user(_RELAY, target.password, [_RELAY])
    await root.access.change_rules(f"fleet.{_FLEET}", [AccessRule(("publish",), "topic", TOPIC)])
    await root.access.create_user(_LOADER, target.password, [_ROLE])
    await root.access.create_token_key()
    last = FIRST_HUB + settings.revocations
    await root.fleets.put(_FLEET, FIRST_HUB, last, Level.PROOF, 1, target.fleet_key)
    await root.access.set_mode("closed")


class _Load:
    """Publishes at a steady rate as a user who keeps its rights."""

    def __init__(self, settings: Settings, target: Target) -> None:
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
        async with connect(as_user(target.nodes.url, _LOADER), password=target.password) as client:
            sent, self._began = 0, time.monotonic()
            async with (
                client.producer(TOPIC, linger=0, on_confirm=self._confirm) as producer,
                client.producer(LEDGER, linger=0, on_confirm=self._confirm) as ordered,
            ):
                while True:
                    due = int((time.monotonic() - self._began) * rate)
                    for number in range(sent, due):
                        one = producer if number % _ORDERED else ordered
                        one.send(value(time.monotonic_ns(), self._settings.size))
                    sent = max(sent, due)
                    await asyncio.sleep(BETWEEN_S)

    def _confirm(self, receipt: BatchReceipt) -> None:
        self._confirmed += receipt.count


class _End(NamedTuple):
    """How the session of a kind ended: after so many ms, or not (-1)."""

    kind: str
    ms: float
    late: bool
    unreached: int


async def _revoke(
    target: Target, number: int, loading: asyncio.Task[None], progress: Progress
) -> _End:
    """Let a session work, revoke it, and wait for its end."""
    name = [*KINDS][number % len(KINDS)]
    kind = KINDS[name]
    if kind.by != "device":
        await target.root.access.create_user(user_of(number), target.password, [_ROLE])
    session = Session()
    working = asyncio.ensure_future(kind.work(target, number, session))
    try:
        await _served(session, working, loading, name)
        began = time.monotonic()
        unreached = await _take_away(target, number, name)
        confirmed_ns = time.monotonic_ns()
        done, _ = await asyncio.wait([working], timeout=_END_WITHIN_S)
        ms = (time.monotonic() - began) * 1e3 if done else -1.0
        error = working.exception() if done else None
        if error is not None and not isinstance(error, _REVOKED):
            raise BenchFailed(f"a session ({name}) ended by something else: {error!r}") from error
    finally:
        working.cancel()
        with suppress(WeirError, OSError, asyncio.CancelledError):
            await working
    progress(number + 1)
    return _End(name, ms, session.sent_ns > confirmed_ns, unreached)


async def _take_away(target: Target, number: int, kind: str) -> int:
    """Revoke what a session came by; return how many shards, or nodes, have not heard of it."""
    by = KINDS[kind].by
    if by == "certificate":
        return await asyncio.to_thread(target.revoke_certificate, certificate_of(kind, number))
    if by == "device":
        return len((await target.root.fleets.revoke_device(FIRST_HUB + number, 0)).unreached)
    return len((await target.root.access.revoke_user(user_of(number))).unreached)


async def _served(
    session: Session, working: asyncio.Future[None], loading: asyncio.Task[None], kind: str
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
            raise BenchFailed(f"a session ({kind}) was not served within {_SERVED_WITHIN_S:g} s")
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
