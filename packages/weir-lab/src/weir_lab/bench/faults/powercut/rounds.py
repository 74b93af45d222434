"""Rounds of power cuts: load, a cut at a moment that nobody chose, and the machines come back."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from weir.errors import Refused, UnknownTopic
from weir_lab.bench.faults.powercut.ledger import Given, Verdict, judge
from weir_lab.bench.faults.powercut.load import CLUSTER, TOPIC, Load, given, known
from weir_lab.bench.faults.powercut.machine import Machine, MachineFailed, cut
from weir_lab.bench.faults.powercut.machines import Machines, SetMachines
from weir_lab.bench.faults.powercut.tiers import TierMachines
from weir_lab.bench.harness.machine import Machine as Host
from weir_lab.bench.harness.machine import this_machine
from weir_lab.bench.harness.member import CLOCK_PORT, time_told
from weir_lab.bench.harness.network import HOST, Network

#: A cut falls within so many seconds after everything flows again.
_CALM_SECONDS = 0.8
#: One round in so many is cut again while the machines start, within so many seconds.
_AGAIN_EVERY = 4
_START_SECONDS = 4.0
_PARTITIONS = 2


class Shape(msgspec.Struct, frozen=True):
    """What is cut, and how often; `never_sync` plants the fault of a node that only says so. With
    `tiers` there is a core of one node, with relays below it.
    """

    nodes: int = 1
    #: With tiers, of each tier.
    times: int = 20
    seed: int = 0
    never_sync: bool = False
    #: Longer than two outages, so that consumers keep their messages. Those whose grant was cut
    #: off on its way to the consumer come to it when the lease ends.
    lease_s: float = 60.0
    tiers: bool = False


class Round(msgspec.Struct, frozen=True):
    """A cut: which machines, and how long it was until all of them served and everything flowed."""

    victims: list[str]
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
    #: The same by machine.
    cuts_of: dict[str, int]
    #: By tier, how many bytes of messages the access relay pulled from it.
    pulled: dict[str, int]
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


async def measure(shape: Shape, tell: Callable[[Round], None]) -> Result:
    """Cut as often as wanted, and then all; `tell` is told of each round.

    Raises `MachineFailed` if the machines do not come back, or not everything flows again.
    """
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="weir-powercut-") as name,
        _machines(shape, Path(name), Network()) as machines,
    ):
        clock = await asyncio.start_server(_tell_time, HOST, CLOCK_PORT)
        async with clock:
            load = Load(
                machines.publish_at, machines.consume_at, max(_PARTITIONS, shape.nodes),
                shape.lease_s, order=machines.order, readers=machines.readers,
            )  # fmt: skip
            await machines.start()
            rounds, refused = await _under_load(shape, machines, load, tell)
            _cut_and_boot(machines.all)
            await machines.up()
            topic, order, lag = await machines.soon(_what_is_there(load), load, "not all was read")
            if machines.readers:
                reading = _read_anew(load, len(order))
                await machines.soon(reading, load, "a relay did not get all again")
    cuts = Counter(one.name for one in machines.all)
    for one in rounds:
        for victim in one.victims:
            cuts[victim] += 1 + one.again
    verdict = judge(load.ledger, topic, order)
    seconds = round(time.monotonic() - began, 1)
    return Result(
        shape, this_machine(), rounds, cuts.total(), dict(cuts), dict(machines.pulled), verdict,
        lag, refused, seconds,
    )  # fmt: skip


def _machines(shape: Shape, folder: Path, network: Network) -> Machines:
    if shape.tiers:
        return TierMachines(_PARTITIONS, folder, network, never_sync=shape.never_sync)
    return SetMachines(shape.nodes, folder, network, never_sync=shape.never_sync)


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
            endless = [load.work(), *map(load.read, range(machines.readers))]
            working = [tasks.create_task(one) for one in endless]
            yield
            load.stop()
            await machines.soon(writing, load, "not all was confirmed")
            await machines.soon(load.all_done(), load, "not all was delivered, acked and read")
            for one in working:
                one.cancel()
    except ExceptionGroup as group:
        # What ended the load is told, and not how its clients ended because of that.
        failed = (one for one in group.exceptions if isinstance(one, MachineFailed))
        raise next(failed, group.exceptions[0]) from None


async def _rounds(shape: Shape, machines: Machines, load: Load) -> AsyncIterator[Round]:
    dice = Random(shape.seed)
    await machines.soon(load.flows(), load, "nothing flowed at first")
    for number in range(machines.rounds(shape.times)):
        load.pulse.longest_gap()
        await asyncio.sleep(dice.random() * _CALM_SECONDS)
        victims = machines.victims(number, dice)
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
        await machines.look()
        yield Round(
            [victim.name for victim in victims], again, confirmed, round(up, 3),
            round(load.pulse.longest_gap(), 3),
        )  # fmt: skip


async def _tell_time(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(time_told())
    writer.close()
    await writer.wait_closed()


def _cut_and_boot(victims: Sequence[Machine]) -> None:
    cut(victims)
    for one in victims:
        one.boot()


async def _what_is_there(load: Load) -> tuple[dict[int, list[bytes]], list[Given], int]:
    """Return the values of each partition in offset order, all in the topic's order, and what the
    cluster has not done.
    """
    topic: dict[int, list[bytes]] = {}
    order: list[Given] = []
    async with load.publishing("auditor") as client:
        try:
            lag = sum(one.lag for one in await client.clusters(TOPIC, CLUSTER))
        except UnknownTopic:
            return topic, order, 0  # all is lost then
        async with client.reader(TOPIC, follow=False) as reader:
            async for message in reader:
                values = topic.setdefault(message.partition, [])
                # A hole stays one: it must not move what lies behind it.
                values += [b""] * (message.offset - len(values))
                values.append(message.value)
                order.append(given(message))
    return topic, order, lag


async def _read_anew(load: Load, count: int) -> None:
    """Let one more reader read from the beginning on, until it was given so many."""
    reading: list[Given] = []
    load.ledger.readings.append(reading)
    async with load.consuming("reader-anew") as client:
        await known(client)
        async with client.reader(TOPIC, order="total") as reader:
            while len(reading) < count:
                reading.append(given(await anext(reader)))
                load.pulse.give()
