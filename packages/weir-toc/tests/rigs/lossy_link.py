"""A link that loses packets, without root: a relay before an aggregator that advertises it.

`python lossy_link.py HOST:PORT TARGET_HOST:PORT LOSS` relays until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from random import Random

from weir_toc.hosts.udp import Address, Sending, Train, UdpSocket, address_of
from weir_toc.packet import split


class LossyLink:
    """Relays packets between processes and one aggregator; it runs in the loop that makes it.

    Each process gets a socket of its own towards the aggregator, which tells processes by their
    addresses. Packets of one process stay in order.
    """

    def __init__(self, listen: Address, target: Address, loss: float) -> None:
        self.loss = loss
        self.carried = self.lost = 0
        self._target = target
        self._dice = Random("loss")
        self._outer = UdpSocket(listen)
        self._inner: dict[Address, UdpSocket] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._outer.socket.fileno(), self._inwards)

    @property
    def address(self) -> Address:
        """Where processes send to."""
        return self._outer.address

    def close(self) -> None:
        for one in (self._outer, *self._inner.values()):
            self._loop.remove_reader(one.socket.fileno())
            one.close()

    def _inwards(self) -> None:
        for train in self._outer.read():
            address = train.address
            inner = self._inner.get(address)
            if inner is None:
                inner = self._inner[address] = UdpSocket(("127.0.0.1", 0), self._target)
                self._loop.add_reader(inner.socket.fileno(), self._outwards, inner, address)
            inner.send(self._left_of(train, self._target))

    def _outwards(self, inner: UdpSocket, address: Address) -> None:
        for train in inner.read():
            self._outer.send(self._left_of(train, address))

    def _left_of(self, train: Train, to: Address) -> list[Sending]:
        """Return the packets of a train that are not lost, to be sent to an address."""
        return [(one, to, len(one)) for one in split(train.data, train.size) if self._survives()]

    def _survives(self) -> bool:
        if self._dice.random() < self.loss:
            self.lost += 1
            return False
        self.carried += 1
        return True


async def main(listen: str, target: str, loss: str) -> None:
    link = LossyLink(address_of(listen), address_of(target), float(loss))
    while True:
        await asyncio.sleep(1)
        print(link.carried, link.lost, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
