"""Rounds of power cuts: load, a cut at a moment that nobody chose, and the machines come back."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TypeVar

import msgspec

from weir.errors import Refused, UnknownTopic
from weir.server.disk.node_folder import new_system
from weir.server.interpreter import python
from weir_lab.bench.faults.powercut.ledger import Verdict, judge
from weir_lab.bench.faults.powercut.load import CLUSTER, TOPIC, Load
from weir_lab.bench.faults.powercut.machine import DISK, Machine, MachineFailed, cut
from weir_lab.bench.harness.machine import Machine as Host
from weir_lab.bench.harness.machine import this_machine
from weir_lab.bench.harness.member import CLOCK_PORT, PORT, UP, time_told
from weir_lab.bench.harness.network import HOST, Network, addresses

T = TypeVar("T")

#: A cut falls within so many seconds after everything flows again.
_CALM_SECONDS = 0.8
#: One round in so many is cut again while the machines start, within so many seconds.
_AGAIN_EVERY = 4
_START_SECONDS = 4.0
#: Nothing here stands still for longer, even on a busy machine.
_PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.02
_CHECK_SECONDS = 0.5


class Shape(msgspec.Struct, frozen=True):
    """What is cut, and how often; `never_sync` plants the fault of a node that only says so."""

    nodes: int = 1
    times: int = 20
    seed: int = 0
    never_sync: bool = False
    #: Longer than two outages, so that whoever has messages keeps them. Those whose grant was cut
    #: off on its way to the consumer come to it when the lease ends.
    lease_s: float = 60.0


class Round(msgspec.Struct, frozen=True):
    """A cut: which nodes, and how long it was until all of them served and everything flowed."""

    victims: list[int]
    #: They were cut a second time while they started.
    again: bool
    #: How many messages were confirmed before.
    confirmed: int
    up_s: float
    #: The longest time without any confirm.
    dark_s: float


class Result(msgspec.Struct, frozen=True):
    """What came of it all; the verdict is of the clients' ledgers."""

    shape: Shape
    machine: Host
    rounds: list[Round]
    #: The lost power of all at the very end, after the last ack, is one of them.
    cuts: int
    verdict: Verdict
    #: What the cluster of the consumer has not done, by the node's own word.
    lag: int
    #: What the nodes no longer wanted to know, which ended the load.
    refused: str | None
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether all is as it was confirmed."""
        return self.verdict.clean and self.lag == 0 and self.refused is None


class Machines:
    """The machines of a set, all with power but while they are cut."""

    def __init__(self, shape: Shape, folder: Path, network: Network) -> None:
        """Make as many, with empty disks."""
        hosts = addresses(shape.nodes)
        system = new_system()
        self.url = "weir://" + ",".join(f"{host}:{PORT}" for host in hosts)
        self.all = [
            Machine(
                f"node-{number}", folder, network, host,
                python(
                    "weir_lab.bench.harness.member",
                    "--data", f"{DISK}/data", "--node", str(number),
                    "--hosts", ",".join(hosts), "--system", str(system),
                    # A busy machine loses up to seconds while such a kernel boots.
                    "--clock", HOST,
                    *(("--never-sync",) if shape.never_sync else ()),
                ),
            )
            for number, host in enumerate(hosts, 1)
        ]  # fmt: skip

    def __enter__(self) -> Machines:
        for one in self.all:
            one.boot()
        return self

    def __exit__(self, *_: object) -> None:
        cut(self.all)

    async def up(self) -> None:
        """Return once clients may connect to each. Raises `MachineFailed`."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                for one in self.all:
                    while not one.said(UP):
                        await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            raise self.stuck("not every node came up") from None

    async def soon(self, wanted: Awaitable[T], load: Load, what: str) -> T:
        """Return what comes of it, while the machines live. Raises `MachineFailed`."""
        waiting = asyncio.ensure_future(wanted)
        moves, deadline = -1, 0.0
        try:
            while not waiting.done():
                await asyncio.wait([waiting], timeout=_CHECK_SECONDS)
                for one in self.all:
                    one.check()
                if moves != load.pulse.moves:
                    moves, deadline = load.pulse.moves, time.monotonic() + _PATIENCE_SECONDS
                elif time.monotonic() > deadline:
                    raise self.stuck(f"{what} ({load.ledger}), and nothing moved")
            return await waiting
        finally:
            waiting.cancel()

    def stuck(self, what: str) -> MachineFailed:
        """Return the error that says so, with the last words of each."""
        words = "\n\n".join(f"{one.name}:\n{one.last_words()}" for one in self.all)
        return MachineFailed(f"{what} within {_PATIENCE_SECONDS:g} s\n{words}")


