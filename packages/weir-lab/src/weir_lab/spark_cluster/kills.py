"""`make pipeline-kills`: drivers, executors and leaders are killed under a pipeline.

Each is killed with SIGKILL, in turn. Messages flow into a topic of three nodes; a job on a Spark
cluster writes them to a second topic, and that to a Delta table. A process that was killed is
started again. In the end each message is in the second topic once, by a count of a plain reader,
and in the table once, by that count and by the audit job.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from weir.client.client import connect
from weir.errors import WeirError
from weir.spark.session import use_java
from weir.testing.nodes import NodeSet, Patient, running_set
from weir_lab.bench.harness.machine import family
from weir_lab.cli.measured import print_measured
from weir_lab.spark_cluster import relay
from weir_lab.spark_cluster.environments import Environments
from weir_lab.spark_cluster.standalone import SparkFailed, Standalone, kill, last_words
from weir_lab.spark_cluster.submission import Job, Submitter

NODES = 3
PARTITIONS = 4
SOURCE, TARGET = "readings", "relayed"
#: What to kill, in turn.
KINDS = ("driver", "executor", "leader")
#: Before a kill, so many messages of the last one's time are in the table.
_MORE_ROWS = 500
#: A job that was killed has so long until it does something again.
_PATIENCE_SECONDS = 240.0
_LOOK_SECONDS = 0.3
_PUBLISHED_AT_ONCE = 100

Say = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True):
    """So many `times` each kind is killed, under `rate` messages a second; `seed` says when."""

    times: int = 10
    rate: int = 200
    seed: int = 1


class Result(msgspec.Struct, frozen=True):
    """What was counted. `lost` and `repeated` are of messages in the second topic, `lake_...` of
    those in the table; `audit_...` is what the audit job says of topic and table.
    """

    seconds: float
    sent: int
    drivers: int
    executors: int
    leaders: int
    starts: int
    lost: int
    repeated: int
    lake_lost: int
    lake_repeated: int
    audit_lost: int
    audit_repeated: int

    @property
    def clean(self) -> bool:
        """Whether each message is where it is to be, once."""
        wrong = self.lost + self.repeated + self.lake_lost + self.lake_repeated
        return not (wrong + self.audit_lost + self.audit_repeated)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if each message is where it is to be, once."""
    parser = argparse.ArgumentParser(prog="make pipeline-kills", description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="how often each kind is killed")
    parser.add_argument("--rate", type=int, default=200, help="messages a second")
    parser.add_argument("--seed", type=int, default=1, help="decides what is killed, and when")
    parser.add_argument("--environments", type=Path, default=Path("build/cluster"),
                        help="the folder in which environments are made and kept")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    if min(chosen.times, chosen.rate) < 1:
        parser.error("--times and --rate: give 1 or more")
    settings = Settings(chosen.times, chosen.rate, chosen.seed)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        environments = Environments(Path.cwd(), chosen.environments.resolve())
        with tempfile.TemporaryDirectory(prefix="weir-kills-") as name:
            result = measure(settings, Path(name).resolve(), environments, say)
    except (WeirError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.json:
        print_measured(
            "weir.pipeline-kills/1", msgspec.to_builtins(settings), msgspec.to_builtins(result)
        )
    else:
        print(
            f"{result.sent:,} messages; {result.drivers} drivers, {result.executors} executors and "
            f"{result.leaders} leaders were killed. In the topic: lost {result.lost}, repeated "
            f"{result.repeated}; in the table: lost {result.lake_lost}, repeated "
            f"{result.lake_repeated}; by the audit: lost {result.audit_lost}, repeated "
            f"{result.audit_repeated}"
        )
    return 0 if result.clean else 1


class Publisher(threading.Thread):
    """Publishes numbers, one after the other, until it is told to end; each is confirmed."""

    def __init__(self, url: str, rate: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._rate = rate
        self.ending = threading.Event()
        self.sent = 0
        self.error: WeirError | None = None

    def run(self) -> None:
        """Publish; keep the error that ended it too early."""
        try:
            asyncio.run(self._publish())
        except WeirError as error:
            self.error = error

    async def _publish(self) -> None:
        async with connect(self._url) as client, client.producer(SOURCE) as producer:
            while not self.ending.is_set():
                some = range(self.sent, self.sent + _PUBLISHED_AT_ONCE)
                for number in some:
                    await producer.send(b"%d" % number, key=b"device-%d" % (number % 50))
                await producer.flush()
                self.sent = some.stop
                await asyncio.sleep(_PUBLISHED_AT_ONCE / self._rate)


class Keeper(threading.Thread):
    """Submits a job, and again whenever it has ended, until the stop file is there."""

    def __init__(self, submitter: Submitter, job: Job, stop: Path) -> None:
        super().__init__(daemon=True)
        self._submitter = submitter
        self._job = job
        self._stop_file = stop
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def log(self) -> Path:
        """What the last run wrote."""
        return self._submitter.folder / f"{self._job.name}-{self.starts}.log"

    def run(self) -> None:
        """Keep the job running."""
        while not self._stop_file.exists():
            self.starts += 1
            self._submitter.prepare()
            with self.log.open("wb") as log:
                self.process = self._submitter.start(self._job, log, log)
                self.process.wait()

    def kill(self) -> None:
        """Kill the driver, and all that it has started on this machine."""
        if self.process is not None:
            kill(family(self.process.pid))


@dataclass(slots=True)
class Pipeline:
    """All that runs."""

    nodes: NodeSet
    cluster: Standalone
    keeper: Keeper
    publisher: Publisher
    lake: Path
    say: Say

    def rows(self) -> int:
        """Return how many rows the table has."""
        return len(lake_values(self.lake))

    def wait_for(self, rows: int) -> None:
        """Return once the table has so many rows. Raises `SparkFailed` where it stands still."""
        seen, since = -1, time.monotonic()
        while (there := self.rows()) < rows:
            if there > seen:
                seen, since = there, time.monotonic()
            if time.monotonic() - since > _PATIENCE_SECONDS:
                raise SparkFailed(
                    f"the table stands still at {there:,} rows of {rows:,}: "
                    f"{last_words(self.keeper.log, 3)}"
                )
            if self.publisher.error is not None:
                raise self.publisher.error
            time.sleep(_LOOK_SECONDS)

    def kill(self, kind: str, dice: random.Random) -> None:
        """Kill one of a kind, once there is one. Raises `SparkFailed` if none comes."""
        if kind == "driver":
            self.keeper.kill()
        elif kind == "executor":
            kill([dice.choice(self._executors())])
        else:
            leader = asyncio.run(_leader(self.nodes.url, dice.randrange(PARTITIONS)))
            self.nodes.kill([leader])
            time.sleep(dice.uniform(0.1, 1.0))
            self.nodes.start_again([leader])
            self.nodes.wait([leader], Patient())

    def _executors(self) -> list[int]:
        """Return the process ids of executors: after a kill of a driver there may be none yet."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            running = [pid for worker in self.cluster.workers for pid in worker.executors()]
            if running:
                return running
            if time.monotonic() > until:
                raise SparkFailed(f"no executor runs: {last_words(self.keeper.log, 3)}")
            time.sleep(_LOOK_SECONDS)


def measure(settings: Settings, folder: Path, environments: Environments, say: Say) -> Result:
    """Run it all in `folder`. Raises `WeirError` for what comes to no end."""
    began = time.monotonic()
    dice = random.Random(settings.seed)
    killed: Counter[str] = Counter()
    with _running(settings, folder, environments, say) as pipeline:
        pipeline.wait_for(_MORE_ROWS)
        for number in range(settings.times):
            for kind in KINDS:
                rows = pipeline.rows()
                time.sleep(dice.uniform(0.0, 2.0))
                pipeline.kill(kind, dice)
                killed[kind] += 1
                say(f"kill {number + 1} of {settings.times}: {kind}, at {rows:,} rows")
                pipeline.wait_for(rows + _MORE_ROWS)
        pipeline.publisher.ending.set()
        pipeline.publisher.join(_PATIENCE_SECONDS)
        sent = pipeline.publisher.sent
        say(f"{sent:,} messages are sent; waiting until all of them are in the table")
        pipeline.wait_for(sent)
        time.sleep(3.0)  # what is there twice may come a little later
        target = asyncio.run(_messages(pipeline.nodes.url))
        starts = pipeline.keeper.starts
    wanted = Counter(b"%d" % number for number in range(sent))
    relayed = Counter(value for *_, value in target)
    archived = Counter(lake_values(pipeline.lake))
    audited = _audit(folder, target, pipeline.lake)
    return Result(
        round(time.monotonic() - began, 1), sent, killed["driver"], killed["executor"],
        killed["leader"], starts, (wanted - relayed).total(), (relayed - wanted).total(),
        (wanted - archived).total(), (archived - wanted).total(), *audited,
    )  # fmt: skip


@contextmanager
def _running(
    settings: Settings, folder: Path, environments: Environments, say: Say
) -> Iterator[Pipeline]:
    java = use_java()
    homes = [environments.spark(name) for name in ("master", "worker-1", "worker-2")]
    archive = environments.pack()
    say(f"starting {NODES} nodes, a Spark master and two workers")
    stop, lake = folder / "stop", folder / "lake"
    with (
        running_set(folder / "weir", NODES) as nodes,
        Standalone(folder / "spark", java, homes[0], homes[1:]) as cluster,
    ):
        asyncio.run(_create(nodes.url))
        submitter = Submitter(cluster.url, archive, folder / "driver", java, len(cluster.workers))
        arguments = (nodes.url, SOURCE, TARGET, str(lake), str(folder / "checkpoint"), str(stop))
        keeper = Keeper(submitter, Job("relay", Path(relay.__file__), arguments), stop)
        publisher = Publisher(nodes.url, settings.rate)
        publisher.start()
        keeper.start()
        try:
            yield Pipeline(nodes, cluster, keeper, publisher, lake, say)
        finally:
            publisher.ending.set()
            stop.touch()
            keeper.join(_PATIENCE_SECONDS / 4)
            keeper.kill()
            publisher.join(_PATIENCE_SECONDS)


async def _create(url: str) -> None:
    async with connect(url) as client:
        while True:
            level = (await client.nodes.raise_level()).level
            if level >= 3:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        for topic in (SOURCE, TARGET):
            await client.create_topic(topic, PARTITIONS, order="total")


async def _leader(url: str, partition: int) -> int:
    """Return the node that leads a partition of the second topic."""
    async with connect(url) as client:
        while True:
            info = await client.describe(TARGET)
            if node := info.addresses[partition].node:
                return node
            await asyncio.sleep(_LOOK_SECONDS)


async def _messages(url: str) -> list[tuple[int, int, int, bytes]]:
    """Return partition, offset, stamp and value of all messages of the second topic."""
    found = []
    async with connect(url) as client, client.reader(TARGET, follow=False) as reader:
        async for one in reader:
            found.append((one.partition, one.offset, one.stamp, one.value))
    return found


def lake_values(folder: Path) -> list[bytes]:
    """Return the values of a Delta table; none while it is not there yet."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    with suppress(TableNotFoundError):
        table = DeltaTable(str(folder)).to_pyarrow_table(columns=["value"])
        return [value for value in table["value"].to_pylist() if value is not None]
    return []


def _audit(folder: Path, target: list[tuple[int, int, int, bytes]], lake: Path) -> tuple[int, int]:
    """Return what, as the audit job says, is lost and repeated between topic and table."""
    from pyspark.sql import functions as F

    from weir.spark.jobs.audit import audit, received_from, records
    from weir.spark.session import session

    record = folder / "sent.jsonl"
    with record.open("wb") as lines:
        for partition, offset, stamp, _ in target:
            row = {"kind": "sent", "topic": f"default/{TARGET}", "partition": partition,
                   "offset": offset, "stamp": stamp, "at_us": 0}  # fmt: skip
            lines.write(msgspec.json.encode(row) + b"\n")
    spark = session("audit")
    try:
        rows = spark.read.parquet(*_files(lake))
        got = received_from(rows.withColumn("topic", F.lit(f"default/{TARGET}")), "lake")
        judged = audit(records(spark, [str(record)]).unionByName(got))
        told = judged.to_json()
        return int(told["lost"]), int(told["repeated"])
    finally:
        spark.stop()


def _files(lake: Path) -> list[str]:
    from deltalake import DeltaTable

    return [str(path) for path in DeltaTable(str(lake)).file_uris()]


if __name__ == "__main__":
    sys.exit(main())
