"""Hubs of a topic: where their devices stand, and forgetting them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from weir.client.connection.metadata import Places
from weir.model.ids import Address
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


@dataclass(frozen=True, slots=True)
class Device:
    """A device (hub, sn) in one partition: the boot and sequence that it is expected to go on with,
    and the offset of its last message.
    """

    partition: int
    hub: int
    sn: int
    boot: int
    next_sequence: int
    offset: int


async def devices_of(places: Places, hub: int | None) -> list[Device]:
    """Return where the devices of a hub stand, or of all, by partition, hub and sn."""
    found: list[Device] = []
    for partition in range(len(places)):
        part = 0
        while True:
            listed = await _list(places, partition, hub, part)
            found += [Device(partition, *row) for row in listed.devices]
            part = listed.next_part
            if not part:
                break
    return sorted(found, key=lambda one: (one.partition, one.hub, one.sn))


async def _list(places: Places, partition: int, hub: int | None, part: int) -> a.HubList:
    def request(address: Address) -> m.Request:
        return a.ListHubs(address, hub, part)

    return await places.ask(partition, request, a.HubList)


async def forget(places: Places, hub: int) -> int:
    """Forget a hub in all partitions; return how many devices that were."""

    def request(address: Address) -> m.Request:
        return a.ForgetHub(address, hub)

    asked = (places.ask(p, request, a.HubForgotten) for p in range(len(places)))
    return sum(reply.devices for reply in await asyncio.gather(*asked))
