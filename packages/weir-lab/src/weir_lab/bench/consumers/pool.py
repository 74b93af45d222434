"""`python -m weir_lab.bench.consumers.pool`: `weir work` before a backlog: more processes, and then
fewer.

A topic is filled, and the real command runs a handler that takes 2 ms a message. How many processes
there are is what the broker sees: consumers of the cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from weir.client.client import Client, connect
from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir.testing.nodes import NodeSet, running_set
from weir_lab.bench.consumers import pool_app
from weir_lab.bench.consumers.pool_app import CLUSTER, TOPIC
from weir_lab.bench.harness.machine import Machine, this_machine

_PARTITIONS = 2
_PUBLISHED_AT_ONCE = 1_000
_LOOK_SECONDS = 0.1
_ROW_SECONDS = 1.0
_END_SECONDS = 60.0


class Shape(msgspec.Struct, frozen=True):
    """`backlog` messages of `work_ms` each, for `least` to `most` processes."""

    backlog: int = 100_000
    work_ms: float = 2.0
    least: int = 1
    most: int = 8
    cool_down_s: float = 10.0
    deadline_s: float = 600.0


class Moment(msgspec.Struct, frozen=True):
    """So many seconds after the start: messages not done, processes at work, and wanted."""

    seconds: float
    left: int
    processes: int
    wanted: int
    why: str = ""


class Result(msgspec.Struct, frozen=True):
    """How long it took, in seconds from the start: until all processes were there, until all was
    done; and from then on until only the least were left.
    """

    shape: Shape
    machine: Machine
    most_processes: int
    to_most_s: float | None
    done_s: float
    to_least_s: float
    messages_per_s: float
    lost: int
    repeated: int
    timeline: list[Moment]

    @property
    def clean(self) -> bool:
        """Whether the pool grew to its most, and each message was handled once."""
        return not (self.lost or self.repeated or self.to_most_s is None)


def measure(shape: Shape, tell: Callable[[Moment], None]) -> Result:
    """Run it all. Raises `WeirError` if it does not come to an end."""
    with tempfile.TemporaryDirectory(prefix="weir-pool-") as name:
        folder = Path(name)
        notes = folder / "notes.txt"
        notes.touch()
        with running_set(folder, 1) as nodes:
            run = _Run(shape, tell)
            try:
                asyncio.run(run.run(nodes, notes))
            except TimeoutError:
                raise WeirError(f"not over after {shape.deadline_s:g} s: {run.last}") from None
        done = Counter(notes.read_text(encoding="utf-8").split())
    return Result(
        shape,
        this_machine(),
        run.most,
        run.to_most,
        run.done,
        round(run.last.seconds - run.done, 1),
        round(shape.backlog / run.done, 1),
        sum(str(number) not in done for number in range(shape.backlog)),
        done.total() - len(done),
        run.timeline,
    )


class _Run:
    """A backlog, `weir work`, and what is seen of both."""

    def __init__(self, shape: Shape, tell: Callable[[Moment], None]) -> None:
        self.timeline: list[Moment] = []
        self.last = Moment(0.0, shape.backlog, 0, 0)
        self.most = 0
        self.to_most: float | None = None
        self.done = 0.0
        self._shape = shape
        self._tell = tell
        self._began = 0.0
        self._wanted = 0

    async def run(self, nodes: NodeSet, notes: Path) -> None:
        """Return when there are as few processes as before. Raises `TimeoutError`, `WeirError`."""
        async with asyncio.timeout(self._shape.deadline_s), connect(nodes.url) as client:
            await client.create_topic(TOPIC, partitions=_PARTITIONS)
            await self._fill(client)
            async with self._working(nodes.url, notes) as process:
                self._began = time.monotonic()
                hearing = asyncio.ensure_future(self._hear(process))
                try:
                    while not await self._over(client):
                        if hearing.done():
                            hearing.result()
                            raise WeirError(f"weir work ended with code {process.returncode}")
                        await asyncio.sleep(_LOOK_SECONDS)
                finally:
                    hearing.cancel()
                    await asyncio.wait((hearing,))

    async def _fill(self, client: Client) -> None:
        backlog = self._shape.backlog
        async with client.producer(TOPIC) as producer:
            for first in range(0, backlog, _PUBLISHED_AT_ONCE):
                numbers = range(first, min(first + _PUBLISHED_AT_ONCE, backlog))
                await producer.send_many([b"%d" % number for number in numbers])
            await producer.flush()

    @asynccontextmanager
    async def _working(self, url: str, notes: Path) -> AsyncIterator[Process]:
        shape = self._shape
        words = python(
            "weir.cli", "work", f"{pool_app.__name__}:app", "--cluster", CLUSTER, "--url", url,
            "--min", str(shape.least), "--max", str(shape.most),
            "--cool-down", f"{shape.cool_down_s:g}s", "--json",
        )  # fmt: skip
        told = {pool_app.NOTES: str(notes), pool_app.WORK_MS: str(shape.work_ms)}
        process = await asyncio.create_subprocess_exec(
            *words, env={**environment(), **told}, stdout=PIPE, start_new_session=True
        )
        try:
            yield process
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()  # what it started ends with it
                await process.wait()

    async def _hear(self, process: Process) -> None:
        """Keep what `weir work` says it wants, and why."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            event = json.loads(line)
            if event["event"] == "scaled":
                self._wanted = event["wanted"]
                self._note(self.last.left, self.last.processes, event["why"])

    async def _over(self, client: Client) -> bool:
        """Look; return whether all is done, and only the least are left."""
        left, processes = self._shape.backlog, 0
        for one in await client.clusters(TOPIC, CLUSTER):
            left, processes = one.lag, one.consumers
        seconds = time.monotonic() - self._began
        self.most = max(self.most, processes)
        if self.to_most is None and processes >= self._shape.most:
            self.to_most = round(seconds, 1)
        if not left and not self.done:
            self.done = round(seconds, 1)
            self._note(left, processes)
        if not self.timeline or seconds >= self.timeline[-1].seconds + _ROW_SECONDS:
            self._note(left, processes)
        self.last = Moment(round(seconds, 1), left, processes, self._wanted)
        over = not left and self._wanted == processes == self._shape.least
        if over:
            self._note(left, processes)
        return over

    def _note(self, left: int, processes: int, why: str = "") -> None:
        seconds = round(time.monotonic() - self._began, 1)
        self.timeline.append(Moment(seconds, left, processes, self._wanted, why))
        self._tell(self.timeline[-1])


def line(one: Moment) -> str:
    """Return a moment as a person reads it."""
    why = f"  {one.wanted} wanted: {one.why}" if one.why else ""
    return (
        f"{one.seconds:6.1f} s {one.left:>9,} left {one.processes:>3}  {'#' * one.processes}{why}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the pool grew, shrank, and all was done once; 1 if not, 2 without an end."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.consumers.pool", description=__doc__
    )
    for name in Shape.__struct_fields__:
        value = getattr(Shape(), name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--json", action="store_true")
    wanted = vars(parser.parse_args(arguments))
    output = sys.stderr if wanted.pop("json") else sys.stdout
    try:
        result = measure(Shape(**wanted), lambda one: print(line(one), file=output, flush=True))
    except WeirError as error:
        print(error, file=sys.stderr)
        return 2
    if output is sys.stderr:
        print(msgspec.json.encode(result).decode())
    else:
        print(
            f"{result.most_processes} processes after {result.to_most_s} s; all done after "
            f"{result.done_s} s ({result.messages_per_s:,.0f}/s); {result.shape.least} left "
            f"{result.to_least_s} s later; lost {result.lost}, repeated {result.repeated}"
        )
    return 0 if result.clean else 1


if __name__ == "__main__":
    sys.exit(main())
