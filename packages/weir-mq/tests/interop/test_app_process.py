"""An application in a process of its own, and how signals end it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir import sync, testing
from weir.server.interpreter import environment

APP = """
import asyncio, logging, sys
import weir

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
app = weir.App(sys.argv[1])

@app.subscribe("unlocks", cluster="ledger", concurrency=1)
async def record(message):
    print("begins", message.offset, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("ends", message.offset, flush=True)

@app.on_stop
def stopped():
    print("stopped", flush=True)

app.run_sync(grace="60s")
"""
WITHIN_SECONDS = 60


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node, sync.connect(node.url) as client:
        client.create_topic("unlocks")
        for number in range(3):
            client.publish("unlocks", str(number))
        yield node


@pytest.fixture
def app(node: testing.Node) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", APP, node.url],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(WITHIN_SECONDS, process.kill)
    watchdog.start()
    with process:
        yield process
        watchdog.cancel()
        process.kill()


def until_it_waits(app: subprocess.Popen[str]) -> None:
    """Return once its event loop has nothing to do."""
    stat = Path(f"/proc/{app.pid}/task/{app.pid}/stat")
    while stat.read_text().rpartition(") ")[2][0] != "S":
        time.sleep(0.01)


def says(app: subprocess.Popen[str]) -> str:
    assert app.stdout is not None
    return app.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_end_and_gives_back_the_rest(
    node: testing.Node, app: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert says(app) == "begins 0"
    app.send_signal(number)
    assert says(app).startswith("stopping:"), "what comes before may begin another one"
    until_it_waits(app)  # it says so before it tells the handlers
    with sync.connect(node.url) as client:
        (cluster,) = client.clusters("unlocks")
        assert cluster.lag == 3
        assert app.stdin is not None
        app.stdin.write("\n")
        app.stdin.flush()
        assert says(app) == "ends 0"
        assert says(app) == "stopped"
        assert app.wait(WITHIN_SECONDS) == 0
        (cluster,) = client.clusters("unlocks")
        assert (cluster.lag, cluster.consumers) == (2, 0)


def test_a_second_signal_does_not_wait(node: testing.Node, app: subprocess.Popen[str]) -> None:
    assert says(app) == "begins 0"
    app.send_signal(signal.SIGTERM)
    while app.poll() is None:
        app.send_signal(signal.SIGTERM)  # until the first was seen
    assert app.returncode == -signal.SIGTERM
