"""`make cluster`: jobs of weir on a real Spark cluster, and what shows that they ran there.

A broker of three nodes, a Spark master and two workers run as processes, each Spark in an
environment of its own that has no weir. The delays job, and a stream into Parquet that is stopped
and continues from its checkpoint, are given to the master by `spark-submit`, with a packed
environment. While the stream continues, an executor is killed. Then all rows are compared with
those that were sent, and the master's list of applications says where the jobs ran.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from weir.client.client import connect
from weir.errors import WeirError
from weir.spark.jobs import delays
from weir.spark.session import use_java
from weir.testing.nodes import NodeSet, running_set
from weir_lab.cli.measured import print_measured
from weir_lab.demo.flights import TOPIC
from weir_lab.spark_cluster import flights, rows
from weir_lab.spark_cluster.environments import Environments
from weir_lab.spark_cluster.standalone import Application, Daemon, SparkFailed, Standalone, kill
from weir_lab.spark_cluster.submission import Job, Submitter

NODES = 3
WORKERS = 2
_FLIGHTS = 60_000
_LISTED_SECONDS = 20.0
_LOOK_SECONDS = 0.1

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that ended well: what the master lists of it, and how long it took."""

    application: Application
    seconds: float


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial came to: jobs in their order, rows that were compared, and where these were
    read: environments of executors, all unpacked by workers.
    """

    master: str
    jobs: tuple[Ran, ...]
    flights: int
    delay_rows: int
    copied_rows: int
    environments: tuple[str, ...]
    archive_bytes: int
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trial; 0 if all rows are right and every job ran on the cluster."""
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--flights", type=int, default=_FLIGHTS, help="how many to send")
    parser.add_argument("--environments", type=Path, default=Path("build/cluster"),
                        help="the folder in which environments are made and kept")  # fmt: skip
    parser.add_argument("--keep", type=Path, help="keep logs and results in this new folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    if chosen.flights < 2:
        parser.error("--flights: give 2 or more, for they are sent in two halves")
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {text}", file=sys.stderr, flush=True)

    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="weir-cluster-"))
    try:
        if chosen.keep:
            folder.mkdir(parents=True)
        environments = Environments(Path.cwd(), chosen.environments.resolve())
        trial = run(folder.resolve(), environments, chosen.flights, say)
    except (WeirError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if chosen.json:
        settings = {"flights": chosen.flights, "nodes": NODES, "workers": WORKERS}
        print_measured("weir.cluster-trial/1", settings, asdict(trial))
    else:
        for line in told(trial):
            print(line)
    return 0


def run(folder: Path, environments: Environments, limit: int, say: Say) -> Trial:
    """Run the trial in `folder`. Raises `WeirError` for the first thing that is wrong."""
    begun = time.monotonic()
    java = use_java()
    say("environments: Spark for a master and two workers")
    homes = [environments.spark(name) for name in ("master", "worker-1", "worker-2")]
    say("environments: weir, packed")
    archive = environments.pack()
    say(f"packed: {archive.stat().st_size / 1e6:,.0f} MB; starting {NODES} nodes of weir")
    sent = flights.values(limit)
    halves = [len(values) // 2 for values in sent]
    with running_set(folder / "weir", NODES) as nodes:
        send(nodes, [values[:half] for values, half in zip(sent, halves, strict=True)])
        say("half of the flights are sent; starting a Spark master and two workers")
        with Standalone(folder / "spark", java, homes[0], homes[1:]) as cluster:
            submitter = Submitter(cluster.url, archive, folder / "driver", java, WORKERS)
            copy = _job(rows.__file__, "rows", nodes.url, folder)
            jobs = [_submit(cluster, submitter, copy, nodes, say)]
            send(nodes, [values[half:] for values, half in zip(sent, halves, strict=True)])
            say("all flights are sent; the stream continues, and an executor is killed")
            killing = Killing(cluster.workers[0])
            jobs.append(_submit(cluster, submitter, copy, nodes, say, killing.look))
            if killing.killed is None:
                raise SparkFailed("no executor was seen to run, so none was killed")
            count = _job(delays.__file__, "delays", nodes.url, folder)
            jobs.append(_submit(cluster, submitter, count, nodes, say))
            work = [worker.folder / "work" for worker in cluster.workers]
    say("comparing rows")
    copied = flights.check_rows(folder / "rows", sent)
    counted = flights.check_delays(folder / "delays" / "delays", flights.delays(limit))
    return Trial(
        cluster.url, tuple(jobs), sum(map(len, sent)), counted, len(copied),
        check_environments(copied, work), archive.stat().st_size, time.monotonic() - begun,
    )  # fmt: skip


class Killing:
    """Kills one executor of a worker, once it runs."""

    def __init__(self, worker: Daemon) -> None:
        """Take whose executor is to be killed; `killed` is its process id when that is done."""
        self.killed: int | None = None
        self._worker = worker

    def look(self) -> None:
        """Kill an executor if there is one, and none was killed before."""
        if self.killed is None and (found := self._worker.executors()):
            self.killed = found[0]
            kill([self.killed])


def send(nodes: NodeSet, sent: Sequence[Sequence[bytes]]) -> None:
    """Publish values by partition, in their order, to the topic, which is created if need be."""

    async def work() -> None:
        async with connect(nodes.url) as client:
            await client.create_topic(TOPIC, len(sent), "total")
            for partition, values in enumerate(sent):
                async with client.producer(TOPIC, partition=partition) as producer:
                    await producer.send_many(values)

    asyncio.run(work())


def check_environments(copied: pa.Table, work: Sequence[Path]) -> tuple[str, ...]:
    """Return the environments that read rows. Raises `SparkFailed` unless each lies where a worker
    unpacked it, has the weir that was read with, and every worker has one.
    """
    places = set(zip(copied["environment"].to_pylist(), copied["package"].to_pylist(), strict=True))
    used = set()
    for environment, package in places:
        worker = next((one for one in work if Path(environment).is_relative_to(one)), None)
        if worker is None or not Path(package).is_relative_to(environment):
            raise SparkFailed(f"rows were read in {environment} with {package}, which no worker "
                              "unpacked")  # fmt: skip
        used.add(worker)
    if unused := [str(one) for one in work if one not in used]:
        raise SparkFailed(f"no row was read by the worker of {unused[0]}")
    return tuple(sorted(environment for environment, _ in places))


def told(trial: Trial) -> list[str]:
    """Return what a trial came to, for people."""
    lines = [
        f"{ran.application.name}: {ran.application.id}, {ran.application.state}, on "
        f"{' and '.join(ran.application.workers)}, {ran.seconds:.1f} s"
        for ran in trial.jobs
    ]
    return [
        f"applications that {trial.master} lists:",
        *(f"  {line}" for line in lines),
        f"{trial.copied_rows:,} rows of {trial.flights:,} messages, each once and in its place",
        f"{trial.delay_rows:,} rows of delays, as they are without Spark",
        f"{trial.seconds:.0f} s in all; {trial.archive_bytes / 1e6:,.0f} MB were shipped",
    ]


def _job(program: str, name: str, url: str, folder: Path) -> Job:
    arguments = (url, TOPIC, str(folder / name), str(folder / f"{name}-checkpoint"))
    return Job(name, Path(program), arguments)


def _submit(
    cluster: Standalone,
    submitter: Submitter,
    job: Job,
    nodes: NodeSet,
    say: Say,
    look: Callable[[], None] = lambda: None,
) -> Ran:
    """Run a job, and find it among the applications of the master, which it ended well."""

    def check() -> None:
        if not nodes.running:
            raise SparkFailed(f"a node of weir has ended: {nodes.last_words()}")
        look()

    known = {one.id for one in cluster.applications()}
    begun = time.monotonic()
    submitter.submit(job, check)
    seconds = time.monotonic() - begun
    application = _listed(cluster, job, known)
    say(f"{job.name}: {application.id} on {' and '.join(application.workers)}, {seconds:.1f} s")
    return Ran(application, seconds)


def _listed(cluster: Standalone, job: Job, known: set[str]) -> Application:
    """Return the application that is new on the master's list, once it has ended."""
    deadline = time.monotonic() + _LISTED_SECONDS
    while True:
        new = [one for one in cluster.applications() if one.id not in known]
        if len(new) == 1 and new[0].state == "FINISHED":
            break
        if time.monotonic() > deadline:
            raise SparkFailed(f"{job.name} is not finished on the master's list: {new}")
        time.sleep(_LOOK_SECONDS)
    (one,) = new
    if one.name != job.name or len(one.workers) != len(cluster.workers):
        raise SparkFailed(f"{job.name} did not run on every worker: {one}")
    return one


if __name__ == "__main__":
    sys.exit(main())
