"""What a programmable switch with many idle ports costs: its process, and what the kernel does.

It runs in a tree of network namespaces. Each port leads to a host with one process, and one program
plays all processes.

A veth has no wire. The thread that sends a packet also takes it in at the other end, for a
neighbour, up to the socket of that. Trace events of the kernel tell how much of its time this
takes. To count, the kernel takes time itself, so each part is measured in a period of its own.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from weir_lab.bench.toc.crew import CrewFailed, Shape
from weir_lab.bench.toc.limits.ports import PortSettings, cpu_seconds, resident_mb
from weir_lab.bench.toc.limits.ports_worker import PortOrders
from weir_lab.bench.toc.tree import missing_for, tree_crew
from weir_toc.net import linux
from weir_toc.places import Place
from weir_toc.xdp import kernel

_CPUMAP = 16
#: A softirq of received packets begins or ends in a thread: its time in seconds, and which.
_SOFTIRQ = re.compile(r"(\d+\.\d+): softirq_(entry|exit): vec=3 ")
_WRITTEN = re.compile(r"entries-in-buffer/entries-written: (\d+)/(\d+)")
_TRACE_KB = 16_384


class XdpPortResult(msgspec.Struct, frozen=True):
    """What the switch took."""

    ports: int
    #: Of the following three.
    cores: float
    #: Of the process: the generator of blank beacons with all that the kernel does in its sends, up
    #: to the queue of the switch; the control side; and interrupts that it happened to serve.
    process_cores: float
    #: Of the thread of the kernel that is the data path: packets in and out.
    kernel_cores: float
    #: Of the program on the ports of the switch, which runs in the processes that send: neighbours
    #: here. Neither what they do to send, nor the driver of a port, counts.
    input_cores: float
    #: What the thread does beside that, as it sends by veths: neighbours take in their packets.
    neighbour_cores: float
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
        share = share_of_neighbours(thread, settings.seconds)
        inputs = input_cores(pid, settings.seconds)
        made.tell("ports")
        said = made.wait_for("ports", "done")[1]
        lasted = time.monotonic() - began
    process, whole = ((late - early) / spent for early, late in zip(before, after, strict=True))
    own = whole * (1 - share)
    return XdpPortResult(
        settings.ports, round(process + own + inputs, 4), round(process, 6), round(own, 6),
        round(inputs, 6), round(whole * share, 6),
        round(said["sent"] / lasted), round(said["beacons"] / lasted),
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


def share_of_neighbours(thread: int, seconds: float) -> float:
    """Return the share of its own time in which a thread takes in what it sends, for neighbours.

    Raises CrewFailed if the kernel has no trace events.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-trace-")))
        try:
            linux.mount("tracefs", folder, "tracefs")
            stack.callback(linux.unmount, folder)
            trace = folder / "instances" / folder.name
            trace.mkdir()
            stack.callback(trace.rmdir)
            (trace / "buffer_size_kb").write_text(str(_TRACE_KB))
            (trace / "set_event_pid").write_text(str(thread))
            irq = trace / "events" / "irq"
            for event in ("softirq_entry", "softirq_exit"):
                (irq / event / "filter").write_text("vec == 3")
            (irq / "softirq_exit" / "enable").write_text("1")
            (irq / "softirq_entry" / "enable").write_text("1")
            before = cpu_seconds(thread)
            time.sleep(seconds)
            (trace / "tracing_on").write_text("0")
            spent = cpu_seconds(thread) - before
            lines = (trace / "trace").read_text().splitlines()
        except OSError as error:
            raise CrewFailed(f"the kernel has no trace events for this: {error}") from error
    if not spent:
        raise CrewFailed("the kernel's thread of the switch took no time: no packet came")
    return traced_seconds(lines) / spent


def traced_seconds(lines: Iterable[str]) -> float:
    """Return for how long softirqs of received packets have run. Raises CrewFailed."""
    total, began = 0.0, None
    for line in lines:
        if (written := _WRITTEN.search(line)) and written[1] != written[2]:
            raise CrewFailed(f"{_TRACE_KB} kB are too few for {written[2]} trace events")
        if not (found := _SOFTIRQ.search(line)):
            continue
        if found[2] == "entry":
            began = float(found[1])
        elif began is not None:
            total += float(found[1]) - began
            began = None
    return total


def input_cores(pid: int, seconds: float) -> float:
    """Return the share of a processor that the program on the ports of a switch takes."""
    counting = kernel.count_run_time()
    try:
        began, before = time.monotonic(), input_seconds(pid)
        time.sleep(seconds)
        return (input_seconds(pid) - before) / (time.monotonic() - began)
    finally:
        os.close(counting)


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
