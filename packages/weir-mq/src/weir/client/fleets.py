"""Fleets of devices: which hubs must prove who they are, and which devices may come."""

from __future__ import annotations

import msgspec

from weir.access.devices import Level, derive_secret
from weir.client.access import AccessChange, change_of
from weir.client.connection.network_client import NetworkClient
from weir.protocol.client import fleets as f
from weir.protocol.client.access import AccessChanged


class Fleet(msgspec.Struct, frozen=True):
    """Hubs `first` to `last`, both included, and the versions of the key that their secrets are
    made by. At level 1 they prove who they are, at 2 they sign their frames besides. Their messages
    have its `tag`, if it has one.
    """

    name: str
    first: int
    last: int
    level: Level
    versions: tuple[int, ...]
    tag: str = ""


class FleetDevice(msgspec.Struct, frozen=True):
    """The fleet of a hub (empty: none), and the generation of its device that may come in, unless
    that was revoked. The generation `before` may come as well, until a device of the new one does;
    None: it may not.
    """

    hub: int
    fleet: str
    generation: int
    is_revoked: bool
    before: int | None = None

    def secret(self, fleet_key: bytes, system: int) -> bytes:
        """Return what is to be flashed into this device, 32 bytes, by a version of its fleet's key
        and the id of the system. Raises `ValueError` for a key of another size.
        """
        return derive_secret(fleet_key, system, self.hub, self.generation)


class Fleets:
    """The fleets of a system."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client, whose `fleets` this is."""
        self._network = network

    async def put(
        self,
        name: str,
        first: int,
        last: int,
        level: Level,
        version: int = 0,
        key: bytes = b"",
        tag: str = "",
    ) -> Fleet:
        """Make a fleet of hubs `first` to `last`, or change the one of this name;
        with a `key` of 32 bytes, that is the `version` of its key, beside those that it has. What
        its devices publish has the `tag`.

        Raises `BadRequest` where a hub belongs to another fleet, or a version to another key, or a
        node has no key file; `BadName` and `LevelTooLow`.
        """
        request = f.PutFleet(name, first, last, level, version, key, tag)
        return _fleet((await self._network.request(request, f.FleetChanged)).fleet)

    async def remove(self, name: str) -> Fleet:
        """Let a fleet be gone, and return it: its hubs belong to nobody, and in an open set may
        come without a proof. Raises `BadRequest` if there is none.
        """
        return _fleet((await self._network.request(f.RemoveFleet(name), f.FleetChanged)).fleet)

    async def drop_key(self, name: str, version: int) -> Fleet:
        """Take a version of a fleet's key away; devices whose secrets were made by it stay out.

        Raises `BadRequest` if it is the only one.
        """
        request = f.DropFleetKey(name, version)
        return _fleet((await self._network.request(request, f.FleetChanged)).fleet)

    async def list(self) -> tuple[Fleet, ...]:
        """Return all fleets, in the order of their hubs."""
        found = await self._network.request(f.ListFleets(), f.FleetList)
        return tuple(map(_fleet, found.fleets))

    async def opens_keys(self) -> bool:
        """Return whether the node that is asked opens the keys of all fleets: else devices cannot
        come in there.
        """
        return (await self._network.request(f.ListFleets(), f.FleetList)).opens

    async def device(self, hub: int) -> FleetDevice:
        """Return what is known of a hub's device."""
        return _device(await self._network.request(f.DescribeDevice(hub), f.DeviceInfo))

    async def replace_device(self, hub: int, generation: int) -> FleetDevice:
        """Let the device of this generation be the one that may come. The one that may now may do
        so until the new one has proved who it is.

        Raises `BadRequest` if the hub is as far or further, or belongs to no fleet.
        """
        request = f.ReplaceDevice(hub, generation)
        return _device(await self._network.request(request, f.DeviceInfo))

    async def end_devices_before(self, hub: int, generation: int) -> AccessChange:
        """Let the device of this generation be the one that may come; all before stay out from now
        on, of each shard that is reached. Raises `BadRequest` if the hub is further, or belongs to
        no fleet.
        """
        return await self._set(f.SetDevice(hub, generation))

    async def revoke_device(self, hub: int, generation: int) -> AccessChange:
        """Let nobody come as this hub until its device is replaced by one of a generation above
        this; its connections end on each shard that is reached. Raises `BadRequest` if the hub is
        further, or belongs to no fleet.
        """
        return await self._set(f.SetDevice(hub, generation, True))

    async def _set(self, request: f.SetDevice) -> AccessChange:
        return change_of(await self._network.request(request, AccessChanged))


def _fleet(row: f.FleetRow) -> Fleet:
    return Fleet(row.name, row.first, row.last, Level(row.level), tuple(row.versions), row.tag)


def _device(info: f.DeviceInfo) -> FleetDevice:
    before = info.before if info.before >= 0 else None
    return FleetDevice(info.hub, info.fleet, info.generation, info.is_revoked, before)
