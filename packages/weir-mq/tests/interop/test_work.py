"""`weir work` as a user runs it: processes come, are killed, go, and end with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from weir import sync, testing
from weir.client.administration import Cluster
from weir.server.interpreter import environment

MESSAGES = 4_000
WITHIN_SECONDS = 100

LEDGER = """
import os, time
import weir

app = weir.App()

@app.subscribe("unlocks", cluster="ledger", concurrency=1)
def record(message):
    if not os.path.exists("hurry"):
        time.sleep(0.01)
    handle = os.open("done.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, message.value + b"\\n")
    os.close(handle)
"""

POISON = """
import os
import weir

app = weir.App()
retry = weir.Backoff(attempts=3, first="10ms")

@app.subscribe("unlocks", cluster="ledger", dead_letter="dead", retry=retry)
def record(message):
    if message.value == b"3":
        os._exit(7)
    handle = os.open("done.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, message.value + b"\\n")
    os.close(handle)
"""


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node, sync.connect(node.url) as client:
        client.create_topic("unlocks", partitions=2)
        yield node


class Work:
    """`weir work` that runs; `until` reads what it tells."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.events.append(json.loads(line))
            if wanted(self.events[-1]):
                return self.events[-1]
        raise AssertionError(f"it ended: {self.events}")

    def started(self) -> list[int]:
        return [event["process"] for event in self.events if event["event"] == "started"]


@contextmanager
def working(
    folder: Path, url: str, *options: str, app: str = LEDGER, told: IO[bytes] | None = None
) -> Iterator[Work]:
    (folder / "ledger.py").write_text(app, encoding="utf-8")
    words = ["work", "ledger:app", "--cluster", "ledger", "--json", "--url", url, *options]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "weir.cli", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=told,
        text=True,
    )
    watchdog = threading.Timer(WITHIN_SECONDS, process.kill)
    watchdog.start()
    with process:
        try:
            yield Work(process)
        finally:
            watchdog.cancel()
            process.kill()  # what it started ends with it


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def wait_for(node: testing.Node, wanted: Callable[[Cluster], bool]) -> None:
    deadline = time.monotonic() + WITHIN_SECONDS
    with sync.connect(node.url) as client:
        while not any(wanted(one) for one in client.clusters("unlocks", "ledger")):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_processes_come_with_the_work_and_go_with_it(node: testing.Node, tmp_path: Path) -> None:
    with sync.connect(node.url) as client, client.producer("unlocks") as producer:
        producer.send_many([b"%d" % number for number in range(MESSAGES)])
    options = ("--max", "3", "--cool-down", "1s", "--metrics", "127.0.0.1:0")
    with working(tmp_path, node.url, *options) as work:
        url = work.until(lambda event: event["event"] == "figures")["url"]
        more = work.until(lambda event: event["event"] == "scaled" and event["wanted"] > 1)
        assert "/s come, a process does" in more["why"]
        assert more["waiting"] > 0
        with urllib.request.urlopen(url, timeout=WITHIN_SECONDS) as page:
            figures = page.read().decode()
        assert f'weir_work_processes_wanted{{cluster="ledger"}} {more["wanted"]}\n' in figures
        assert 'weir_work_waiting_messages{cluster="ledger"} ' in figures

        killed = work.started()[0]
        os.kill(killed, signal.SIGKILL)
        ended = work.until(lambda event: event["event"] == "ended")
        assert (ended["process"], ended["code"]) == (killed, -signal.SIGKILL)
        (tmp_path / "hurry").touch()
        work.until(lambda event: event["event"] == "scaled" and event["wanted"] == 1)
        wait_for(node, lambda cluster: not cluster.lag)
        done = (tmp_path / "done.txt").read_bytes().split()
        assert {*done} == {b"%d" % number for number in range(MESSAGES)}
        started = work.started()
        assert len(started) > more["wanted"]  # another came for the one that was killed

        work.process.send_signal(signal.SIGINT)
        assert work.process.wait(WITHIN_SECONDS) == 0
        assert all(gone(process) for process in started)
        assert {event["event"] for event in work.events} == {
            "figures", "scaled", "started", "ended",
        }  # fmt: skip
    wait_for(node, lambda cluster: (cluster.lag, cluster.consumers) == (0, 0))


def test_processes_end_with_the_one_that_started_them(node: testing.Node, tmp_path: Path) -> None:
    with sync.connect(node.url) as client:
        client.publish("unlocks", "one")
    with working(tmp_path, node.url, "--min", "2", "--max", "2") as work:
        work.until(lambda _: len(work.started()) == 2)
        wait_for(node, lambda cluster: cluster.consumers == 2)
        work.process.kill()
        wait_for(node, lambda cluster: cluster.consumers == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_tells_once_that_it_stops(
    number: signal.Signals, node: testing.Node, tmp_path: Path
) -> None:
    app = f"import logging\nlogging.basicConfig(level=logging.INFO)\n{LEDGER}"
    options = ("--min", "2", "--max", "2")
    with (
        (tmp_path / "told.txt").open("wb") as told,
        working(tmp_path, node.url, *options, app=app, told=told) as work,
    ):
        wait_for(node, lambda cluster: cluster.consumers == 2)
        work.process.send_signal(number)
        assert work.process.wait(WITHIN_SECONDS) == 0
    assert (tmp_path / "told.txt").read_text().count("stopping") == 1


def test_a_topic_that_is_not_there_ends_it(node: testing.Node, tmp_path: Path) -> None:
    with sync.connect(node.url) as client:
        client.delete_topic("unlocks")
    with working(tmp_path, node.url) as work:
        assert work.process.wait(WITHIN_SECONDS) == 1


def test_what_ends_its_process_takes_no_others_along(node: testing.Node, tmp_path: Path) -> None:
    """Each end is an attempt of all that the process had; but the last one is had alone."""
    with sync.connect(node.url) as client, client.producer("unlocks") as producer:
        producer.send_many([b"%d" % number for number in range(100)])
    with working(tmp_path, node.url, "--max", "1", app=POISON):
        wait_for(node, lambda cluster: not cluster.lag)
    with sync.connect(node.url) as client:
        (letter,) = client.reader("dead", follow=False)
    assert (letter.value, letter.headers["weir-attempts"]) == (b"3", b"4")
    done = (tmp_path / "done.txt").read_bytes().split()
    assert {*done} == {b"%d" % number for number in range(100) if number != 3}
