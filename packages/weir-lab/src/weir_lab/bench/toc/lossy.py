"""Hosts that lose a share of what they are to send, the same packets in each run of one seed.

`python -m weir_lab.bench.toc.lossy URL SWITCH LOSS SEED` is an aggregator that does.
"""

from __future__ import annotations

import asyncio
import random
import sys

from weir_toc.hosts.aggregator import Aggregator
from weir_toc.hosts.frames import addresses_of
from weir_toc.hosts.udp import OpenSocket, UdpSocket
from weir_toc.topology import switch_id


def opener(share: float, seed: int) -> OpenSocket:
    """Return what opens sockets that lose a share of their packets, from 0 to 1."""
    if not share:
        return UdpSocket
    roll = random.Random(seed).random
    return lambda local, remote: UdpSocket(local, remote, lambda: roll() < share)


def main(url: str, switch: str, loss: str, seed: str) -> None:
    """Serve until the process is ended."""
    opens = opener(float(loss), int(seed))

    async def serve() -> None:
        here = ("127.0.0.1", 0)
        await Aggregator(addresses_of(url), switch_id(switch), here, open_socket=opens).run()

    asyncio.run(serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
