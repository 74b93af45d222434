"""The three platforms, as they run: what locks connect to, and what keeps their records."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from weir.server.interpreter import environment, python
from weir_lab.bench.consumers.dormitory.breakfast import WARM_UP_MAX, AtWork, Platform, measure
from weir_lab.bench.consumers.dormitory.ledger import AT_ONCE, CLUSTER, DATABASE, PROCESSES, TOPIC
from weir_lab.bench.consumers.dormitory.serving import BackEnd, Kept
from weir_lab.bench.consumers.postgres import running_postgres
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.machine import families_cpu_seconds, family_cpu_seconds
from weir_lab.bench.harness.open_files import allow_connections
from weir_lab.bench.harness.producers import Crew, ProducersFailed
from weir_lab.bench.sides.contender import Contender, Ran
from weir_lab.bench.sides.own import running_own
from weir_lab.bench.sides.peers.activemq import ActiveMq
from weir_lab.bench.sides.peers.rival import running_rival
from weir_lab.bench.sides.peers.server import free_port

DIRECT = "direct"
_STOP_SECONDS = 20.0
#: Of those who count, and what PostgreSQL keeps for itself.
_OTHER_CONNECTIONS = 20


class BatchedActiveMq(ActiveMq):
    """Stores before it dispatches, so that one sync is for many.

    By default it does both at once, to spare the sync of what is acked first. With acks that wait
    for a database nothing is spared, and it syncs one message after the other: the slower way here.
    """

    store = ' concurrentStoreAndDispatchQueues="false"'


@contextmanager
def running_direct(folder: str | None) -> Iterator[Platform]:
    """Run no broker: locks wait for processes that keep their records."""
    port = free_port()
    yield Platform(
        DIRECT,
        platform.python_version(),
        f"asyncio and uvloop, {PROCESSES} processes from the start, each with {AT_ONCE} "
        "connections; a byte for an answer",
        port,
        lambda: 0.0,
        lambda: _crew("weir_lab.bench.consumers.dormitory.serving", port),
    )


@contextmanager
def running_activemq(folder: str | None) -> Iterator[Platform]:
    """Run ActiveMQ, which stays; its consumers come with `working`."""
    with running_rival(BatchedActiveMq("nio"), folder) as rival:
        yield Platform(
            rival.label,
            rival.version,
            f"{rival.settings}, stored before dispatched; {PROCESSES} consumers, a process each, "
            "from the start",
            rival.port,
            rival.cpu_s,
            lambda: _crew("weir_lab.bench.consumers.dormitory.consuming", rival.port),
        )


@contextmanager
def running_weir(folder: str | None) -> Iterator[Platform]:
    """Run a node of weir; `weir work` comes with `working`."""
    with running_own(folder) as own:

        @asynccontextmanager
        async def working() -> AsyncIterator[AtWork]:
            await own.prepare(TOPIC)
            with _weir_work(own.node.url) as at_work:
                yield at_work

        yield Platform(
            own.label,
            own.version,
            f"{own.settings}; weir work --min 1 --max {PROCESSES}",
            own.port,
            own.cpu_s,
            working,
        )


RUNNING = {"weir": running_weir, DIRECT: running_direct, ActiveMq.name: running_activemq}
_LABELS = {ActiveMq.name: ActiveMq("nio").label}


@contextmanager
def platforms(
    peers: Sequence[str], folder: str | None, deadline_s: float
) -> Iterator[list[Contender]]:
    """Run PostgreSQL while the block runs; yields weir and its peers, which keep records in it.

    Raises `PostgresFailed`, and `NotInstalled` for a peer that is missing.
    """
    if ActiveMq.name in peers:
        ActiveMq("nio").version()
    with running_postgres(max_connections=PROCESSES * AT_ONCE + _OTHER_CONNECTIONS) as postgres:

        def run_once(name: str, amount: int) -> Ran:
            # Before a broker starts, which inherits both.
            allow_connections(amount + WARM_UP_MAX)
            os.environ[DATABASE] = postgres.url
            with RUNNING[name](folder) as platform:
                result = run(measure(platform, postgres, amount, deadline_s))
            figure = result.seconds if result.share_confirmed == 1 else None
            return Ran(platform.version, platform.settings, result, figure)

        names = ["weir", *dict.fromkeys(peers)]
        yield [
            Contender(_LABELS.get(name, name), "", True, partial(run_once, name)) for name in names
        ]


@asynccontextmanager
async def _crew(module: str, port: int) -> AsyncIterator[AtWork]:
    """Run as many processes as there may be, all of them connected before anybody comes."""
    async with Crew(module, [BackEnd(port)] * PROCESSES, Kept) as crew:
        await crew.ready()

        async def troubles() -> dict[str, int]:
            crew.go()
            found: Counter[str] = Counter()
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    for kept in await crew.done():
                        found.update(kept.problems)
            except (ProducersFailed, TimeoutError) as error:
                found[str(error) or "its processes do not answer"] += 1
            return dict(found)

        yield AtWork(lambda: families_cpu_seconds(crew.pids), lambda: PROCESSES, troubles)


@contextmanager
def _weir_work(url: str) -> Iterator[AtWork]:
    """Run `weir work`; it ends with this process, however that does."""
    words = (
        "work",
        "weir_lab.bench.consumers.dormitory.handlers:app",
        "--cluster",
        CLUSTER,
        "--url",
        url,
    )
    bounds = ("--min", "1", "--max", str(PROCESSES), "--json")
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as said:
        process = subprocess.Popen(
            python("weir_lab.bench.sides.peers.guard", *python("weir.cli", *words, *bounds)),
            stdin=subprocess.PIPE,
            stdout=said,
            env=environment(),
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            yield AtWork(
                lambda: family_cpu_seconds(process.pid),
                lambda: _most(Path(said.name)),
                _untold,
            )
        finally:
            process.stdin.close()  # and so the guard ends it
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_SECONDS)


async def _untold() -> dict[str, int]:
    """Say nothing: `weir work` has told it on stderr."""
    return {}


def _most(told: Path) -> int:
    """Return the most processes that were wanted, of what `weir work --json` has told."""
    events = [json.loads(line) for line in told.read_bytes().splitlines()]
    return max((event["wanted"] for event in events if event["event"] == "scaled"), default=0)
