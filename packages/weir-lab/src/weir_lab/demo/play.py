"""The demo's processes at work: ready, replayed, delivered, counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console

from weir.cli.process import Signals
from weir.client.client import connect
from weir.testing.nodes import Node, running_node
from weir_lab.demo import flights, order
from weir_lab.demo.bars import Bars, Step
from weir_lab.demo.flights import ORIGINS, TOPIC, planes
from weir_lab.demo.ledger import Columns, Sent
from weir_lab.demo.outcome import Joined, Outcome, by_origin, settle
from weir_lab.demo.processes.child import Child, PartFailed
from weir_lab.demo.recording import Recording
from weir_lab.demo.tasks import (
    COUNTED,
    FULL_SPEED,
    READINGS,
    AirportTask,
    Counted,
    CrewTask,
    OrderTask,
    PipelineTask,
)
from weir_lab.demo.weather import cells, observations, source

#: With nothing at all moving for so long, what is missing is missing.
STALL_SECONDS = 60.0
#: After the last flight has come: a second copy of one would come within this.
LINGER_SECONDS = 1.0
_LOOK_SECONDS = 0.05


def play(
    scratch: Path, limit: int | None, told: Console, signals: Signals
) -> tuple[Outcome, Recording]:
    """Start everything, let it work, stop everything; return what the ledgers say, and how it went.

    Raises `WeirError` if a part cannot start or fails, and `Interrupted`.
    """
    begun = time.monotonic()
    with ExitStack() as running:
        node = running.enter_context(running_node())
        signals.check()
        asyncio.run(_create_topic(node.url))

        def start(name: str, module: str, task: msgspec.Struct) -> Child:
            return running.enter_context(
                Child(name, f"weir_lab.demo.processes.{module}", task, scratch)
            )

        # First what takes longest to start.
        spark = start(
            "Spark", "pipeline", PipelineTask(node.url, str(scratch / "spark"), str(scratch))
        )
        crew = start("crew", "crew", CrewTask(node.url, _ledger(scratch, "crew")))
        readers = start("order", "readers", OrderTask(node.url, _ledger(scratch, "order")))
        airports = [
            start(
                origin,
                "airports",
                AirportTask(origin, node.host, node.port, limit, _ledger(scratch, origin)),
            )
            for origin in ORIGINS
        ]
        bars = running.enter_context(Bars(told))
        seen = observations.count(flights.last_time(flights.table(limit)))
        performance = Play(node, airports, crew, readers, spark, seen, bars, signals)
        performance.perform()
    seconds = performance.seconds | {"total": round(time.monotonic() - begun, 3)}
    sent = {origin: _sent(scratch, origin) for origin in ORIGINS}
    received, read = _columns(scratch, "crew"), _columns(scratch, "order")
    orders = order.settle(sent, read, planes(limit)[0])
    counted = msgspec.json.decode((scratch / "spark" / COUNTED).read_bytes(), type=Counted)
    files = source.count(flights.file(flights.FILE), flights.file(observations.FILE), limit)
    joined = Joined(counted, cells.load(Path(counted.weather_path)), files)
    return settle(sent, received, joined, orders, seconds), Recording.of(sent, by_origin(received))


def _ledger(scratch: Path, name: str) -> str:
    return str(scratch / f"{name}.npz")


def _columns(scratch: Path, name: str) -> Columns:
    with np.load(_ledger(scratch, name)) as columns:
        return dict(columns)


def _sent(scratch: Path, origin: str) -> Sent:
    return Sent.read(_columns(scratch, origin))


async def _create_topic(url: str) -> None:
    async with connect(url, name="demo") as client:
        for topic in (TOPIC, observations.TOPIC):
            await client.create_topic(topic, partitions=len(ORIGINS), order="total")


class Play:
    """Waits for one thing after the other, and draws the bars meanwhile."""

    def __init__(
        self, node: Node, airports: list[Child], crew: Child, readers: Child, spark: Child,
        observations: int, bars: Bars, signals: Signals,
    ) -> None:  # fmt: skip
        """Take processes that have been started, and how much weather the airports will tell."""
        #: When what had happened, in seconds since the play began.
        self.seconds: dict[str, float] = {}
        self._node = node
        self._airports = airports
        self._crew = crew
        self._readers = readers
        self._spark = spark
        self._observations = observations
        self._bars = bars
        self._signals = signals
        self._begun = time.monotonic()

    def perform(self) -> None:
        """Let all flights be replayed, delivered and counted, and every process end.

        Raises `PartFailed` if a process fails or stands still, and `Interrupted`. Messages that do
        not come are no error here: the ledgers will tell.
        """
        self._need(self._all_ready, "not ready")
        for airport in self._airports:
            airport.cue()
        # A JVM that starts takes all cores for a while: only latencies under load go on then.
        paced = (FULL_SPEED, "done")
        self._need(lambda: all(a.status.state in paced for a in self._airports), "not paced")
        self._spark.cue()
        self._need(lambda: all(airport.done for airport in self._airports), "not done")
        self._mark("replayed")
        self._readers.cue()
        self._wait(lambda: self._crew.status.done >= self._total)
        self._mark("delivered")
        self._wait(lambda: self._spark.status.done >= self._total + self._observations)
        self._mark("read_by_spark")
        left = LINGER_SECONDS - (time.monotonic() - self._begun - self.seconds["delivered"])
        self._pause(left)
        for part in (self._crew, self._spark):
            part.cue()
        self._need(lambda: all(part.done for part in self._parts), "not done")
        self._mark("counted")

    @property
    def _parts(self) -> list[Child]:
        return [*self._airports, self._crew, self._readers, self._spark]

    @property
    def _total(self) -> int:
        return sum(airport.status.of or 0 for airport in self._airports)

    def _all_ready(self) -> bool:
        return (
            self._crew.status.state == "pulls"
            and self._readers.status.state == "reads"
            and all(airport.status.of is not None for airport in self._airports)
        )

    def _mark(self, what: str) -> None:
        self.seconds[what] = round(time.monotonic() - self._begun, 3)

    def _need(self, until: Callable[[], bool], otherwise: str) -> None:
        if not self._wait(until):
            late = [part.name for part in self._parts if not part.done]
            raise PartFailed(
                f"{', '.join(late)}: {otherwise}, and nothing has moved for {STALL_SECONDS:g} s; "
                "is the machine very busy?"
            )

    def _wait(self, until: Callable[[], bool]) -> bool:
        """Return True once `until()`, or False when nothing moves any more."""
        moved, since = None, time.monotonic()
        while not until():
            self._look()
            if (now := [part.status for part in self._parts]) != moved:
                moved, since = now, time.monotonic()
            elif time.monotonic() - since > STALL_SECONDS:
                return False
            time.sleep(_LOOK_SECONDS)
        self._look()
        return True

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look()
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> None:
        """Raise what has gone wrong; draw the bars."""
        self._signals.check()
        for part in self._parts:
            part.done  # noqa: B018  # raises if the process has failed
        if not self._node.running:
            raise PartFailed(f"the node has ended: {self._node.said()[-500:]}")
        if self._spark.status.done and "spark_reads" not in self.seconds:
            self._mark("spark_reads")
        self._bars.show(
            [
                Step(
                    part.name,
                    part.status.state,
                    part.status.done,
                    self._messages_of(part),
                )
                for part in self._parts
            ]
        )

    def _messages_of(self, part: Child) -> int | None:
        count = messages_of(part, self._airports, self._readers)
        if count is None or part is not self._spark:
            return count
        return count + self._observations


def messages_of(part: Child, airports: Sequence[Child], readers: Child) -> int | None:
    """Return how many messages a part handles in all; None while that is not known."""
    if part.status.of is not None:
        return part.status.of
    numbers = [airport.status.of for airport in airports if airport.status.of is not None]
    if len(numbers) < len(airports):
        return None
    return sum(numbers) * (READINGS if part is readers else 1)
