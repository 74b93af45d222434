"""What an aggregator with many idle links costs, on one that runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from weir.cli.main import main
from weir_lab.bench.toc.crew import CrewFailed
from weir_lab.bench.toc.limits.ports import PortSettings, measure_ports
from weir_lab.bench.toc.limits.ports_player import PlayerOrders, PortLink
from weir_lab.bench.toc.limits.xdp_ports import measure_xdp_ports, traced_seconds
from weir_lab.bench.toc.tree import missing_for
from weir_toc import packet as wire
from weir_toc.hosts.udp import UdpSocket
from weir_toc.packet import Packet
from weir_toc.places import Place


def test_beacons_come_by_all_links_and_go_out_by_all() -> None:
    found = measure_ports(PortSettings(ports=3, seconds=1.0, interval_ms=100.0))
    assert found.ports == 3
    # Ten intervals of each: a busy machine may be late, and links begin with the run.
    assert found.beacons_in_per_s > 10
    assert found.beacons_out_per_s > 10
    assert 0 < found.cores < 1
    assert found.rss_mb > 5
    assert 0 < found.late_ms < 1_000
    assert not found.fenced


@pytest.mark.skipif(
    "tracefs" not in Path("/proc/filesystems").read_text(), reason="the kernel has no trace events"
)
@pytest.mark.skipif(bool(missing_for(Place.XDP)), reason=missing_for(Place.XDP))
def test_a_switch_in_the_kernel_is_measured_with_all_that_runs_for_it() -> None:
    found = measure_xdp_ports(PortSettings(ports=3, seconds=1.0, interval_ms=50.0))
    assert found.ports == 3
    assert found.beacons_in_per_s > 10
    assert found.beacons_out_per_s > 10
    assert 0 < found.process_cores < 1
    assert 0 < found.kernel_cores < 1
    assert 0 < found.input_cores < 0.1
    parts = found.process_cores + found.kernel_cores + found.input_cores
    assert abs(found.cores - parts) < 0.0003
    assert 0 < found.neighbour_cores < 1
    assert found.rss_mb > 5
    assert not found.fenced


def test_softirqs_of_received_packets_are_timed() -> None:
    """One that had begun before, and one that has not ended, are left out."""
    head = "# entries-in-buffer/entries-written: 6/6   #P:2"
    thread = " cpumap/0/map:73-31344   [000] ..s1. "
    lines = [
        head, "#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION",
        f"{thread}13243.000100: softirq_exit: vec=3 [action=NET_RX]",
        f"{thread}13243.000200: softirq_entry: vec=3 [action=NET_RX]",
        f"{thread}13243.000250: softirq_exit: vec=3 [action=NET_RX]",
        f"{thread}13243.999990: softirq_entry: vec=3 [action=NET_RX]",
        f"{thread}13244.000030: softirq_exit: vec=3 [action=NET_RX]",
        f"{thread}13244.000100: softirq_entry: vec=3 [action=NET_RX]",
    ]  # fmt: skip
    assert round(traced_seconds(lines), 9) == 90e-6
    with pytest.raises(CrewFailed, match="too few for 9 trace events"):
        traced_seconds([head.replace("6/6", "6/9"), *lines[1:]])


def test_links_join_one_by_one_and_are_quiet_once_they_are_fenced() -> None:
    """A process that is told that it is fenced ends; a link that went on would be no idle one."""
    switch = UdpSocket(("127.0.0.1", 0))
    links = tuple(PortLink(process, *switch.address) for process in (1, 2))
    orders = PlayerOrders(links, 5_000_000, 0)
    words = [sys.executable, "-m", "weir_lab.bench.toc.limits.ports_player",
             msgspec.json.encode(orders).decode()]  # fmt: skip
    asked: list[tuple[int, int]] = []
    after: list[int] = []
    floor = (1 << 62) + 5  # far above any clock
    player = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        until = time.monotonic() + 20
        while len(after) < 20 and time.monotonic() < until:
            time.sleep(0.001)
            for data, address, _ in switch.read():
                packet = wire.decode(data, floor)
                asked.append((packet.source, packet.opcode))
                if packet.opcode == wire.JOIN:
                    floors = wire.encode_floors(floor, floor)
                    answer = Packet(wire.JOINED, 9, packet.source, epoch=1, payload=floors)
                    switch.send([(wire.encode(answer), address, 1_440)])
                elif packet.source == 1:
                    assert packet.barrier == floor
                    switch.send([(wire.encode(Packet(wire.FENCED, 9, epoch=1)), address, 1_440)])
                    after.clear()
                else:
                    after.append(packet.source)
        out, _ = player.communicate(b"\n", timeout=10)
    finally:
        player.kill()
        player.wait()
        switch.close()
    ready, done = map(json.loads, out.splitlines())
    assert ready == ["ready"]
    assert done[1]["fenced"] == 1
    assert len(after) >= 20  # of the other one alone, whose beacons go on
    # The first one has joined before the other one asks.
    assert asked.index((1, wire.JOIN)) < asked.index((2, wire.JOIN))
    assert (2, wire.JOIN) not in asked[: asked.index((1, wire.JOIN)) + 1]


def test_what_is_no_place_or_has_too_many_links_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "toc", "ports", "--place", "switch"]) == 2
    assert "host or xdp" in capsys.readouterr().err
    assert main(["bench", "toc", "ports", "--place", "xdp", "--links", "65"]) == 2
    assert "at most 64" in capsys.readouterr().err


def test_what_cannot_be_measured_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "toc", "ports", "--links", "0"]) == 2
    assert "ports" in capsys.readouterr().err


def test_a_link_that_was_fenced_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from weir_lab.bench.toc.limits.ports import PortResult

    result = PortResult(32, 0.4, 32_000, 3, 32, 0.2, 26.0)
    monkeypatch.setattr("weir_lab.bench.toc.limits.ports.measure_ports", lambda _: result)
    assert main(["bench", "toc", "ports", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fenced"] == 32
