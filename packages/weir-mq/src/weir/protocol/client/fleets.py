"""Requests and replies about fleets: which hubs must prove who they are, and by which key."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from weir.access.devices import FLEET_KEY_BYTES, KEY_VERSION_MAX
from weir.errors import BadName, LevelTooLow
from weir.model.ids import Natural
from weir.model.limits import GENERATION_MAX, NAME_CHARACTERS_MAX, TAG_BYTES_MAX
from weir.protocol.client.access import AccessChanged
from weir.protocol.client.declaration import (
    Asker,
    Control,
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)

Name = Annotated[str, Meta(max_length=4 * NAME_CHARACTERS_MAX)]
#: Up to 2^64 - 1, as far as MessagePack goes.
Hub = Annotated[int, Meta(ge=0)]
Version = Annotated[int, Meta(ge=0, le=KEY_VERSION_MAX)]
Generation = Annotated[int, Meta(ge=0, le=GENERATION_MAX)]
NextGeneration = Annotated[int, Meta(ge=1, le=GENERATION_MAX)]
Tag = Annotated[str, Meta(max_length=TAG_BYTES_MAX)]
_ADMINISTER = (Right("administer", Resource.SYSTEM),)


class FleetRow(Control, frozen=True, array_like=True):
    """A fleet: hubs `first` to `last`, both included; at `level` 1 they prove who they are, at 2
    they sign their frames besides. `versions` are those of its key. Their messages have its `tag`,
    if it has one.
    """

    name: str
    first: Hub
    last: Hub
    level: Natural
    versions: tuple[int, ...]
    tag: Tag = ""


class FleetChanged(ControlReply, frozen=True, array_like=True):
    """A fleet as it is now, or was when it was removed."""

    fleet: FleetRow


class PutFleet(ControlRequest, frozen=True, array_like=True):
    """Make a fleet, or change the one of this name: its hubs, its level, its tag, and with a
    `key` of 32 bytes the version of its key that has this number. Its other versions stay.
    """

    declaration = Declaration(
        80,
        Scope.REGISTRY,
        FleetChanged,
        Retry.SAME,
        rights=_ADMINISTER,
        refusals=(BadName, LevelTooLow),
        methods=("Fleets.put",),
    )

    name: Name
    first: Hub
    last: Hub
    level: Natural
    version: Version = 0
    key: Annotated[bytes, Meta(max_length=FLEET_KEY_BYTES)] = b""
    tag: Tag = ""


class RemoveFleet(ControlRequest, frozen=True, array_like=True):
    """Let a fleet be gone: its hubs belong to nobody. Where strangers are let in, they may come as
    these hubs then.
    """

    declaration = Declaration(
        81,
        Scope.REGISTRY,
        FleetChanged,
        Retry.SAME,
        rights=_ADMINISTER,
        methods=("Fleets.remove",),
    )

    name: Name


class DropFleetKey(ControlRequest, frozen=True, array_like=True):
    """Take a version of a fleet's key away: devices whose secrets were made by it stay out."""

    declaration = Declaration(
        82,
        Scope.REGISTRY,
        FleetChanged,
        Retry.SAME,
        rights=_ADMINISTER,
        methods=("Fleets.drop_key",),
    )

    name: Name
    version: Version


class FleetList(ControlReply, frozen=True, array_like=True):
    """All fleets in the order of their hubs, and whether the node that was asked opens their keys:
    it needs a key file for that.
    """

    fleets: list[FleetRow]
    opens: bool


class ListFleets(ControlRequest, frozen=True, array_like=True):
    """Ask for all fleets."""

    declaration = Declaration(
        83,
        Scope.COPY,
        FleetList,
        Retry.READ,
        rights=_ADMINISTER,
        methods=("Fleets.list",),
    )


class DeviceInfo(ControlReply, frozen=True, array_like=True):
    """The fleet of a hub (empty: none), and the generation of its device that may come, unless that
    was revoked. The generation `before` may come as well, until a device of the new one does; -1:
    none may.
    """

    hub: Hub
    fleet: str
    generation: Generation
    is_revoked: bool
    before: Annotated[int, Meta(ge=-1, le=GENERATION_MAX)] = -1


class SetDevice(ControlRequest, frozen=True, array_like=True):
    """Let a device be the one of this generation from now on, or be revoked. It goes on only: a
    generation that has ended never begins again.

    Answered once all shards that are reached have ended what may come no more.
    """

    declaration = Declaration(
        84,
        Scope.REGISTRY,
        AccessChanged,
        Retry.SAME,
        rights=_ADMINISTER,
        refusals=(LevelTooLow,),
        methods=("Fleets.end_devices_before", "Fleets.revoke_device"),
    )

    hub: Hub
    generation: Generation
    is_revoked: bool = False


class ReplaceDevice(ControlRequest, frozen=True, array_like=True):
    """Let a device be the one of this generation, above the one that it is. The device that may
    come now may do so until the new one proves who it is.
    """

    declaration = Declaration(
        86,
        Scope.REGISTRY,
        DeviceInfo,
        Retry.SAME,
        rights=_ADMINISTER,
        refusals=(LevelTooLow,),
        methods=("Fleets.replace_device",),
    )

    hub: Hub
    generation: NextGeneration


class UseDevice(ControlRequest, frozen=True, array_like=True):
    """Only a shard of a set's node sends this: a device of this generation has proved who it is,
    and is the first.
    """

    declaration = Declaration(
        87,
        Scope.REGISTRY,
        None,
        Retry.SAME,
        asker=Asker.SHARD,
    )

    hub: Hub
    generation: NextGeneration


class DescribeDevice(ControlRequest, frozen=True, array_like=True):
    """Ask what is known of a device."""

    declaration = Declaration(
        85,
        Scope.COPY,
        DeviceInfo,
        Retry.READ,
        rights=_ADMINISTER,
        methods=("Fleets.device",),
    )

    hub: Hub


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (
    PutFleet,
    RemoveFleet,
    DropFleetKey,
    ListFleets,
    SetDevice,
    ReplaceDevice,
    UseDevice,
    DescribeDevice,
)
