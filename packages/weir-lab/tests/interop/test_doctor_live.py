"""`weir doctor --live` beside real nodes under load: a slow disk, and lone clients."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weir import sync
from weir.server.interpreter import environment, python
from weir.testing.nodes import Berth, NodeSet, Patient
from weir_lab.bench.faults.stalling import STALLS

WATCH_SECONDS = "4"
WITHIN_SECONDS = 60
#: A node whose every sync takes longer by the seconds it is given.
NODE = """
import os, sys, time
folder, metrics, delay = sys.argv[1:]
fdatasync = os.fdatasync
def slow(file):
    time.sleep(float(delay))
    fdatasync(file)
os.fdatasync = slow
from weir.server.config import Config, LogConfig, MetricsConfig, NodeConfig
from weir.server.processes.node import run

config = Config(
    node=NodeConfig(data=folder, port=0, shards=1),
    log=LogConfig(segment_mib=32, spares=0),
    metrics=MetricsConfig(listen=metrics),
)
run(config, lambda host, port: print(port, flush=True))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def node(folder: Path, delay: float) -> Iterator[tuple[str, str]]:
    """Run a node; yields its URL and where its figures are."""
    metrics = f"127.0.0.1:{free_port()}"
    with subprocess.Popen(
        [sys.executable, "-c", NODE, str(folder), metrics, str(delay)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield f"weir://127.0.0.1:{int(process.stdout.readline())}", metrics
        finally:
            process.terminate()
            process.wait(WITHIN_SECONDS)


@contextlib.contextmanager
def lone_publishes(url: str, partition: int = 0) -> Iterator[None]:
    """Publish one message after the other, each awaited, until the block ends."""
    over = threading.Event()

    def publish() -> None:
        with sync.connect(url) as w:
            if not w.topics():
                w.create_topic("t")
            while not over.is_set():
                w.publish("t", b"v", partition=partition)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(WITHIN_SECONDS)


def doctor(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = python("weir.cli", "doctor", "--live", "--data", str(folder), *more)
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=WITHIN_SECONDS
    )


def watched(folder: Path, metrics: str) -> dict[str, Any]:
    done = doctor(folder, "--metrics", metrics, "--seconds", WATCH_SECONDS, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == "weir.doctor.live/1"
    return found


def test_a_slow_disk_is_named(tmp_path: Path) -> None:
    # It is so slow that a machine that is busy besides takes less time for all else.
    with node(tmp_path / "d", delay=0.4) as (url, metrics), lone_publishes(url):
        found = watched(tmp_path / "d", metrics)
    assert found["limit"] == "disk", found
    assert 0 < found["messages_in"] < 3
    disk, processor = found["rows"][:2]
    assert disk["busy"] > 0.7
    assert processor["busy"] < disk["busy"]


def test_lone_clients_of_a_quick_node_are_told_from_its_disk(tmp_path: Path) -> None:
    """Whatever else the machine does, the disk is not what limits them."""
    with node(tmp_path / "d", delay=0.0) as (url, metrics), lone_publishes(url):
        found = watched(tmp_path / "d", metrics)
        shown = doctor(tmp_path / "d", "--metrics", metrics, "--seconds", "3")
    by_name = {row["resource"]: row for row in found["rows"]}
    assert found["messages_in"] > 0
    assert "connections keep" in by_name["clients"]["found"]
    # Which stages take most depends on what else the machine does.
    told = by_name["processor"]["found"]
    assert re.search(r"of the time \([a-z._]+ \d+%", told), "the stages of the loop are told"
    assert "limited by: " in shown.stdout


def test_a_slow_follower_is_named_and_told_from_one_that_is_gone(tmp_path: Path) -> None:
    berths = [Berth(), Berth(), Berth(module="weir_lab.bench.faults.stalling")]
    nodes = NodeSet(tmp_path, 3, 1, berths=berths)
    nodes.let(3, {STALLS: "0.2,0"})
    try:
        nodes.start(Patient())
        with sync.connect(nodes.url) as w:
            w.create_topic("t", partitions=3)
            leads = [address.node for address in w.describe("t").addresses]
        leader = next(node for node in (1, 2) if node in leads)
        (gone,) = {1, 2} - {leader}
        nodes.kill([gone])
        row = nodes.rows()[leader - 1]
        metrics = row["metrics"].removeprefix("http://").removesuffix("/metrics")
        with lone_publishes(nodes.url, leads.index(leader)):
            found = watched(Path(row["data"]), metrics)
    finally:
        nodes.stop()
    follower = next(one for one in found["rows"] if one["resource"] == "follower")
    assert found["limit"] == "follower", [one["found"] for one in found["rows"]]
    assert f"no answer of node {gone}; " in follower["found"]
    assert "node 3" in follower["found"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    none = doctor(tmp_path / "d")
    assert none.returncode == 2
    assert "no node runs on" in none.stderr
    with node(tmp_path / "d", delay=0.0):
        unread = doctor(tmp_path / "d")
        wrong = doctor(tmp_path / "d", "--metrics", f"127.0.0.1:{free_port()}")
    assert unread.returncode == 2
    assert "give --metrics HOST:PORT, as the node was started with" in unread.stderr
    assert wrong.returncode == 1
    assert "start the node with --metrics" in wrong.stderr.replace("\n", " ")
