"""Handlers that are killed at any moment: with the inbox, each message has one effect.

WEIR_HANDLER_KILLS=30 WEIR_HANDLERS=100 WEIR_HANDLED=100000 for more, WEIR_HANDLER_NODES=3 for nodes
of which the leader is killed WEIR_HANDLER_LEADER_KILLS=5 times. Beside the effect each handler
notes that it tried: more tries than messages show that messages did come twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, func, select, text

import weir
from weir.app import inbox_tables as t
from weir.bench import postgres
from weir.bench.node_set import NodeSet, Patient

KILLS = int(os.environ.get("WEIR_HANDLER_KILLS", "4"))
HANDLERS = int(os.environ.get("WEIR_HANDLERS", "3"))
MESSAGES = int(os.environ.get("WEIR_HANDLED", "1500"))
NODES = int(os.environ.get("WEIR_HANDLER_NODES", "1"))
LEADER_KILLS = int(os.environ.get("WEIR_HANDLER_LEADER_KILLS", "1"))
CALM_SECONDS = 90.0 + 30 * LEADER_KILLS + 20 * KILLS + 2 * HANDLERS
#: As often as it may be without that being most of the work.
PRUNE_SECONDS = max(0.3, HANDLERS / 10)
PARTITIONS = 2
PUBLISHED_AT_ONCE = 500

pytestmark = pytest.mark.timeout(int(CALM_SECONDS) + 120)

#: Words: the broker, the database, how often to prune, and when to die: "never", after so many
#: seconds of handling, or behind the commit of the nth message, as in "7th".
HANDLER = """
import os, signal, sys, threading
from sqlalchemy import create_engine, text
import weir
from weir.app import inbox_pruning

url, database, every, end = sys.argv[1:]
inbox_pruning.GAP = 0.2  # rows go as soon as they may
engine = create_engine(database, pool_size=4, max_overflow=0)
inbox = weir.Inbox("ledger", prune_every=float(every))
app = weir.App(url)
left = int(end[:-2]) if end.endswith("th") else -1

def die():
    os.kill(os.getpid(), signal.SIGKILL)

@app.on_start
def begin():
    inbox.create(engine)

@app.before
def first(message):
    global timer
    if timer is not None:
        timer.start()
        timer = None

timer = None if end == "never" or left > 0 else threading.Timer(float(end), die)

@app.subscribe("unlocks", cluster="ledger", inbox=inbox, concurrency=4, lease="3s")
def record(message):
    global left
    values = {"value": message.value.decode()}
    with engine.begin() as connection:
        connection.execute(text("insert into tries values (:value)"), values)
    with engine.begin() as connection, inbox.once(connection, message) as fresh:
        if fresh:
            connection.execute(text("insert into effects values (:value)"), values)
    left -= 1
    if left == 0:
        die()

app.run_sync(grace="20s")
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """A server where there is one, for it is quicker with so many who write; else a file."""
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/effects.db?timeout=60"
        if postgres.installed():
            server = postgres.running_postgres(fsync="off", max_connections=8 * HANDLERS + 20)
            url = stack.enter_context(server).url
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("create table tries (value text)"))
            connection.execute(text("create table effects (value text)"))
        engine.dispose()
        yield url


class Crew:
    """Handler processes: one that is killed is followed by another."""

    def __init__(self, url: str, database: str, folder: Path) -> None:
        self.kills = 0
        self._words = [sys.executable, "-c", HANDLER, url, database, str(PRUNE_SECONDS)]
        self._environment = {**os.environ, "PYTHONPATH": str(Path(weir.__file__).parents[1])}
        self._errors = folder / "handlers.txt"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._begun = 0

    def fill(self) -> None:
        """Let there be so many as there should be; half of those to die do it behind a commit."""
        ended = [one for one in self._processes if one.poll() is not None]
        for one in ended:
            assert one.returncode == -signal.SIGKILL, self._errors.read_text(encoding="utf-8")
            self._processes.remove(one)
            self.kills += 1
        while len(self._processes) < HANDLERS:
            self._begun += 1
            end = "never"
            if self._begun <= KILLS:
                end = f"{5 + 37 * self._begun % 40}th" if self._begun % 2 else f"0.{self._begun}5"
            with self._errors.open("a", encoding="utf-8") as errors:
                process = subprocess.Popen(
                    [*self._words, end], env=self._environment, stdout=errors, stderr=errors
                )
            self._processes.append(process)

    def stop(self) -> None:
        """Let all end by themselves."""
        for one in self._processes:
            one.terminate()
        codes = {one.wait(60) for one in self._processes}
        # One that was only just started dies of it.
        assert codes <= {0, -signal.SIGTERM}, self._errors.read_text(encoding="utf-8")
        assert 0 in codes

    def kill(self) -> None:
        for one in self._processes:
            if one.poll() is None:
                one.kill()
            one.wait(10)


@contextlib.asynccontextmanager
async def publishing(w: weir.client.client.Client) -> AsyncIterator[asyncio.Task[None]]:
    async def publish() -> None:
        async with w.producer("unlocks") as producer:
            for first in range(0, MESSAGES, PUBLISHED_AT_ONCE):
                numbers = range(first, min(first + PUBLISHED_AT_ONCE, MESSAGES))
                await producer.send_many([b"%d" % number for number in numbers])
                await producer.flush()

    task = asyncio.ensure_future(publish())
    yield task
    task.cancel()
    await asyncio.wait((task,))


async def work(nodes: NodeSet, crew: Crew) -> None:
    """Publish, handle, kill: handlers by themselves, and in between the node that leads."""
    async with weir.connect(nodes.url) as w:
        await w.create_topic("unlocks", partitions=PARTITIONS)
        crew.fill()
        async with publishing(w) as published, asyncio.timeout(CALM_SECONDS):
            led = 0
            while True:
                await asyncio.sleep(0.1)
                crew.fill()
                if led < LEADER_KILLS and crew.kills > led * KILLS // LEADER_KILLS:
                    leader = (await w.describe("unlocks")).addresses[led % PARTITIONS].node
                    nodes.kill([leader])
                    led += 1
                    await asyncio.to_thread(nodes.restart, leader, Patient())
                found = await w.clusters("unlocks", "ledger")
                over = crew.kills >= KILLS and led == LEADER_KILLS and published.done()
                if over and found and not found[0].lag:
                    published.result()
                    return


def test_each_message_has_one_effect_whoever_is_killed(tmp_path: Path, database: str) -> None:
    (tmp_path / "nodes").mkdir()
    nodes = NodeSet(tmp_path / "nodes", NODES, 1)
    try:
        nodes.start(Patient())
        crew = Crew(nodes.url, database, tmp_path)
        try:
            asyncio.run(work(nodes, crew))
            crew.stop()
        finally:
            crew.kill()
    finally:
        nodes.stop()
    engine = create_engine(database)
    with engine.connect() as connection:
        effects = Counter(connection.scalars(text("select value from effects")))
        tries = connection.execute(text("select count(*) from tries")).scalar_one()
        rows = connection.execute(select(func.count()).select_from(t.ROWS)).scalar_one()
    engine.dispose()
    print(
        f"{crew.kills} handlers and {LEADER_KILLS} leaders of {NODES} nodes killed, {MESSAGES} "
        f"messages, {len(effects)} effects, {tries} tries, {rows} rows left"
    )
    assert set(effects) == {str(number) for number in range(MESSAGES)}
    assert max(effects.values()) == 1
    assert crew.kills >= KILLS
    assert tries > MESSAGES  # else nothing was shown
    assert rows < MESSAGES  # what is not needed any more goes
