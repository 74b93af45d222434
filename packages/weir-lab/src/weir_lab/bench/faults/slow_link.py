"""`python -m weir_lab.bench.faults.slow_link`: entries of 1 MiB over slow or long links cause no
election.

Three nodes, each in a network namespace of its own, with a disk of this machine. One such entry
takes a cable of 100 Mbit/s 84 ms, and 8 MiB may be under way to each follower: heartbeats that
stood in line behind them would come later than any election timeout. With `--round-trip-ms` the
cables are long instead.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from weir.client.client import connect
from weir.client.producer.producer import Producer
from weir.errors import WeirError
from weir.model.limits import MIB
from weir.server.disk.node_folder import new_system
from weir.server.interpreter import environment, python
from weir_lab.bench.harness.far import FarNetwork
from weir_lab.bench.harness.machine import Machine, this_machine
from weir_lab.bench.harness.member import FIGURES_PORT, PORT, UP
from weir_lab.bench.harness.network import HOST, Network, addresses, enter

_NODES = 3
_TOPIC = "large"
_WINDOW = 8
_PATIENCE_SECONDS = 60.0
#: What a partition keeps: a run of minutes must not fill the disk.
_RETENTION = 256 * MIB
_TERM = re.compile(r'^weir_raft_term\{[^}]*topic="(?P<topic>[^"]*)"[^}]*\} (?P<term>\d+)', re.M)


class Shape(msgspec.Struct, frozen=True):
    """How many entries of which size go over cables of which speed, to so many partitions.

    With one, all of it leaves its leader twice; with three, every node leads and follows.
    """

    entries: int = 120
    entry_bytes: int = (1 << 20) - 4_096
    mbit: int = 100
    partitions: int = 1
    #: A leader stands still for so long: the fault that elections are the answer to.
    pause_s: float = 0.0
    #: More entries follow until so many seconds are over.
    seconds: float = 0.0
    #: Above 0 the cables are long instead of slow: what is sent and answered takes so long.
    round_trip_ms: float = 0.0


class Result(msgspec.Struct, frozen=True):
    """What it came to. `elections` counts those of all groups on all nodes, so some thrice. Of the
    entries that were `sent`, so many were `confirmed`.
    """

    shape: Shape
    machine: Machine
    elections: int
    sent: int
    confirmed: int
    seconds: float
    #: What went over the busiest cable, over what it could have carried in this time.
    cable_used: float
    #: From a lone publish to its confirm, which takes two round trips.
    lone_ms: float


class NodeFailed(WeirError):
    """A node did not come up; the message holds what it said."""


@contextmanager
def _nodes(folder: Path, shape: Shape) -> Iterator[tuple[list[str], list[subprocess.Popen[str]]]]:
    """Run the nodes; their addresses are reached over the slow or long cables."""
    far = FarNetwork(shape.round_trip_ms / 1_000, HOST) if shape.round_trip_ms else None
    network = Network() if far is None else None
    hosts, system = addresses(_NODES), new_system()
    processes: list[subprocess.Popen[str]] = []
    try:
        for number, host in enumerate(hosts, 1):
            command = python(
                "weir_lab.bench.harness.member", "--data", str(folder / f"node-{number}"),
                "--node", str(number), "--hosts", ",".join(hosts), "--system", str(system),
                "--budget-mib", "128",
            )  # fmt: skip
            # It waits for its cable, which can be plugged in once its namespace is there.
            process = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", 'echo; read go; exec "$@"', "sh", *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True,
            )  # fmt: skip
            processes.append(process)
            _line(process)
            if far is not None:
                far.cable(process.pid, host)
            elif network is not None:
                network.throttle(network.cable(process.pid, host), shape.mbit, process.pid)
        with far or nullcontext():
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            for process in processes:
                if _line(process) != UP:
                    raise NodeFailed("a node did not come up: see what it said above")
            yield hosts, processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _terms(hosts: Sequence[str]) -> list[int]:
    """Return the term of each group of the topic on each node, in their order."""
    terms = []
    for host in hosts:
        with urllib.request.urlopen(f"http://{host}:{FIGURES_PORT}/metrics", timeout=10) as page:
            text = page.read().decode()
        terms += [int(m["term"]) for m in _TERM.finditer(text) if m["topic"].endswith(_TOPIC)]
    return terms


async def measure(shape: Shape) -> Result:
    """Publish to all partitions at once, and see whether any term rises."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-slow-link-") as folder,
        _nodes(Path(folder), shape) as (hosts, processes),
    ):
        url = "weir://" + ",".join(f"{host}:{PORT}" for host in hosts)
        async with asyncio.timeout(_PATIENCE_SECONDS + shape.entries + shape.seconds):
            async with connect(url, request_timeout=_PATIENCE_SECONDS) as client:
                await client.create_topic(
                    _TOPIC, partitions=shape.partitions, retention_bytes=_RETENTION
                )
                async with client.producer(_TOPIC, window=_WINDOW, linger=0) as producer:
                    for partition in range(shape.partitions):
                        alone = time.monotonic()
                        await producer.publish(b"begun", partition=partition)
                        lone_ms = round((time.monotonic() - alone) * 1e3, 1)
                    leaders = [at.node for at in (await client.describe(_TOPIC)).addresses]
                    before = await asyncio.to_thread(_terms, hosts)
                    began = time.monotonic()
                    sent, _ = await asyncio.gather(
                        _send(producer, shape), _pause(processes[leaders[0] - 1], shape)
                    )
                    await producer.flush()
                    seconds = time.monotonic() - began
                _, ends = await client.positions(_TOPIC)
            after = await asyncio.to_thread(_terms, hosts)
    if len(before) != _NODES * shape.partitions or len(after) != len(before):
        raise NodeFailed(f"not every node told its terms: {before}, {after}")
    elections = sum(now - then for then, now in zip(before, after, strict=True))
    # Every entry comes to each node once, and leaves its leader to each of the others.
    most_led = max(map(leaders.count, leaders)) / len(leaders)
    bits = sent * shape.entry_bytes * 8 * max(1.0, (_NODES - 1) * most_led)
    least_s = bits / (shape.mbit * 1_000_000)
    confirmed = sum(ends) - shape.partitions
    used = 0.0 if shape.round_trip_ms else round(least_s / seconds, 3)
    took = round(seconds, 2)
    return Result(shape, this_machine(), elections, sent, confirmed, took, used, lone_ms)


