"""One set that is upgraded under load, and what its clients of both releases saw.

All three nodes run the release before at first, and clients of both releases load the set. Node by
node gets this release; some go back and forth again; then the format level is raised, clients of
the release before go on, and a node that goes back is refused.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

import weir
from weir.client.access import AccessRule
from weir.client.client import Client
from weir.client.nodes import SetStatus
from weir.errors import LevelTooHigh, LevelTooLow, UnknownOpcode, WeirError
from weir.server.interpreter import environment
from weir.testing.nodes import NodeFailed, NodeSet, Patient, RelayProcess, free_ports
from weir_lab.bench.faults.upgrade.releases import BEFORE, BEFORE_LEVEL, Release
from weir_lab.bench.harness.machine import Machine, this_machine

NODES = 3
_LOAD = Path(__file__).with_name("load.py")
_WAIT_S = 60.0
_LOOK_S = 0.1
#: What each process of clients publishes, reads, acks and copies at least after each step.
_GOES_ON = 5
_CLIENTS = ("before", "now")
#: What the release before runs, with a folder: it founds the set, as an operator did then.
_FOUND = f"""
import sys
from pathlib import Path
from weir.testing.nodes import NodeSet
NodeSet(Path(sys.argv[1]), {NODES}, 1)
"""
#: With addresses: it makes the topics, and lets the set write the level that it supports.
PREPARE = """
import asyncio, sys, weir
async def prepare():
    async with weir.connect(sys.argv[1]) as client:
        await client.create_topic("results", 1)
        await client.create_topic("flights", 3, order="total", scatter_with=["copies"])
        await client.create_topic("copies", 3, order="total", scatter_with=["flights"])
        while (await client.nodes.status()).level < int(sys.argv[2]):
            await client.nodes.raise_level()
            await asyncio.sleep(0.1)
asyncio.run(prepare())
"""
#: With addresses and a topic: its values, or the sentence by which they are refused.
_READ = """
import asyncio, json, sys, weir
from weir.errors import WeirError
async def read():
    async with weir.connect(sys.argv[1]) as client:
        async with client.reader(sys.argv[2], follow=False) as reader:
            return [bytes(message.value).decode() async for message in reader]
try:
    print(json.dumps({"values": asyncio.run(read())}))
except WeirError as error:
    print(json.dumps({"refused": str(error)}))
