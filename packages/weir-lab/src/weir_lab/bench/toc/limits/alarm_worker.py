"""One process or switch whose link lags when it is told to: `alarm_worker.py ORDERS`, JSON.

A line on standard input says what happens from then on to what it sends, each time for about seven
intervals: `clock` lets its clock fall so far behind, `queue HOST:PORT` holds packets for so long,
`loss HOST:PORT` loses all of them, and lets one pass in eight intervals. Without an address that is
all that it sends. `well` ends it. A process sends both services to all others all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic_ns

import msgspec

from weir_toc import Fenced, Member, NotSent
from weir_toc.errors import SendBufferFull, first_error
from weir_toc.hosts.aggregator import Aggregator
from weir_toc.hosts.batches import Sending
from weir_toc.hosts.frames import addresses_of
from weir_toc.hosts.udp import Address, UdpSocket
from weir_toc.member import EventStream
from weir_toc.packet import split
from weir_toc.topology import switch_id

#: How far a link lags, in intervals: further than is reported, and not as far as it is silent.
LAG_INTERVALS = 7
_NS_PER_S = 1_000_000_000
_JOIN_SECONDS = 120.0


class ProcessOrders(msgspec.Struct, frozen=True, tag=True):
    """A process that joins in a rack, and how many seconds are between its scatterings."""

    url: str
    name: str
    rack: int
    interval_ns: int
    pause_s: float
    seed: int


class SwitchOrders(msgspec.Struct, frozen=True, tag=True):
    """The aggregator of a switch."""

    url: str
    switch: str
    interval_ns: int


class SlowClock:
    """CLOCK_MONOTONIC, but it can fall behind: it runs at half its speed until it has."""

    def __init__(self, by_ns: int) -> None:
        self._by = by_ns
        self._since: int | None = None

    def __call__(self) -> int:
        """Return what it shows, in nanoseconds."""
        now, since = monotonic_ns(), self._since
        return now if since is None else now - min(self._by, (now - since) // 2)

    def fall_behind(self, does: bool) -> None:
        """Begin to fall behind, or be right again at once."""
        self._since = monotonic_ns() if does else None


class LaggingSocket(UdpSocket):
    """A socket that delays or loses what it is to send to one address, or to all."""

    def __init__(self, local: Address, remote: Address | None, interval_ns: int) -> None:
        super().__init__(local, remote)
        self._interval = interval_ns
        self._what, self._to = "well", ""
        #: Packets that wait, and when each is due; those to other addresses never do.
        self._held: deque[tuple[int, Sending]] = deque()
        #: While packets are lost: until when some pass.
        self._passes_until = 0

    def lag(self, what: str, to: str) -> None:
        """Do something to packets from now on; any thread may say so."""
        self._what, self._to = what, to

    def send(self, packets: Iterable[Sending]) -> None:
        """Send packets in this order, but those that are lost, or wait."""
        if self._what == "well" and not self._held:
            super().send(packets)
            return
        now = monotonic_ns()
        for packet in packets:
            data, (host, port), _ = packet
            if self._to and self._to != f"{host}:{port}":
                super().send([packet])
            elif self._what == "loss":
                self._lose(now, packet)
            else:
                delay = LAG_INTERVALS * self._interval if self._what == "queue" else 0
                self._held.append((now + delay, (bytes(data), *packet[1:])))
                asyncio.get_running_loop().call_later(delay / _NS_PER_S, self._release)
        self._release()

    def _lose(self, now: int, packet: Sending) -> None:
        """Lose a packet, or let it pass if that was long ago."""
        data, address, size = packet
        for one in split(data, size):
            if now >= self._passes_until + LAG_INTERVALS * self._interval:
                self._passes_until = now + self._interval // 2
            if now < self._passes_until:
                super().send([(one, address, len(one))])
            else:
                self.counters.lost += 1

    def _release(self) -> None:
        """Send what is due, and all if nothing is held up any more."""
        now = monotonic_ns()
        while self._held and (self._held[0][0] <= now or self._what == "well"):
            super().send([self._held.popleft()[1]])


def obey(
    lines: Iterable[str], sockets: Callable[[], LaggingSocket | None], clock: SlowClock | None
) -> None:
    """Do what lines say, until there are no more."""
    for line in lines:
        what, _, to = line.strip().partition(" ")
        socket = sockets()
        if socket is not None:
            socket.lag("well" if what == "clock" else what, to)
        if clock is not None:
            clock.fall_behind(what == "clock")


def _obeys(sockets: Callable[[], LaggingSocket | None], clock: SlowClock | None) -> None:
    threading.Thread(target=obey, args=(sys.stdin, sockets, clock), daemon=True).start()


async def exchange(orders: ProcessOrders) -> None:
    """Join, and send and take messages, again and again: this process may be taken for dead."""
    clock = SlowClock(LAG_INTERVALS * orders.interval_ns)
    opened: list[LaggingSocket] = []

    def opens(local: Address, remote: Address | None) -> UdpSocket:
        opened.append(LaggingSocket(local, remote, orders.interval_ns))
        return opened[-1]

    _obeys(lambda: opened[-1] if opened else None, clock)
    is_first = True
    while True:
        member = Member(orders.url, orders.name, orders.rack, _JOIN_SECONDS, opens, clock)
        try:
            async with member as me:
                if is_first:
                    print(json.dumps(["ready", me.process]), flush=True)
                    is_first = False
                await _live(me, orders)
        except* Fenced:
            pass  # it joins again


async def _live(me: Member, orders: ProcessOrders) -> None:
    dice = random.Random(orders.seed)

    async def take(stream: EventStream) -> None:
        async for _ in stream:
            pass

    async with asyncio.TaskGroup() as tasks:
        for stream in (me.best_effort, me.reliable):
            tasks.create_task(take(stream))
        while True:
            parts = [(one, dice.randbytes(64)) for one in sorted(me.names.values())]
            with contextlib.suppress(NotSent, SendBufferFull):  # the failed have names for a while
                await dice.choice((me.send, me.send_reliable))(parts)
            await asyncio.sleep(dice.uniform(0, 2 * orders.pause_s))


async def aggregate(orders: SwitchOrders) -> None:
    """Be the aggregator of a switch."""
    opened: list[LaggingSocket] = []

    def opens(local: Address, remote: Address | None) -> UdpSocket:
        opened.append(LaggingSocket(local, remote, orders.interval_ns))
        return opened[-1]

    here: Address = ("127.0.0.1", 0)

    aggregator = Aggregator(
        addresses_of(orders.url), switch_id(orders.switch), here, open_socket=opens
    )
    _obeys(lambda: opened[-1], None)
    await aggregator.run()


def main(settings: str) -> None:
    """Do what the orders say, until killed."""
    orders = msgspec.json.decode(settings, type=ProcessOrders | SwitchOrders)
    asyncio.run(exchange(orders) if isinstance(orders, ProcessOrders) else aggregate(orders))


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except ExceptionGroup as group:
        raise first_error(group) from group
