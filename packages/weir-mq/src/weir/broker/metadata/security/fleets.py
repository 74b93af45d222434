"""Fleets: ranges of hubs with one key, and the devices that differ from what that says.

A fleet's key makes the secrets of all its devices, so a million locks take one row here. A device
that was replaced or revoked has a row of its own: its generation, and whether it is shut out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from weir.access.devices import Level
from weir.broker.records.security import (
    DeviceReplaced,
    DeviceSet,
    DeviceUsed,
    FleetKey,
    FleetPut,
    RewrappedRow,
    digest_of,
)
from weir.codec import Unsigned64
from weir.errors import BadRequest
from weir.model.limits import (
    DEVICE_ROWS_MAX,
    FLEET_KEYS_MAX,
    FLEETS_MAX,
    GENERATION_MAX,
    TAG_BYTES_MAX,
)
from weir.model.topic import check_name

_REVOKED = 1 << 24
#: From here on lies the generation before, plus 1, while it may come.
_BEFORE_AT = 25


class Fleet(msgspec.Struct, frozen=True, array_like=True):
    """Hubs `first` to `last`, both included, and what they must do to come in."""

    name: str
    first: Unsigned64
    last: Unsigned64
    level: Level
    keys: tuple[FleetKey, ...]
    tag: str = ""

    @classmethod
    def of(cls, record: FleetPut) -> Fleet:
        """Return the fleet that a record speaks of. Raises `BadRequest` for an unknown level."""
        if record.level not in (Level.PROOF, Level.SIGNED):
            raise BadRequest("a fleet asks for a proof (1), or for signed frames (2)")
        return cls(
            record.name, record.first, record.last, Level(record.level), record.keys, record.tag
        )

    def key(self, version: int) -> FleetKey | None:
        """Return a version of its key, if it has that."""
        return next((key for key in self.keys if key.version == version), None)


class Device(NamedTuple):
    """What is known of a device besides its fleet: its generation, and the one before, which may
    come until this one does; -1: none may.
    """

    generation: int = 0
    is_revoked: bool = False
    before: int = -1

    def admits(self, generation: int) -> bool:
        """Return whether a device of a generation may come."""
        return not self.is_revoked and generation in (self.generation, self.before)


#: Of nearly all.
_PLAIN = Device()


class Fleets:
    """All fleets of a set, and the devices with rows of their own: about 100 bytes each."""

    __slots__ = ("_devices", "_firsts", "_fleets", "_ordered")

    def __init__(self) -> None:
        """Begin with none."""
        self._fleets: dict[str, Fleet] = {}
        self._devices: dict[int, int] = {}
        #: In the order of their first hubs.
        self._ordered: list[Fleet] = []
        self._firsts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._fleets or self._devices)

    def __iter__(self) -> Iterator[Fleet]:
        return iter(self._ordered)

    def named(self, name: str) -> Fleet | None:
        """Return a fleet by its name."""
        return self._fleets.get(name)

    def find(self, hub: int) -> Fleet | None:
        """Return the fleet that a hub belongs to, in the time of a binary search."""
        at = bisect_right(self._firsts, hub)
        if at and hub <= (fleet := self._ordered[at - 1]).last:
            return fleet
        return None

    def device(self, hub: int) -> Device:
        """Return what is known of a device."""
        row = self._devices.get(hub)
        if row is None:
            return _PLAIN
        return Device(row & GENERATION_MAX, bool(row & _REVOKED), (row >> _BEFORE_AT) - 1)

    def devices(self) -> list[tuple[int, Device]]:
        """Return the devices with rows of their own, in the order of their hubs."""
        return [(hub, self.device(hub)) for hub in sorted(self._devices)]

    def check(self, fleet: Fleet) -> None:
        """Raise `BadRequest` or `BadName` unless a fleet may be put as it is."""
        check_name(fleet.name, "the name of a fleet")
        if fleet.first > fleet.last:
            raise BadRequest(f"a fleet has hubs from {fleet.last} to {fleet.first}, in this order")
        if fleet.level not in (Level.PROOF, Level.SIGNED):
            raise BadRequest("a fleet asks for a proof, or for signed frames")
        if len(fleet.tag.encode()) > TAG_BYTES_MAX:
            raise BadRequest(f"a tag is over {TAG_BYTES_MAX} bytes of UTF-8: shorten it")
        versions = {key.version for key in fleet.keys}
        if not 1 <= len(fleet.keys) <= FLEET_KEYS_MAX or len(versions) != len(fleet.keys):
            raise BadRequest(
                f"a fleet has 1 to {FLEET_KEYS_MAX} versions of its key", FLEET_KEYS_MAX
            )
        if fleet.name not in self._fleets and len(self._fleets) >= FLEETS_MAX:
            raise BadRequest(
                f"there are {FLEETS_MAX:,} fleets, as many as there may be", FLEETS_MAX
            )
        for other in self._ordered:
            if other.name == fleet.name:
                continue
            if fleet.first <= other.last and other.first <= fleet.last:
                raise BadRequest(
                    f"hubs {max(fleet.first, other.first)} to {min(fleet.last, other.last)} belong "
                    f"to fleet {other.name}: a hub has one fleet"
                )

    def put(self, fleet: Fleet) -> None:
        """Add a fleet, or change the one of this name. Raises as `check`."""
        self.check(fleet)
        self._fleets[fleet.name] = fleet
        self._order()

    def remove(self, name: str) -> Fleet:
        """Forget a fleet: its hubs are nobody's. Raises `BadRequest` if there is none."""
        fleet = self._fleets.pop(name, None)
        if fleet is None:
            raise BadRequest(f"there is no fleet {name!r}: `weir fleet list` shows them")
        self._order()
        return fleet

    def rewrap(self, row: RewrappedRow) -> None:
        """A version of a fleet's key is wrapped by another key, if it is still that one."""
        fleet = self._fleets.get(row.name)
        if fleet is None:
            return
        keys = tuple(
            FleetKey(key.version, row.wrapped)
            if key.version == row.version and digest_of(key.wrapped) == row.before
            else key
            for key in fleet.keys
        )
        self._fleets[row.name] = msgspec.structs.replace(fleet, keys=keys)
        self._order()

    def set_device(self, record: DeviceSet) -> Device:
        """Let a device be replaced by its next generation, or be revoked; return what is known of
        it then. Raises `BadRequest` as `check_device`.
        """
        self.check_device(record)
        return self._keep(record.hub, Device(record.generation, record.is_revoked))

    def replace_device(self, record: DeviceReplaced) -> Device:
        """Let a device be the next generation of its hub, and the one that may come now go on until
        that is used; return what is known of it then. Raises `BadRequest` as `check_device`.
        """
        self.check_device(record)
        known = self.device(record.hub)
        if record.generation == known.generation:  # it was asked for twice
            return known
        used = known.generation if known.before < 0 else known.before
        return self._keep(
            record.hub, Device(record.generation, False, -1 if known.is_revoked else used)
        )

    def use_device(self, record: DeviceUsed) -> None:
        """A device has proved its identity: the one before it may no longer connect."""
        known = self.device(record.hub)
        if known.admits(record.generation) and known.generation == record.generation:
            self._keep(record.hub, known._replace(before=-1))

    def _keep(self, hub: int, device: Device) -> Device:
        if device != _PLAIN:
            revoked = _REVOKED if device.is_revoked else 0
            self._devices[hub] = device.generation | revoked | (device.before + 1) << _BEFORE_AT
        return device

    def check_device(self, record: DeviceSet | DeviceReplaced) -> None:
        """Raise `BadRequest` if a device belongs to no fleet, or is further already: a generation
        that has ended never begins again.
        """
        hub, known = record.hub, self.device(record.hub)
        if self.find(hub) is None:
            raise BadRequest(f"hub {hub} belongs to no fleet: `weir fleet list` shows them")
        if isinstance(record, DeviceSet):
            goes_on = (record.generation, record.is_revoked) >= known[:2]
        else:
            is_again = record.generation == known.generation and not known.is_revoked
            goes_on = record.generation > known.generation or is_again
        if not goes_on:
            raise BadRequest(
                f"device {hub} is at generation {known.generation}"
                f"{', which was revoked' if known.is_revoked else ''}: replace it by the next one",
                known.generation,
            )
        if hub not in self._devices and len(self._devices) >= DEVICE_ROWS_MAX:
            raise BadRequest(
                f"{DEVICE_ROWS_MAX:,} devices were replaced or revoked: begin another fleet, with "
                "another key, for those that come",
                DEVICE_ROWS_MAX,
            )

    def _order(self) -> None:
        self._ordered = sorted(self._fleets.values(), key=lambda fleet: fleet.first)
        self._firsts = [fleet.first for fleet in self._ordered]

    def encode(self) -> object:
        """Return the state as MessagePack can hold it."""
        return self._ordered, list(self._devices.items())

    @classmethod
    def decode(cls, data: Any) -> Fleets:
        """Return the state that `encode` gave."""
        fleets, devices = data
        found = cls()
        for row in fleets:
            fleet = msgspec.convert(row, Fleet)
            found._fleets[fleet.name] = fleet
        found._order()
        found._devices = dict(devices)
        return found
