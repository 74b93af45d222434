"""Idle processes of a rack, played by one program: `ports_worker.py SETTINGS`, JSON `PortOrders`.

Here is their control side: each registers, and keeps its connection. The controller tells all of
them of each other, and while that is read no beacon would leave. So another program,
`ports_player.py`, has their links, and says on the output of this one how they do.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

import msgspec

from weir_lab.bench.toc.limits.ports_player import PlayerOrders, PortLink
from weir_toc.hosts.control_link import ControlLink
from weir_toc.hosts.frames import Frame, addresses_of, number_in, text_in

_AGAIN_AFTER = 0.1


class PortOrders(msgspec.Struct, frozen=True):
    """So many processes, and the interval in nanoseconds."""

    url: str
    ports: int
    interval: int
    #: The hosts of a tree of namespaces in which they are; none for the namespace of this program.
    hosts: tuple[str, ...] = ()


class Guest:
    """The connection of one process to the controller."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.link = ControlLink(addresses_of(url), {"op": "hello", "kind": "guest"})

    async def register(self, host: str | None) -> PortLink:
        """Get a process of the controller; return its link to the switch."""
        incarnation = random.SystemRandom().getrandbits(62)
        wish: Frame = {"op": "register", "name": self.name, "nonce": incarnation, "rack": 0}
        while (answer := await self.link.request(wish))["op"] != "done":
            await asyncio.sleep(_AGAIN_AFTER)
        process = number_in(answer, "process")
        hello: Frame = {"node": process, "incarnation": incarnation}
        self.link.hello = {"op": "hello", "kind": "node", **hello}
        await self.link.request({"op": "attach", **hello})
        await self.link.is_set.wait()
        return PortLink(process, text_in(answer, "host"), number_in(answer, "port"), host)

    async def serve(self) -> None:
        """Follow the controller; what it says is of no use here."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.link.run())
            while True:
                await self.link.frames.get()


async def main(orders: PortOrders) -> int:
    """Register all, and let their links be played; return how that program has ended."""
    hosts = orders.hosts or [None] * orders.ports
    guests = [Guest(orders.url, f"port-{number}") for number in range(orders.ports)]
    serving = [asyncio.create_task(one.serve()) for one in guests]
    registered = (one.register(host) for one, host in zip(guests, hosts, strict=True))
    links = await asyncio.gather(*registered)
    offset = guests[0].link.now() - time.monotonic_ns()
    played = PlayerOrders(tuple(links), orders.interval, offset)
    player = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "weir_lab.bench.toc.limits.ports_player",
        msgspec.json.encode(played).decode(),
    )  # fmt: skip
    try:
        return await player.wait()
    finally:
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(msgspec.json.decode(sys.argv[1], type=PortOrders))))
