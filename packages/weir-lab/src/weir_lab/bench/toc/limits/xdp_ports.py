"""What a programmable switch with many idle ports costs: its process, and its thread of the kernel.

It runs in a tree of network namespaces. Each port leads to a host with one process, and one program
plays all processes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import msgspec

from weir_lab.bench.toc.crew import CrewFailed, Shape
from weir_lab.bench.toc.limits.ports import PortSettings, cpu_seconds, resident_mb
from weir_lab.bench.toc.limits.ports_worker import PortOrders
from weir_lab.bench.toc.tree import missing_for, tree_crew
from weir_toc.places import Place

_CPUMAP = 16


class XdpPortResult(msgspec.Struct, frozen=True):
    """What the switch took."""

    ports: int
    #: Of both of the following.
    cores: float
    #: Of the process: the generator of blank beacons with all that the kernel does in its sends, up
    #: to the queue of the switch; the control side; and interrupts that it happened to serve.
    process_cores: float
    #: Of the thread of the kernel that is the data path: packets in and out, and what it does for
    #: neighbours, since a veth hands what is sent to the receiver's side at once.
    kernel_cores: float
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
        began, before = time.monotonic(), (cpu_seconds(pid), cpu_seconds(thread))
        time.sleep(settings.seconds)
        spent, after = time.monotonic() - began, (cpu_seconds(pid), cpu_seconds(thread))
        rss_mb = resident_mb(pid)
        made.tell("ports")
        said = made.wait_for("ports", "done")[1]
    process, kernel = ((late - early) / spent for early, late in zip(before, after, strict=True))
    return XdpPortResult(
        settings.ports, round(process + kernel, 4), round(process, 4), round(kernel, 4),
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


def thread_of(pid: int) -> int:
    """Return the thread of the kernel that serves the CPUMAP of a process."""
    maps = set()
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            continue  # it was closed meanwhile
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        if facts.get("map_type", "").strip() == str(_CPUMAP):
            maps.add(facts["map_id"].strip())
    for folder in Path("/proc").iterdir():
        try:
            name = (folder / "comm").read_text().strip() if folder.name.isdigit() else ""
        except OSError:
            continue
        if name.startswith("cpumap/") and name.partition("/map:")[2] in maps:
            return int(folder.name)
    raise CrewFailed("there is no thread of the kernel for the switch")
