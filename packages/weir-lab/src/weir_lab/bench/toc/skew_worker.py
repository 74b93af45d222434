"""One process of the skew run, whose clock is wrong: `skew_worker.py SETTINGS`, a JSON object.

Of `SkewOrders` for a process that exchanges messages as `conformance_worker` does, and reads its
clock all the time; of `ReferenceOrders` for the controller, whose clock they follow. As root a
process shifts CLOCK_MONOTONIC by a time namespace, else by the clock that it gives weir-toc; the
drift is always that clock's. So each of them knows the true time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from pathlib import Path
from time import monotonic_ns

import msgspec

from weir_lab.bench.toc.conformance_worker import Orders, Worker, all_joined, begin, say
from weir_toc import Fenced, Member
from weir_toc.controller.records import Founded
from weir_toc.errors import first_error
from weir_toc.hosts.controller import Controller
from weir_toc.hosts.frames import addresses_of
from weir_toc.hosts.udp import UdpSocket

#: Of unshare(2) and setns(2).
_CLONE_NEWTIME = 0x80
_NS_PER_S, _MILLION = 1_000_000_000, 1_000_000
#: So often a process reads its clock, and the controller compares its own with that of the host.
_SAMPLE_SECONDS, _COMPARISONS = 0.02, 100


class SkewOrders(msgspec.Struct, frozen=True, tag=True):
    """What one process does, and how wrong its clock is."""

    exchange: Orders
    offset_ns: int
    drift_ppm: int
    #: By how much its clock jumps as the exchange begins.
    step_ns: int


class ReferenceOrders(msgspec.Struct, frozen=True, tag=True):
    """The network that the controller founds, and where."""

    url: str
    folder: str
    racks: int
    spines: int
    cores: int
    interval_ns: int


class WrongClock:
    """CLOCK_MONOTONIC as this process sees it, shifted and drifting; it may jump once."""

    def __init__(self, shift_ns: int, drift_ppm: int) -> None:
        self._start = monotonic_ns()
        self._shift = shift_ns
        self._drift = drift_ppm
        self.step = 0

    def __call__(self) -> int:
        """Return what it shows now, in nanoseconds."""
        return self.shown(monotonic_ns())

    def shown(self, now: int) -> int:
        """Return what it shows at a time of CLOCK_MONOTONIC."""
        return now + self._shift + (now - self._start) * self._drift // _MILLION + self.step

    def true(self, shown: int) -> int:
        """Return when it shows that: the inverse of `shown`, within a nanosecond."""
        elapsed = (shown - self._start - self._shift - self.step) * _MILLION
        return self._start + elapsed // (_MILLION + self._drift)


def enter_time_namespace(offset_ns: int) -> bool:
    """Shift CLOCK_MONOTONIC of this process; return whether that was possible.

    The process must have one thread. time_namespaces(7) has the format.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWTIME):
        return False
    seconds, nanoseconds = divmod(offset_ns, _NS_PER_S)
    try:
        Path("/proc/self/timens_offsets").write_text(f"monotonic {seconds} {nanoseconds}\n")
        fd = os.open("/proc/self/ns/time_for_children", os.O_RDONLY)
    except OSError:
        return False
    try:
        return not libc.setns(fd, _CLONE_NEWTIME)
    finally:
        os.close(fd)


async def exchange(orders: SkewOrders, clock: WrongClock, hidden_ns: int, is_shifted: bool) -> None:
    """Join, exchange messages, and say how far the clock was from that of the host at each reading.

    `hidden_ns` is what the namespace adds to CLOCK_MONOTONIC.
    """
    loop = asyncio.get_running_loop()
    of = orders.exchange
    samples: list[tuple[int, int | None]] = []

    async def sample(me: Member) -> None:
        while True:
            found = await asyncio.to_thread(me.describe)
            raw, time, error = (found[f"clock_{key}ns"] for key in ("raw_", "", "error_"))
            assert isinstance(raw, int)
            assert isinstance(time, int)
            assert error is None or isinstance(error, int)
            samples.append((time - (clock.true(raw) - hidden_ns), error))
            await asyncio.sleep(_SAMPLE_SECONDS)

    def join() -> Member:
        return Member(of.url, of.name, of.rack, 120.0, UdpSocket, clock)

    async with all_joined(join, of.names) as (me, excluded):
        say("ready", me.process)
        ids = await begin()
        clock.step = orders.step_ns
        sampling = asyncio.create_task(sample(me))
        fenced = 0
        with open(of.log, "w", encoding="utf-8") as log:
            worker = Worker(me, of, ids, log)
            try:
                await worker.run()
            except* Fenced:
                fenced = 1
        sampling.cancel()
        say("done", {"fenced": fenced, "failed": len(worker.failed), "excluded": excluded,
                     "samples": samples, "is_shifted": is_shifted})  # fmt: skip
        await loop.run_in_executor(None, sys.stdin.read)


async def refer(orders: ReferenceOrders) -> None:
    """Lead the network, and say how far the reference time is from CLOCK_MONOTONIC."""
    loop = asyncio.get_running_loop()
    (address,) = addresses_of(orders.url)
    founding = Founded(orders.racks, orders.spines, orders.cores, orders.interval_ns)
    controller = Controller(1, {1: address}, Path(orders.folder), founding)
    serving = asyncio.create_task(controller.run())
    await loop.run_in_executor(None, sys.stdin.readline)
    best = (_NS_PER_S, 0)
    for _ in range(_COMPARISONS):
        before = monotonic_ns()
        time = controller.reference_time()
        after = monotonic_ns()
        best = min(best, (after - before, time - (before + after) // 2))
    say("reference", best[1])
    await loop.run_in_executor(None, sys.stdin.read)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def main(settings: str) -> None:
    """Do what the settings say."""
    orders = msgspec.json.decode(settings, type=SkewOrders | ReferenceOrders)
    if isinstance(orders, ReferenceOrders):
        asyncio.run(refer(orders))
        return
    hidden_ns = orders.offset_ns if enter_time_namespace(orders.offset_ns) else 0
    clock = WrongClock(orders.offset_ns - hidden_ns, orders.drift_ppm)
    asyncio.run(exchange(orders, clock, hidden_ns, bool(hidden_ns)))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except ExceptionGroup as group:
        raise first_error(group) from group
