"""What a figure was measured on, and the CPU time that processes used."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import msgspec

import weir


class Machine(msgspec.Struct, frozen=True):
    """A machine and the software that matters; a figure means nothing without them."""

    cpus: int
    cpu: str
    memory_bytes: int
    system: str
    python: str
    weir: str
    uvloop: bool


def this_machine() -> Machine:
    """Describe the machine and interpreter that run now; `cpus` are those we may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(
        cpus=len(affinity(0)) if affinity else os.cpu_count() or 1,
        cpu=_cpu(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=_system(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        weir=weir.__version__,
        uvloop=find_spec("uvloop") is not None,
    )


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time, user and system, that a process has used; None where /proc is not."""
    fields = _fields(pid)
    if fields is None:
        return None
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _with_ended_cpu_seconds(pid: int) -> float:
    """Return what a process used, and what those did that it started and has seen end."""
    fields = _fields(pid)
    return 0.0 if fields is None else sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str] | None:
    """Return what the kernel tells of a process behind its command's name."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the command's name in parentheses, which may itself hold anything.
    return stat.rpartition(")")[2].split()


def busy_cpu_seconds() -> float | None:
    """Return the CPU time that all of this machine has used; None where /proc is not."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return None
    # Behind the word "cpu": user, nice, system, idle, waiting for disks, interrupts of two kinds.
    user, nice, system, _, _, hard, soft = map(int, first.split()[1:8])
    return (user + nice + system + hard + soft) / os.sysconf("SC_CLK_TCK")


class Foreign:
    """The CPU time that all others used, from its making on: neither this process, nor any that it
    started, nor one that those started.
    """

    def __init__(self) -> None:
        """Begin now."""
        self._began = time.monotonic()
        self._used = self._others()

    def cpu_s(self) -> float | None:
        """Return it in seconds; None where /proc is not."""
        used = self._others()
        # Two clocks that tick each by itself may make a little less than nothing of it.
        return None if used is None or self._used is None else max(used - self._used, 0.0)

    def cores(self) -> float | None:
        """Return it in cores, as the mean since it was made."""
        used = self.cpu_s()
        return None if used is None else used / (time.monotonic() - self._began)

    @staticmethod
    def _others() -> float | None:
        busy = busy_cpu_seconds()
        if busy is None:
            return None
        return busy - sum(_with_ended_cpu_seconds(one) for one in family(os.getpid()))


def families_cpu_seconds(pids: Iterable[int]) -> float | None:
    """Return what `family_cpu_seconds` says of all these processes together."""
    found = [one for one in map(family_cpu_seconds, pids) if one is not None]
    return sum(found) if found else None


def family_cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process and all that it started; None where /proc is not."""
    if not Path("/proc/self").exists():
        return None
    return sum(cpu_seconds(one) or 0.0 for one in family(pid))


def family(pid: int) -> list[int]:
    """Return a process, all below it, and all of its session, as the kernel lists them."""
    parents: dict[int, int] = {}
    found = set()
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        fields = _fields(int(place.name))
        if fields is None:
            continue
        _, parent, _, session = fields[:4]  # state, parent, group, session
        parents[int(place.name)] = int(parent)
        if pid in (int(place.name), int(session)):
            found.add(int(place.name))
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def filesystem_of(folder: Path) -> str | None:
    """Return the type of the file system that a folder lies on; None where /proc is not."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # Each line: device, mount point (a space in it as \040), type, and more.
    rows = [line.split(" ") for line in mounts.splitlines()]
    points = {Path(row[1].replace("\\040", " ")): row[2] for row in rows}
    whole = folder.resolve()
    return next((points[place] for place in (whole, *whole.parents) if place in points), None)


def _system() -> str:
    """Return system, kernel version and processor; not the suffix that a distributor or a local
    build gave the kernel, which says nothing of speed and may name a machine.
    """
    version = re.match(r"[\d.]+", platform.release())
    kernel = version[0].rstrip(".") if version else ""
    return "-".join(part for part in (platform.system(), kernel, platform.machine()) if part)


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2] for line in text.splitlines() if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()
