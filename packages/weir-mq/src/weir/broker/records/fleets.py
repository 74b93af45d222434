"""Control records of the registry about fleets of devices. Keys are wrapped before they are
written: no log, snapshot or backup holds one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from weir.access.devices import FLEET_KEY_BYTES, KEY_VERSION_MAX
from weir.access.wrapping import WRAPPED_BYTES
from weir.model.limits import GENERATION_MAX

_WRAPPED = WRAPPED_BYTES + FLEET_KEY_BYTES
#: Up to 2^64 - 1, as far as MessagePack goes.
Hub = Annotated[int, Meta(ge=0)]


class FleetKey(msgspec.Struct, frozen=True, array_like=True):
    """A version of a fleet's key, wrapped by the key file of the set's nodes."""

    version: Annotated[int, Meta(ge=1, le=KEY_VERSION_MAX)]
    wrapped: Annotated[bytes, Meta(min_length=_WRAPPED, max_length=_WRAPPED)]

    def __repr__(self) -> str:
        """Show the version alone."""
        return f"FleetKey({self.version})"


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """A control record of fleets."""


class FleetPut(_Record, frozen=True, array_like=True, tag="fleet"):
    """Registry: hubs `first` to `last`, both included, are a fleet, or the one of this name has
    these from now on; what its devices must do says `level`. Their messages have its `tag`.
    """

    name: str
    first: Hub
    last: Hub
    level: Annotated[int, Meta(ge=0, le=0xFF)]
    keys: tuple[FleetKey, ...]
    tag: str = ""


class FleetRemoved(_Record, frozen=True, array_like=True, tag="fleet-removed"):
    """Registry: a fleet is gone; its hubs belong to nobody."""

    name: str


class DeviceSet(_Record, frozen=True, array_like=True, tag="device"):
    """Registry: the device of a hub that may come is that of this generation alone, or it was
    revoked. Of two such records the one counts that goes further: nothing that ended begins again.
    """

    hub: Hub
    generation: Annotated[int, Meta(ge=0, le=GENERATION_MAX)]
    is_revoked: bool


def purpose_of(fleet: str, version: int) -> str:
    """Return what the wrapped key of a fleet is."""
    return f"key {version} of fleet {fleet}"


class DeviceReplaced(_Record, frozen=True, array_like=True, tag="device-replaced"):
    """Registry: the device of a hub is that of this generation; the one before may come until the
    new one does.
    """

    hub: Hub
    generation: Annotated[int, Meta(ge=1, le=GENERATION_MAX)]


class DeviceUsed(_Record, frozen=True, array_like=True, tag="device-used"):
    """Registry: the device of this generation has proved who it is; the one before may come no
    more. Where the hub is further already, nothing changes.
    """

    hub: Hub
    generation: Annotated[int, Meta(ge=1, le=GENERATION_MAX)]


DeviceRecord = DeviceSet | DeviceReplaced | DeviceUsed
FleetRecord = FleetPut | FleetRemoved | DeviceRecord
