"""Nodes in processes of their own: up, down, killed, and followed by nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

import weir
from weir.broker.api.settings import Member
from weir.errors import WeirError
from weir.server.interpreter import environment, python
from weir.testing.nodes import Node, NodeFailed, Patient, running_node, start_node, wait_until_up
from weir_lab.bench.harness.machine import cpu_seconds, filesystem_of, this_machine


async def publish(url: str, value: bytes) -> int:
    async with weir.connect(url) as client:
        await client.create_topic("t")
        return (await client.publish("t", value)).offset


def test_a_node_serves_and_is_started_again_on_its_folder(tmp_path: Path) -> None:
    for offset in range(2):
        with start_node(tmp_path / "data", tmp_path, segment_mib=32, spares=0) as node:
            assert node.running
            assert asyncio.run(publish(node.url, b"x")) == offset
        assert not node.running
        assert node.said().endswith("INFO stopped\n")
    assert (tmp_path / "data").is_dir()


def test_a_killed_node_is_found_dead_and_its_announcement_is_not_believed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_node(data, segment_mib=32, spares=0) as node:
        asyncio.run(publish(node.url, b"x"))
        node.kill()
        assert not node.running
        assert (data / "endpoint.json").exists()
        with running_node(data, segment_mib=32, spares=0) as again:
            assert again.port != 0
            assert asyncio.run(publish(again.url, b"x")) == 1


def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(NodeFailed, match=r"log\.segment_mib is 1: it must be 32"),
        running_node(tmp_path / "data", segment_mib=1),
    ):
        raise AssertionError("it started")


def test_a_setting_that_no_node_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such setting of a node: colour"):
        start_node(tmp_path / "data", tmp_path, colour="blue")


def test_an_error_in_the_block_ends_the_node_too() -> None:
    with pytest.raises(WeirError, match="planned"), running_node(spares=0) as node:
        raise WeirError("planned")
    assert not node.running


def test_a_node_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    starter = (
        "import os, signal\n"
        "from weir.testing.nodes import running_node\n"
        "with running_node(spares=0) as node:\n"
        "    print(node.pid, flush=True)\n"
        "    signal.pause()\n"
    )
    command = [*python("weir")[:1], "-c", starter]
    env = {**environment(), "TMPDIR": str(tmp_path)}  # its folder stays behind
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        watch = os.pidfd_open(pid)
        try:
            process.send_signal(signal.SIGKILL)  # it cannot clean up after that
            ended = asyncio.run(readable(watch))
        finally:
            os.close(watch)
    assert ended


async def readable(handle: int) -> bool:
    """Wait until a process descriptor says that its process has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        return await asyncio.wait_for(ended.wait(), 30)
    finally:
        loop.remove_reader(handle)


def test_cpu_time_is_that_of_the_process() -> None:
    used = cpu_seconds(os.getpid())
    times = os.times()
    assert used == pytest.approx(times.user + times.system, abs=0.5)
    assert cpu_seconds(1 << 30) is None


def test_a_folder_lies_on_the_file_system_of_its_nearest_mount(tmp_path: Path) -> None:
    assert filesystem_of(Path("/proc/self")) == "proc"
    assert filesystem_of(tmp_path) not in (None, "proc")


def test_a_machine_is_described_by_what_matters() -> None:
    machine = this_machine()
    assert machine.cpus >= 1
    assert machine.memory_bytes > 1 << 20
    assert machine.python.startswith("CPython 3.")
    assert machine.weir == weir.__version__
    assert machine.system


def test_a_node_that_comes_up_behind_its_time_is_late(tmp_path: Path) -> None:
    """And nothing but that is told: it used to end in a `StopIteration`, which threads swallow."""

    class Late:
        member = Member(7, "127.0.0.1", 1)
        node = Node(None, tmp_path, tmp_path / "said.log")  # type: ignore[arg-type]
        asked = 0

        @property
        def up(self) -> bool:
            self.asked += 1
            return self.asked > 1

    (tmp_path / "said.log").write_text("I am slow", encoding="utf-8")
    with pytest.raises(NodeFailed, match="node 7 is not up after -1 s: I am slow"):
        wait_until_up([Late()], Patient(), -1.0)  # type: ignore[list-item]
