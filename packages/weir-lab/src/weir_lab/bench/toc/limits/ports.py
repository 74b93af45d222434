"""What an aggregator with many idle links costs: the processor time of its process.

Its links are played by one program, which sends a beacon on each of them every interval.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import msgspec

from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.toc.crew import Shape, crew
from weir_lab.bench.toc.limits.ports_worker import PortOrders


class PortSettings(msgspec.Struct, frozen=True):
    """So many links of one aggregator, for so long."""

    ports: int = 32
    seconds: float = 10.0
    interval_ms: float = 1.0
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(ports=(self.ports, 1, 1_000))
        if self.seconds <= 0 or not 0.1 <= self.interval_ms <= 1_000:
            raise ValueError("seconds must be above 0, and interval_ms 0.1 to 1000")


class PortResult(msgspec.Struct, frozen=True):
    """What the aggregator took."""

    ports: int
    cores: float
    #: Beacons a second that came by all links, and that the aggregator sent on them.
    beacons_in_per_s: float
    beacons_out_per_s: float
    #: Links that it took for silent: this run says nothing about them.
    fenced: int
    #: How late beacons came by all links at most; a link is silent after ten intervals.
    late_ms: float
    rss_mb: float


def measure_ports(settings: PortSettings) -> PortResult:
    """Let beacons come for a while, and read what the aggregator took."""
    shape = Shape(members=1, interval_ms=settings.interval_ms)
    with (
        tempfile.TemporaryDirectory(prefix="weir-toc-", dir=settings.folder) as folder,
        crew(Path(folder), shape) as made,
    ):
        made.start_network()
        orders = PortOrders(made.url, settings.ports, int(settings.interval_ms * 1e6))
        made.start("ports", "-m", "weir_lab.bench.toc.limits.ports_worker",
                   msgspec.json.encode(orders).decode())  # fmt: skip
        made.wait_for("ports", "ready")
        (switch,) = shape.switches
        pid = made.running[switch].pid
        began, before = time.monotonic(), cpu_seconds(pid)
        time.sleep(settings.seconds)
        spent, took = time.monotonic() - began, cpu_seconds(pid) - before
        rss_mb = resident_mb(pid)
        made.tell("ports")
        said = made.wait_for("ports", "done")[1]
    return PortResult(
        settings.ports, round(took / spent, 3), round(said["sent"] / spent),
        round(said["beacons"] / spent), said["fenced"], said["late_ms"], rss_mb,
    )  # fmt: skip


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/schedstat").read_text().split()
    tasks = [one / "schedstat" for one in Path(f"/proc/{pid}/task").iterdir()]
    return max(int(fields[0]), sum(int(one.read_text().split()[0]) for one in tasks)) / 1e9


def resident_mb(pid: int) -> float:
    """Return the memory that a process has, in millions of bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return 0.0
