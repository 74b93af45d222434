"""What a programmable switch with many idle ports costs: its process, and what the kernel does.

It runs in a tree of network namespaces. Each port leads to a host with one process, and one program
plays all processes.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import msgspec

from weir_lab.bench.toc.crew import CrewFailed, Shape
from weir_lab.bench.toc.limits.ports import PortSettings, cpu_seconds, resident_mb
from weir_lab.bench.toc.limits.ports_worker import PortOrders
from weir_lab.bench.toc.tree import missing_for, tree_crew
from weir_toc.places import Place
from weir_toc.xdp import kernel

_CPUMAP = 16


class XdpPortResult(msgspec.Struct, frozen=True):
    """What the switch took."""

    ports: int
    #: Of the following three.
    cores: float
    #: Of the process: the generator of blank beacons with all that the kernel does in its sends, up
    #: to the queue of the switch; the control side; and interrupts that it happened to serve.
    process_cores: float
    #: Of the thread of the kernel that is the data path: packets in and out, and what it does for
    #: neighbours, since a veth hands what is sent to the receiver's side at once.
    kernel_cores: float
    #: Of the program on the ports of the switch, which runs in the processes that send: neighbours
    #: here. Neither what they do to send, nor the driver of a port, counts.
    input_cores: float
    #: Beacons a second that came by all links, and that the switch sent on them.
    beacons_in_per_s: float
    beacons_out_per_s: float
    #: Links that it took for silent: this run says nothing about them.
    fenced: int
    #: How late beacons came by all links at most; a link is silent after ten intervals.
    late_ms: float
    rss_mb: float


def measure_xdp_ports(settings: PortSettings) -> XdpPortResult:
    """Let beacons come for a while, and read what the switch took. Raises CrewFailed."""
    if why := missing_for(Place.XDP):
        raise CrewFailed(why)
    shape = Shape(members=1, interval_ms=settings.interval_ms)
    with (
        tempfile.TemporaryDirectory(prefix="weir-toc-", dir=settings.folder) as folder,
        tree_crew(Path(folder), shape, Place.XDP, settings.ports) as made,
    ):
        hosts = tuple(f"host-{number}" for number in range(settings.ports))
        interval = int(settings.interval_ms * 1e6)
        orders = PortOrders(made.url, settings.ports, interval, hosts)
        made.start_in(0, "ports", "-m", "weir_lab.bench.toc.limits.ports_worker",
                      msgspec.json.encode(orders).decode())  # fmt: skip
        made.wait_for("ports", "ready")
        (switch,) = shape.switches
        pid = switch_below(made.running["net"].pid, switch)
        thread = thread_of(pid)
        counting = kernel.count_run_time()
        try:
            began, before = time.monotonic(), times_of(pid, thread)
            time.sleep(settings.seconds)
            spent, after = time.monotonic() - began, times_of(pid, thread)
        finally:
            os.close(counting)
        rss_mb = resident_mb(pid)
        made.tell("ports")
        said = made.wait_for("ports", "done")[1]
    process, thread_cores, inputs = (
        round((late - early) / spent, 6) for early, late in zip(before, after, strict=True)
    )
    return XdpPortResult(
        settings.ports, round(process + thread_cores + inputs, 4), process, thread_cores, inputs,
        round(said["sent"] / spent), round(said["beacons"] / spent),
        said["fenced"], said["late_ms"], rss_mb,
    )  # fmt: skip


def switch_below(ancestor: int, switch: str) -> int:
    """Return the process of a switch that has been started below another process."""
    parents, found = {}, []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The name of a process may have blanks and brackets.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if b"aggregator" in words and switch.encode() in words:
            found.append(int(folder.name))
    for pid in found:
        one = pid
        while one in parents and one != ancestor:
            one = parents[one]
        if one == ancestor:
            return pid
    raise CrewFailed(f"there is no process of {switch}")


def times_of(pid: int, thread: int) -> tuple[float, float, float]:
    """Return the time of a switch's process, of its thread, and of the program on its ports: s."""
    return cpu_seconds(pid), cpu_seconds(thread), input_seconds(pid)


def input_seconds(pid: int) -> float:
    """Return for how long the program has run that a process has attached to devices."""
    files = open_files(pid)
    attached = {one["prog_id"] for one in files if one.get("link_type") == "xdp"}
    for one in files:
        if "run_time_ns" in one and one.get("prog_id") in attached:
            return int(one["run_time_ns"]) / 1e9
    raise CrewFailed("there is no program on the ports of the switch")


def open_files(pid: int) -> list[dict[str, str]]:
    """Return what the kernel says of each open file of a process, by key."""
    found = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            continue  # it was closed meanwhile
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        found.append({key.strip(): value.strip() for key, value in pairs})
    return found


def thread_of(pid: int) -> int:
    """Return the thread of the kernel that serves the CPUMAP of a process."""
    maps = {one["map_id"] for one in open_files(pid) if one.get("map_type") == str(_CPUMAP)}
    for folder in Path("/proc").iterdir():
        try:
            name = (folder / "comm").read_text().strip() if folder.name.isdigit() else ""
        except OSError:
            continue
        if name.startswith("cpumap/") and name.partition("/map:")[2] in maps:
            return int(folder.name)
    raise CrewFailed("there is no thread of the kernel for the switch")