async def _send(producer: Producer, shape: Shape) -> int:
    """Return how many entries were sent."""
    until, number = time.monotonic() + shape.seconds, 0
    while number < shape.entries or time.monotonic() < until:
        await producer.ready()
        value = number.to_bytes(4, "big") + bytes(shape.entry_bytes - 4)
        producer.send(value, partition=number % shape.partitions)
        number += 1
    return number


async def _pause(process: subprocess.Popen[str], shape: Shape) -> None:
    if shape.pause_s:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(shape.pause_s)
        process.send_signal(signal.SIGCONT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nobody was elected and everything is there, 1 if not, 2 if it cannot be tried."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="python -m weir_lab.bench.faults.slow_link")
    parser.add_argument("--entries", type=int, default=Shape().entries)
    parser.add_argument("--partitions", type=int, default=Shape().partitions)
    parser.add_argument("--seconds", type=float, default=Shape().seconds)
    parser.add_argument("--mbit", type=int, default=Shape().mbit)
    parser.add_argument("--pause-s", type=float, default=Shape().pause_s)
    parser.add_argument("--round-trip-ms", type=float, default=Shape().round_trip_ms)
    parser.add_argument("--entry-bytes", type=int, default=Shape().entry_bytes)
    wanted = parser.parse_args(given)
    shape = Shape(**vars(wanted))
    try:
        enter("weir_lab.bench.faults.slow_link", given, ("tc", "nsenter"))
        result = asyncio.run(measure(shape))
    except WeirError as error:
        print(error, file=sys.stderr)
        return 2
    print(msgspec.json.format(msgspec.json.encode(result)).decode())
    return 0 if result.elections == 0 and result.confirmed == result.sent else 1


if __name__ == "__main__":
    sys.exit(main())