async def measure(shape: Shape, tell: Callable[[Round], None]) -> Result:
    """Cut as often as wanted, and then all; `tell` is told of each round.

    Raises `MachineFailed` if the machines do not come back, or not everything flows again.
    """
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="weir-powercut-") as name,
        Machines(shape, Path(name), Network()) as machines,
    ):
        clock = await asyncio.start_server(_tell_time, HOST, CLOCK_PORT)
        async with clock:
            load = Load(machines.url, max(2, shape.nodes), shape.lease_s)
            await machines.up()
            rounds, refused = await _under_load(shape, machines, load, tell)
            _cut_and_boot(machines.all)
            await machines.up()
            topic, lag = await machines.soon(_what_is_there(load), load, "not all was read")
    again = sum(one.again * len(one.victims) for one in rounds)
    cuts = sum(len(one.victims) for one in rounds) + again + shape.nodes
    verdict = judge(load.ledger, topic)
    seconds = round(time.monotonic() - began, 1)
    return Result(shape, this_machine(), rounds, cuts, verdict, lag, refused, seconds)


async def _under_load(
    shape: Shape, machines: Machines, load: Load, tell: Callable[[Round], None]
) -> tuple[list[Round], str | None]:
    """Return what rounds there were, and the refusal that ended them, if one did."""
    rounds: list[Round] = []
    try:
        async with _running(load, machines):
            async for one in _rounds(shape, machines, load):
                rounds.append(one)
                tell(one)
    except Refused as error:
        return rounds, str(error)
    return rounds, None


@asynccontextmanager
async def _running(load: Load, machines: Machines) -> AsyncIterator[None]:
    """Run the load; it ends when all that was sent is confirmed, done and acked."""
    try:
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(load.write())
            working = tasks.create_task(load.work())
            yield
            load.stop()
            await machines.soon(writing, load, "not all was confirmed")
            await machines.soon(load.all_acked(), load, "not all was delivered and acked")
            working.cancel()
    except ExceptionGroup as group:
        # What ended the load is told, and not how its clients ended because of that.
        failed = (one for one in group.exceptions if isinstance(one, MachineFailed))
        raise next(failed, group.exceptions[0]) from None


async def _rounds(shape: Shape, machines: Machines, load: Load) -> AsyncIterator[Round]:
    dice = Random(shape.seed)
    await machines.soon(load.flows(), load, "nothing flowed at first")
    for number in range(shape.times):
        load.pulse.longest_gap()
        await asyncio.sleep(dice.random() * _CALM_SECONDS)
        victims = sorted(dice.sample(machines.all, _how_many(number, shape.nodes)), key=_name)
        confirmed = sum(map(len, load.ledger.confirmed.values()))
        began = time.monotonic()
        _cut_and_boot(victims)
        again = number % _AGAIN_EVERY == _AGAIN_EVERY - 1
        if again:
            await asyncio.sleep(dice.random() * _START_SECONDS)
            _cut_and_boot(victims)
        await machines.up()
        await machines.soon(load.flows(), load, "not everything flowed again")
        up = time.monotonic() - began
        yield Round(
            [machines.all.index(victim) + 1 for victim in victims],
            again, confirmed, round(up, 3), round(load.pulse.longest_gap(), 3),
        )  # fmt: skip


def _how_many(number: int, nodes: int) -> int:
    """Return how many machines a round cuts: one, two, all, and again."""
    return number % nodes + 1


def _name(machine: Machine) -> str:
    return machine.name


async def _tell_time(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(time_told())
    writer.close()
    await writer.wait_closed()


def _cut_and_boot(victims: Sequence[Machine]) -> None:
    cut(victims)
    for one in victims:
        one.boot()


async def _what_is_there(load: Load) -> tuple[dict[int, list[bytes]], int]:
    """Return the values of each partition in offset order, and what the cluster has not done."""
    topic: dict[int, list[bytes]] = {}
    async with load.connected("auditor") as client:
        try:
            lag = sum(one.lag for one in await client.clusters(TOPIC, CLUSTER))
        except UnknownTopic:
            return topic, 0  # all is lost then
        async with client.reader(TOPIC, follow=False) as reader:
            async for message in reader:
                values = topic.setdefault(message.partition, [])
                # A hole stays one: it must not move what lies behind it.
                values += [b""] * (message.offset - len(values))
                values.append(message.value)
    return topic, lag
