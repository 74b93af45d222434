"""Hosts that lose a share of what they are to send, the same packets in each run of one seed.

`python -m weir_lab.bench.toc.lossy URL SWITCH LOSS SEED` is an aggregator that does. A line
`cut HOST:PORT` on its standard input lets it lose all that it is to send there from then on, and
`heal` nothing more of that. Each time that it is told routes it prints a JSON array: the time, in
nanoseconds of the clock that all processes share, and the ids of its neighbours that lead nowhere.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import Iterable
from time import monotonic_ns

from weir_toc.hosts.aggregator import Aggregator, is_of_routes
from weir_toc.hosts.batches import Sending
from weir_toc.hosts.frames import Address, Frame, addresses_of
from weir_toc.hosts.udp import Loses, OpenSocket, UdpSocket, address_of
from weir_toc.topology import switch_id


def opener(share: float, seed: int) -> OpenSocket:
    """Return what opens sockets that lose a share of their packets, from 0 to 1."""
    if not share:
        return UdpSocket
    loses = _dice(share, seed)
    return lambda local, remote: UdpSocket(local, remote, loses)


def _dice(share: float, seed: int) -> Loses:
    roll = random.Random(seed).random
    return lambda: roll() < share


class CutSocket(UdpSocket):
    """A socket that loses what it is to send to some addresses: the cables to them are cut."""

    def __init__(self, local: Address, loses: Loses | None = None) -> None:
        super().__init__(local, None, loses)
        self._cut: frozenset[Address] = frozenset()

    def obey(self, lines: Iterable[str]) -> None:
        """Do what lines say, until there are no more; another thread may send meanwhile."""
        for line in lines:
            word, _, address = line.strip().partition(" ")
            self._cut = self._cut | {address_of(address)} if word == "cut" else frozenset()

    def send(self, packets: Iterable[Sending]) -> None:
        """Send packets in this order, but those by cables that are cut."""
        cut = self._cut
        super().send([one for one in packets if one[1] not in cut] if cut else packets)


class TellingAggregator(Aggregator):
    """An aggregator that prints by which neighbours it reaches nobody."""

    def _obey(self, frame: Frame) -> None:
        super()._obey(frame)
        if self._node is not None and is_of_routes(frame):
            dead = [neighbour for neighbour, racks in self._node.routes.items() if not racks]
            print(json.dumps([monotonic_ns(), dead]), flush=True)


def main(url: str, switch: str, loss: str, seed: str) -> None:
    """Serve until the process is ended."""
    share = float(loss)

    def opens(local: Address, _: Address | None) -> UdpSocket:
        made = CutSocket(local, _dice(share, int(seed)) if share else None)
        threading.Thread(target=made.obey, args=(sys.stdin,), daemon=True).start()
        return made

    async def serve() -> None:
        here = ("127.0.0.1", 0)
        made = TellingAggregator(addresses_of(url), switch_id(switch), here, open_socket=opens)
        await made.run()

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
