"""The real thing: a node process on a real folder, under load, killed again and again.

WEIR_KILLS=100 for more. Every message is sent until it is confirmed, over as many connections as
that takes; in the end each must be in the topic exactly once, at the offset of its receipt.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import weir
from weir.client.client import Client, connect
from weir.client.core.retries import Backoff
from weir.client.producer.producer import PendingMessage
from weir.client.producer.receipts import Receipt
from weir.device.client import Client as DeviceClient
from weir.protocol.device import DeviceReply

KILLS = int(os.environ.get("WEIR_KILLS", "6"))
START_SECONDS = 60.0
CALM_SECONDS = 120.0 + 6 * KILLS
PRODUCERS = 2
LOCKS = 3
PARTITIONS = 2

NODE = """
import sys
from weir.server.processes.node import run
from weir.server.config_sources import load

run(load(sys.argv[1]), lambda host, port: print(port, flush=True))
"""

CONFIG = """
[node]
data = "{data}"
port = {port}

[memory]
budget_mib = 66
cache_mib = 1

[log]
segment_mib = 32
spares = 0
"""


class NodeProcess:
    """One folder and port, and whichever process serves it at the moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._child: subprocess.Popen[str] | None = None

    def start(self) -> None:
        config = self.folder / "weir.toml"
        data = (self.folder / "data").as_posix()
        config.write_text(CONFIG.format(data=data, port=self.port), encoding="utf-8")
        source = str(Path(weir.__file__).parents[1])
        with (self.folder / "errors.txt").open("a", encoding="utf-8") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-c", NODE, str(config)],
                env={**os.environ, "PYTHONPATH": source},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._child.stdout is not None
        watchdog = threading.Timer(START_SECONDS, self._child.kill)
        watchdog.start()
        line = self._child.stdout.readline()
        watchdog.cancel()
        assert line, f"the node did not come up: {self.errors()}"
        self.port = int(line)

    def errors(self) -> str:
        return (self.folder / "errors.txt").read_text(encoding="utf-8")

    def kill(self) -> None:
        """Kill -9, and nothing but the child."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(10)
            assert self._child.stdout is not None
            self._child.stdout.close()
            self._child = None


class Ledger:
    """What was sent and confirmed."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.sent: list[list[tuple[bytes, PendingMessage]]] = [[] for _ in range(PRODUCERS)]
        self.receipts: list[list[tuple[bytes, Receipt]]] = [[] for _ in range(PRODUCERS)]
        self.devices: list[tuple[int, bytes, DeviceReply]] = []


async def produce(client: Client, ledger: Ledger, number: int) -> None:
    async with client.producer("load", partition=0, linger=0.001, window=16) as producer:
        serial = 0
        while not ledger.stop.is_set():
            for _ in range(20):
                value = b"p%d-%06d" % (number, serial)
                ledger.sent[number].append((value, producer.send(value)))
                serial += 1
            await ledger.sent[number][-10][1].wait()
        await producer.flush()
        for value, sent in ledger.sent[number]:
            ledger.receipts[number].append((value, await sent.wait()))


def publish_from_devices(port: int, ledger: Ledger) -> None:
    serial = 0
    # Its waits grow to seconds while the node is killed every few tenths of one: it needs patience.
    device = DeviceClient(
        "127.0.0.1", port, hub=4711, boot=1, topic="load", partition=1, timeout=CALM_SECONDS
    )
    with device:
        while not ledger.stop.is_set():
            lock = serial % LOCKS
            values = [b"d%d-%06d" % (lock, serial + i) for i in range(8)]
            replies = device.send_many(values, lock)
            ledger.devices += [(lock, v, r) for v, r in zip(values, replies, strict=True)]
            serial += 8


async def wait_for_a_confirm(ledger: Ledger) -> None:
    """Return once something that is sent from now on is confirmed."""
    for sent in ledger.sent:
        if sent:
            await sent[-1][1].wait()


async def storm(node: NodeProcess, kills: int, dice: random.Random) -> Ledger:
    ledger = Ledger()
    backoff = Backoff(first=0.01, most=0.1)
    async with connect(
        f"weir://127.0.0.1:{node.port}", retry=backoff, request_timeout=60
    ) as client:
        await client.create_topic("load", partitions=PARTITIONS)
        producing = [asyncio.create_task(produce(client, ledger, n)) for n in range(PRODUCERS)]
        devices = asyncio.create_task(asyncio.to_thread(publish_from_devices, node.port, ledger))
        for _ in range(kills):
            # A random moment is the point here; half of them while the node has just come up.
            await asyncio.sleep(dice.random() * 0.3)
            if dice.random() < 0.5:
                await wait_for_a_confirm(ledger)
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
        await wait_for_a_confirm(ledger)
        ledger.stop.set()
        await asyncio.gather(*producing, devices)
    return ledger


async def read_all(port: int) -> dict[int, list[bytes]]:
    topic: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    async with (
        connect(f"weir://127.0.0.1:{port}") as client,
        client.reader("load", follow=False) as reader,
    ):
        async for message in reader:
            assert message.offset == len(topic[message.partition])
            topic[message.partition].append(message.value)
    return topic


def check_producers(topic: list[bytes], ledger: Ledger) -> None:
    everything = [value for sent in ledger.sent for value, _ in sent]
    assert len(everything) > KILLS
    assert sorted(topic) == sorted(everything)
    for receipts, sent in zip(ledger.receipts, ledger.sent, strict=True):
        assert [value for value, _ in receipts] == [value for value, _ in sent]
        assert all(topic[receipt.offset] == value for value, receipt in receipts)
        offsets = [receipt.offset for _, receipt in receipts]
        assert all(a < b for a, b in pairwise(offsets))


def check_devices(topic: list[bytes], ledger: Ledger) -> None:
    assert len(ledger.devices) > KILLS
    assert len(set(topic)) == len(topic)
    places = {value: offset for offset, value in enumerate(topic)}
    for lock in range(LOCKS):
        offsets = [places[value] for at, value, _ in ledger.devices if at == lock]
        assert all(a < b for a, b in pairwise(offsets))
    assert set(topic) == {value for _, value, _ in ledger.devices}


@pytest.mark.timeout(CALM_SECONDS)
def test_what_is_confirmed_survives_kill_9_exactly_once_and_in_order(
    tmp_path: Path, tell: Callable[..., None]
) -> None:
    node = NodeProcess(tmp_path)
    node.start()
    try:
        ledger = asyncio.run(storm(node, KILLS, random.Random(KILLS)))
        node.kill()
        node.start()
        topic = asyncio.run(read_all(node.port))
    finally:
        node.kill()
    check_producers(topic[0], ledger)
    check_devices(topic[1], ledger)
    tell(kills=KILLS, messages=sum(map(len, topic.values())))