"""


class Result(msgspec.Struct, frozen=True):
    """What it came to. `steps`: how often a node was started with another release.

    Of all confirmed messages: `lost` ones were not read, acked or copied by a client that should
    have, and `repeated` ones twice; `reordered` came before what its producer had sent earlier;
    `differing` came to a reader at another place than to the last one. `early` requests of the new
    level were refused before that was raised, of `asked`. `refused` is what the release before said
    of what it could not take: as a node of the raised set, and as a reader of a sink's topic; "" if
    it did. `at_relay` is how many messages it read at a relay of this release.
    """

    machine: Machine
    before: str
    steps: int
    levels: tuple[int, int]
    messages: int
    asked: int
    early: int
    lost: int
    repeated: int
    reordered: int
    differing: int
    at_relay: int
    refused: dict[str, str]
    gap_s: float
    seconds: float


class Clients:
    """Processes with clients of both releases, which load a set."""

    def __init__(self, folder: Path, url: str, releases: Mapping[str, Sequence[str]]) -> None:
        """Start one for each of `releases`, by the words that its command begins with."""
        self._folder = folder
        self._running = {name: self._start(name, url, words) for name, words in releases.items()}

    def _start(self, name: str, url: str, words: Sequence[str]) -> subprocess.Popen[str]:
        with self._file(name, "out").open("w") as out, self._file(name, "err").open("w") as err:
            return subprocess.Popen(
                [*words, sys.executable, "-P", str(_LOAD), name, url],
                stdin=subprocess.PIPE, stdout=out, stderr=err, text=True, env=environment(),
            )  # fmt: skip

    def _file(self, name: str, of: str) -> Path:
        return self._folder / f"clients-{name}.{of}"

    def _said(self, name: str, key: str) -> Any:
        """Return the last of what one said that has a key, None if it said none."""
        lines = self._file(name, "out").read_text(encoding="utf-8").split("\n")[:-1]
        for line in reversed(lines):
            if key in (found := json.loads(line)):
                return found
        return None

    async def wait(self, name: str, key: str, holds: Callable[[Any], bool]) -> Any:
        """Return what one has said with a key once it holds. Raises `WeirError`."""
        until = time.monotonic() + _WAIT_S
        while (found := self._said(name, key)) is None or not holds(found):
            ended = self._running[name].poll() is not None
            if ended or time.monotonic() > until:
                error = self._file(name, "err").read_text(encoding="utf-8").strip()
                what = "ended" if ended else f"do not go on after {_WAIT_S:g} s ({key}: {found})"
                raise WeirError(f"the clients of the release {name} {what}: {error[-2000:]}")
            await asyncio.sleep(_LOOK_S)
        return found

    async def go_on(self) -> None:
        """Return once each has published, read, acked and copied more."""
        had = {
            name: await self.wait(name, "published", lambda found: True) for name in self._running
        }
        for name, then in had.items():
            await self.wait(name, "published", partial(_more, then))

    async def stop(self) -> list[str]:
        """Let them publish no more; return what all of them have published."""
        self._tell("stop")
        return [
            f"{name} {number}"
            for name in self._running
            for number in range((await self.wait(name, "stopped", bool))["stopped"])
        ]

    async def end(self, messages: int) -> dict[str, Any]:
        """Return what came to each, once all of `messages` came to all of them."""
        self._tell(f"end {messages}")
        until = time.monotonic() + _WAIT_S
        for of in ("acked", "copied"):  # what is repeated or lost shows in what they say at the end
            while time.monotonic() < until:
                told = [await self.wait(name, "published", bool) for name in self._running]
                if sum(one[of] for one in told) >= messages:
                    break
                await asyncio.sleep(_LOOK_S)
        self._tell("enough")
        return {name: await self.wait(name, "gap_s", bool) for name in self._running}

    def _tell(self, line: str) -> None:
        for process in self._running.values():
            assert process.stdin is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()

    def close(self) -> None:
        """End those that run still."""
        for process in self._running.values():
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _more(then: Mapping[str, int], now: Mapping[str, int]) -> bool:
    return all(now[of] >= count + _GOES_ON for of, count in then.items())


@contextmanager
def set_before(folder: Path, release: Release) -> Iterator[NodeSet]:
    """Run a set of the release before, in `folder`, while the block runs."""
    release.run(_FOUND, str(folder / "set"))
    nodes = NodeSet(folder / "set", NODES, 1)
    for number in range(1, NODES + 1):
        nodes.begin(number, release.words)
    try:
        nodes.start(Patient())
        yield nodes
    finally:
        nodes.stop()


async def status_when(client: Client, holds: Callable[[SetStatus], bool]) -> SetStatus:
    """Return the status of the set once it holds. Raises `TimeoutError`."""
    async with asyncio.timeout(_WAIT_S):
        while True:
            status = await client.nodes.status()
            if holds(status):
                return status
            await asyncio.sleep(_LOOK_S)


async def early_refused(client: Client) -> tuple[int, int]:
    """Ask for what an older level cannot hold; return how many requests, and how many were refused
    by a sentence that says so.
    """
    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: client.access.change_rules(
            "loaders", [AccessRule(("publish",), "topic", "f", True)]
        ),
        lambda: client.quotas.set("namespace:default", {"bytes_in": 1_000_000}),
        lambda: client.access.set_mode("watch"),
        lambda: _sunk(client),
    ]
    refused = 0
    for one in requests:
        try:
            await one()
        except LevelTooLow as error:
            refused += "raise-level" in str(error)
        except UnknownOpcode as error:  # a node of the release before was asked
            refused += "upgrade" in str(error)
    return len(requests), refused


async def _sunk(client: Client) -> None:
    """Publish one batch of a sink to `results`."""
    import pyarrow as pa

    sink = client.sink("results")
    writer = sink.writer(0)
    await writer.write("results", pa.RecordBatch.from_pydict({"value": ["a", "b"]}))
    await sink.publish(0, await writer.finish())


class Upgrade:
    """The steps of one set from release to release."""

    def __init__(self, nodes: NodeSet, release: Release, clients: Clients) -> None:
        """Take a set that runs the release before, and its load."""
        self._nodes = nodes
        self._release = release
        self._clients = clients
        self.steps = 0

    async def move(self, client: Client, number: int, words: Sequence[str], level: int) -> None:
        """Start a node with another release; return once all goes on."""
        await asyncio.to_thread(self._nodes.node(number).stop)
        self._nodes.begin(number, words)
        await asyncio.to_thread(self._nodes.restart, number, Patient())
        await status_when(
            client, lambda status: status.settled and status.nodes[number - 1].level == level
        )
        await self._clients.go_on()
        self.steps += 1

    async def there_and_back(self, client: Client, back: int, level: int) -> tuple[int, int]:
        """Let all nodes run this release, `back` of them go back, and those come again; return what
        `early_refused` returns, of all steps.
        """
        asked = refused = 0
        forth = [(number, (), level) for number in range(1, NODES + 1)]
        some = forth[:back]
        before = [(number, self._release.words, BEFORE_LEVEL) for number, *_ in some]
        for number, words, its in (*forth, *before, *some):
            await self.move(client, number, words, its)
            more, early = await early_refused(client)
            asked, refused = asked + more, refused + early
            if min(one.level for one in (await client.nodes.status()).nodes) < level:
                asked += 1
                try:
                    await client.nodes.raise_level(level)
                except LevelTooHigh:
                    refused += 1
        return asked, refused

    def refused_node(self, number: int) -> str:
        """Start a node with the release before, which must not serve; return what it said."""
        self._nodes.node(number).stop()
        self._nodes.begin(number, self._release.words)
        try:
            self._nodes.restart(number, Patient())
        except NodeFailed as error:
            said = str(error)
        else:
            raise WeirError(f"node {number} serves though it cannot read what the set writes")
        finally:
            self._nodes.node(number).kill()
            self._nodes.begin(number, ())
        self._nodes.restart(number, Patient())
        return said


async def at_relay(nodes: NodeSet, release: Release, folder: Path) -> list[str]:
    """Return what a client of the release before reads at a relay of this one."""
    (port,) = free_ports(1)
    relay = RelayProcess(nodes.url, folder / "relay", port)
    await asyncio.to_thread(relay.start)
    try:
        return await asyncio.to_thread(read_before, release, relay.url, "flights")
    finally:
        await asyncio.to_thread(relay.kill)


def read_before(release: Release, url: str, topic: str) -> list[str]:
    """Return the values that the release before reads. Raises `WeirError` if it is refused."""
    found = json.loads(release.run(_READ, url, topic))
    if "refused" in found:
        raise WeirError(found["refused"])
    values: list[str] = found["values"]
    return values


async def upgrade(folder: Path, release: Release, back: int) -> Result:
    """Upgrade a set under load, with as many nodes that go `back` and forth once more."""
    began = time.monotonic()
    level = weir.model.limits.FORMAT_LEVEL
    with set_before(folder, release) as nodes:
        release.run(PREPARE, nodes.url, str(BEFORE_LEVEL))
        words = dict(zip(_CLIENTS, (release.words, ()), strict=True))
        clients = Clients(folder, nodes.url, words)
        try:
            async with weir.connect(nodes.url, request_timeout=30.0) as client:
                await clients.go_on()
                upgrading = Upgrade(nodes, release, clients)
                asked, early = await upgrading.there_and_back(client, back, level)
                then = (await client.nodes.status()).level
                await client.nodes.raise_level()
                status = await status_when(client, lambda status: status.level == level)
                await clients.go_on()
                published = await clients.stop()
                came = await clients.end(len(published))
                await _sunk(client)
                refused = {
                    "node": await asyncio.to_thread(upgrading.refused_node, 2),
                    "reader": _refusal(release, nodes.url),
                }
                relayed = await at_relay(nodes, release, folder)
                order, copies = [await values(client, name) for name in ("flights", "copies")]
        finally:
            clients.close()
    return Result(
        this_machine(), BEFORE[:12], upgrading.steps, (then, status.level), len(published), asked,
        early, **judged(published, order, copies, came), at_relay=len({*relayed}), refused=refused,
        gap_s=round(max(one["gap_s"] for one in came.values()), 2),
        seconds=round(time.monotonic() - began, 1),
    )  # fmt: skip


def _refusal(release: Release, url: str) -> str:
    try:
        read_before(release, url, "results")
    except WeirError as error:
        return str(error)
    return ""


async def values(client: Client, topic: str) -> list[str]:
    """Return what each message of a topic is and where, in total order."""
    async with client.reader(topic, follow=False) as reader:
        return [f"{one.partition} {one.offset} {bytes(one.value).decode()}" async for one in reader]


def judged(
    published: Sequence[str], order: Sequence[str], copies: Sequence[str], came: Mapping[str, Any]
) -> dict[str, int]:
    """Return what is lost, repeated, reordered and differing, as `Result` says.

    `order` and `copies` are lines of `values`; `came` is what each process of clients saw.
    """
    seen = [
        Counter(map(_value, order)),
        Counter(map(_value, copies)),
        Counter(value for one in came.values() for value in one["acked"]),
        *(Counter(map(_value, one["read"])) for one in came.values()),
    ]
    expected = Counter(published)
    numbers: dict[str, list[int]] = {}
    for value in map(_value, order):
        name, number = value.split()
        numbers.setdefault(name, []).append(int(number))
    return {
        "lost": sum((expected - one).total() for one in seen),
        "repeated": sum((one - expected).total() for one in seen),
        "reordered": sum(b < a for each in numbers.values() for a, b in pairwise(each)),
        "differing": sum(
            a != b for one in came.values() for a, b in zip(one["read"], order, strict=False)
        ),
    }


def _value(line: str) -> str:
    return line.split(" ", 2)[2]
