"""The timeliness run: small, whole, with processes; and what it does when something is wrong."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.testing.nodes import Node, running_node
from weir_lab.bench import timeliness
from weir_lab.bench.harness.led import Ready
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.produce import Plan
from weir_lab.bench.harness.producers import Producers, ProducersFailed
from weir_lab.bench.sides.own import chunk_of
from weir_lab.bench.timeliness import BenchFailed, Settings, measure


def quiet(received: int) -> None:
    """Progress that nobody looks at."""


@pytest.fixture(autouse=True)
def leaves_no_process() -> Iterator[None]:
    """Fail a test whose run leaves a process behind; those of other tests are not its own."""
    before = children()
    yield
    assert children() <= before


def children() -> set[str]:
    """Return the ids of this process's children."""
    files = Path("/proc/self/task").glob("*/children")
    return {pid for file in files for pid in file.read_text().split()}


def test_a_run_finds_every_message_once_and_in_order() -> None:
    counts: list[int] = []
    result = measure(Settings(20_000, 100, 3), counts.append)
    assert (result.lost, result.repeated, result.reordered, result.corrupt) == (0, 0, 0, 0)
    assert result.clean
    assert (result.messages, result.bytes, result.confirmed) == (20_000, 2_000_000, 20_000)
    assert result.seconds > 0
    assert result.messages_per_s == pytest.approx(20_000 / result.seconds)
    assert counts[-1] == 20_000
    assert counts == sorted(counts)
    assert result.cpu_s.producers > 0
    assert result.cpu_s.consumer > 0


def test_a_run_over_partitions_keeps_each_producers_order(tmp_path: Path) -> None:
    result = measure(Settings(5_000, 16, 5, 2, folder=str(tmp_path)), quiet)
    assert not [*tmp_path.iterdir()]
    assert result.clean
    assert result.confirmed == 5_000


def test_a_run_that_takes_too_long_fails_and_leaves_nothing() -> None:
    with pytest.raises(BenchFailed, match=r"of 2,000,000 messages were received within 0.3 s"):
        measure(Settings(2_000_000, deadline_s=0.3), quiet)


def test_a_node_that_dies_fails_the_run() -> None:
    began: list[Node] = []

    def killing(received: int) -> None:
        if began[0].running:
            began[0].kill()

    with running_node() as node:
        began.append(node)
        with pytest.raises(BenchFailed, match="the node ended during the run"):
            run(timeliness._measure(Settings(400_000, deadline_s=5), node, killing, node.url))


def test_producers_that_cannot_connect_say_so() -> None:
    plan = Plan("weir://127.0.0.1:1", "t", [(0, 1, 0)], 16, 1, 1, 5.0, 0.3)

    async def start() -> None:
        async with Producers([plan]) as producers:
            await producers.ready()

    with pytest.raises(ProducersFailed, match=r"gave up: no connection to 127\.0\.0\.1:1"):
        asyncio.run(start())


def test_a_producer_process_that_dies_is_noticed() -> None:
    with running_node() as node:
        plan = Plan(node.url, "t", [(0, 1, 0)], 16, 1, 1, 5.0)

        async def start() -> list[Ready]:
            async with Producers([plan]) as producers:
                os.kill(producers.pids[0], signal.SIGKILL)
                return await producers.ready()

        with pytest.raises(ProducersFailed, match="ended with code"):
            asyncio.run(start())


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (Settings(messages=0), "messages=0"),
        (Settings(messages=2, producers=3), "messages=2: it must be 3"),
        (Settings(size=15), "size=15: it must be 16"),
        (Settings(producers=0), "producers=0"),
        (Settings(producers=2, partitions=3), "partitions=3: it must be 1 to 2"),
        (Settings(deadline_s=0), "deadline=0 s"),
    ],
)
def test_settings_that_make_no_sense_are_named(settings: Settings, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        settings.check()


def test_messages_are_shared_out_without_a_rest() -> None:
    settings = Settings(messages=11, producers=3, partitions=2)
    assert settings.counts == [4, 4, 3]
    plans = timeliness._plans(settings, "weir://x")
    assert [plan.shares for plan in plans] == [[(0, 4, 0), (2, 3, 0)], [(1, 4, 1)]]


def test_at_most_two_processes_produce() -> None:
    assert len(timeliness._plans(Settings(producers=1), "weir://x")) == 1
    assert len(timeliness._plans(Settings(producers=200), "weir://x")) == 2


@pytest.mark.parametrize(("size", "chunk"), [(16, 1_000), (100, 1_000), (1 << 20, 1)])
def test_a_batch_stays_below_its_cap(size: int, chunk: int) -> None:
    assert chunk_of(size) == chunk


def test_the_node_of_a_run_is_gone_with_its_folder() -> None:
    with running_node() as node:
        assert node.folder.is_dir()
    assert not node.running
    assert not node.folder.exists()


def test_a_closed_set_is_measured_by_a_user_who_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_PASSWORD", "one of somebody else")
    result = measure(Settings(2_000, 100, 2, closed=True), quiet)
    assert (result.clean, result.closed, result.confirmed) == (True, True, 2_000)
    assert os.environ["WEIR_PASSWORD"] == "one of somebody else"
