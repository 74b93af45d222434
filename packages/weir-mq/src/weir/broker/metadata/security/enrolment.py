"""What is asked of fleets and their devices, and what becomes of it when it is committed.

The leader wraps a fleet's key before it proposes it: entries, snapshots and backups hold wrapped
keys alone. Replicas look again whether a record may be applied, for another may have come between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from weir.access.devices import FLEET_KEY_BYTES, Nonces
from weir.access.wrapping import KeyRing
from weir.broker.api.events import AccessNarrowed, Findings
from weir.broker.metadata.security.access import Access
from weir.broker.metadata.security.fleets import Fleet, Fleets
from weir.broker.metadata.security.users import Committed
from weir.broker.metadata.security.vault import Vault
from weir.broker.records.security import (
    DeviceReplaced,
    DeviceSet,
    DeviceUsed,
    FleetKey,
    FleetPut,
    FleetRecord,
    FleetRemoved,
    purpose_of,
)
from weir.broker.replica.requests import Proposals, no_registry
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.errors import (
    BadRequest,
    LevelTooLow,
    Refused,
    Unavailable,
)
from weir.model.limits import FORMAT_LEVEL_ACCESS
from weir.protocol.client.fleets import (
    DescribeDevice,
    DeviceInfo,
    DropFleetKey,
    FleetChanged,
    FleetList,
    FleetRow,
    ListFleets,
    PutFleet,
    RemoveFleet,
    ReplaceDevice,
    SetDevice,
    UseDevice,
)
from weir.protocol.client.messages import Reply


class FleetVault(Vault):
    """Wraps and opens the keys of fleets, too."""

    __slots__ = ("_opened",)

    def __init__(self, nonces: Nonces | None, ring: KeyRing | None) -> None:
        """See `Vault`."""
        super().__init__(nonces, ring)
        #: Keys, by what they are wrapped as; only for keys that a fleet has or had.
        self._opened: dict[bytes, bytes] = {}

    def wrap(self, fleet: str, version: int, key: bytes) -> FleetKey:
        """Return a version of a fleet's key as it is stored. Raises `BadRequest` without a key
        file, or without the library that it needs.
        """
        return FleetKey(version, self.seal(key, purpose_of(fleet, version)))

    def open(self, fleet: Fleet, key: FleetKey) -> bytes:
        """Return a fleet's key. Raises `Unavailable` where the key file here does not open it."""
        found = self._opened.get(key.wrapped)
        if found is None:
            found = self.unseal(key.wrapped, purpose_of(fleet.name, key.version))
            if len(found) != FLEET_KEY_BYTES:
                raise Unavailable(f"the {purpose_of(fleet.name, key.version)} is none: rotate it")
            self._opened[key.wrapped] = found
        return found

    def opens(self, fleets: Fleets) -> bool:
        """Return whether all keys of all fleets are opened here."""
        try:
            for fleet in fleets:
                for key in fleet.keys:
                    self.open(fleet, key)
        except Unavailable:
            return False
        return True


class FleetCatalog(Protocol):
    """What is known of fleets and of access, and of what is written."""

    access: Access
    fleets: Fleets

    @property
    def level(self) -> int:
        """The format level that is written."""


class FleetLog(Protocol):
    """The registry's log."""

    @property
    def ready(self) -> bool:
        """Whether it is led here, and all that was written before is applied."""

    def propose(self, record: FleetRecord, /) -> int:
        """Propose an entry; return its index. Raises `Unavailable` where it is not led here."""


class Replies(Protocol):
    """Where the registry's answers go."""

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request."""

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""


class Enrolment:
    """Changes fleets and devices by entries, and tells what they are."""

    __slots__ = ("_catalog", "_committed", "_findings", "_log", "_outbox", "_proposals",
                 "vault")  # fmt: skip

    def __init__(
        self,
        catalog: FleetCatalog,
        outbox: Replies,
        log: FleetLog,
        findings: Findings,
        vault: FleetVault,
        committed: deque[Committed],
    ) -> None:
        """Change `catalog` by entries of `log`; keys go through `vault`, and `findings` get to know
        when devices that are connected may have to go. `committed` gets what all shards are to keep
        to before it is answered.
        """
        self._committed = committed
        self._catalog = catalog
        self._outbox = outbox
        self._findings = findings
        #: What opens the fleets' keys.
        self.vault = vault
        self._log = log
        self._proposals: Proposals[FleetRecord, Caller] = Proposals(log)

    def lose(self, error: Refused) -> None:
        """This node no longer leads: refuse callers that wait for a change."""
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)

    def put(self, caller: Caller, request: PutFleet) -> None:
        """Propose a fleet. Raises `LevelTooLow`, `BadName`, `BadRequest`, and `Unavailable` where
        the key that it has cannot be compared.
        """
        self._check_level()
        self._check_quiet()
        known = self._catalog.fleets.named(request.name)
        keys = known.keys if known else ()
        if request.key:
            keys = self._with_key(known, request)
        fleet = FleetPut(
            request.name, request.first, request.last, request.level, keys, request.tag
        )
        self._catalog.fleets.check(Fleet.of(fleet))
        self._proposals.propose(fleet, caller)

    def _with_key(self, known: Fleet | None, request: PutFleet) -> tuple[FleetKey, ...]:
        """Return the keys of a fleet with the one that is asked for; the same again is no news."""
        if len(request.key) != FLEET_KEY_BYTES or not request.version:
            raise BadRequest(f"a fleet's key has {FLEET_KEY_BYTES} bytes, and a version from 1 on")
        keys = known.keys if known else ()
        before = known.key(request.version) if known else None
        if known is not None and before is not None:
            if self.vault.open(known, before) != request.key:
                raise BadRequest(
                    f"fleet {request.name} has another key as version {request.version}: give the "
                    "next version to this one",
                    request.version,
                )
            return keys
        return (*keys, self.vault.wrap(request.name, request.version, request.key))

    def remove(self, caller: Caller, request: RemoveFleet) -> None:
        """Propose that a fleet goes. Raises `BadRequest` if there is none."""
        self._known(request.name)
        self._proposals.propose(FleetRemoved(request.name), caller)

    def drop_key(self, caller: Caller, request: DropFleetKey) -> None:
        """Propose that a version of a key goes. Raises `BadRequest` if it is the only one."""
        self._check_quiet()
        known = self._known(request.name)
        keys = tuple(key for key in known.keys if key.version != request.version)
        record = FleetPut(known.name, known.first, known.last, known.level, keys, known.tag)
        self._catalog.fleets.check(Fleet.of(record))
        self._proposals.propose(record, caller)

    def _check_quiet(self) -> None:
        """Raise `Unavailable` while a change is under way: each holds all keys of its fleet."""
        if len(self._proposals):
            raise Unavailable("another change of fleets is under way: try again shortly")

    def set_device(self, caller: Caller, request: SetDevice) -> None:
        """Propose what a device is; answered once all shards that are reached keep to it. Raises
        `LevelTooLow` and `BadRequest`.
        """
        self._check_level()
        record = DeviceSet(request.hub, request.generation, request.is_revoked)
        self._catalog.fleets.check_device(record)
        self._proposals.propose(record, caller)

    def replace_device(self, caller: Caller, request: ReplaceDevice) -> None:
        """Propose that a device is replaced, once the new one is used. Raises as `set_device`."""
        self._check_level()
        record = DeviceReplaced(request.hub, request.generation)
        self._catalog.fleets.check_device(record)
        self._proposals.propose(record, caller)

    def use_device(self, request: UseDevice) -> None:
        """Propose that a device is used, unless that is no news. Raises `Unavailable` where the
        registry is not led here.
        """
        device = self._catalog.fleets.device(request.hub)
        if device.before >= 0 and device.generation == request.generation:
            self._log.propose(DeviceUsed(request.hub, request.generation))

    def list(self, caller: Caller) -> None:
        """Answer with all fleets."""
        fleets = self._catalog.fleets
        rows = [_row(fleet) for fleet in fleets]
        self._outbox.reply(caller, FleetList(rows, self.vault.opens(fleets)))

    def describe_device(self, caller: Caller, request: DescribeDevice) -> None:
        """Answer with what is known of a device."""
        self._outbox.reply(caller, self._info(request.hub))

    def apply(self, index: int, record: FleetRecord) -> None:
        """Apply a committed record, and answer who asked for it."""
        caller, fleets = self._proposals.applied(index), self._catalog.fleets
        reply: Reply | None = None
        try:
            match record:
                case FleetPut():
                    fleet = Fleet.of(record)
                    fleets.put(fleet)
                    reply = FleetChanged(_row(fleet))
                case FleetRemoved(name):
                    reply = FleetChanged(_row(fleets.remove(name)))
                case DeviceSet():
                    fleets.set_device(record)
                    self._catalog.access.device_ended()
                case DeviceReplaced():
                    fleets.replace_device(record)
                    reply = self._info(record.hub)
                case DeviceUsed():
                    fleets.use_device(record)
        except Refused as error:
            if caller is not None:
                self._outbox.refuse(caller, error)
        else:
            self._findings.append(AccessNarrowed())
            if caller is None:
                return
            if reply is not None:
                self._outbox.reply(caller, reply)
            else:
                access = self._catalog.access
                self._committed.append(Committed(caller, access.version, access.mode == "closed"))

    def restored(self) -> None:
        """A snapshot took the place of all fleets: devices may have to go."""
        self._findings.append(AccessNarrowed())

    def handlers(self) -> Mapping[type[Any], Callable[[Session, Caller, Any], None]]:
        """Return what answers each request about fleets."""
        return {
            PutFleet: lambda _, caller, request: self.put(caller, request),
            RemoveFleet: lambda _, caller, request: self.remove(caller, request),
            DropFleetKey: lambda _, caller, request: self.drop_key(caller, request),
            ListFleets: lambda _, caller, __: self.list(caller),
            SetDevice: lambda _, caller, request: self.set_device(caller, request),
            ReplaceDevice: lambda _, caller, request: self.replace_device(caller, request),
            UseDevice: lambda _, __, request: self.use_device(request),
            DescribeDevice: lambda _, caller, request: self.describe_device(caller, request),
        }

    def _check_leads(self) -> None:
        """Raise `Unavailable` where what is known here may be old: nothing is refused by that."""
        if not self._log.ready:
            raise no_registry()

    def _known(self, name: str) -> Fleet:
        self._check_leads()
        known = self._catalog.fleets.named(name)
        if known is None:
            raise BadRequest(f"there is no fleet {name!r}: `weir fleet list` shows them")
        return known

    def _info(self, hub: int) -> DeviceInfo:
        fleet, device = self._catalog.fleets.find(hub), self._catalog.fleets.device(hub)
        return DeviceInfo(hub, fleet.name if fleet else "", *device)

    def _check_level(self) -> None:
        self._check_leads()
        level = self._catalog.level
        if level < FORMAT_LEVEL_ACCESS:
            raise LevelTooLow(
                f"this set writes format level {level}, and fleets need {FORMAT_LEVEL_ACCESS}: "
                "once all nodes run this release, raise it by `weir node raise-level`",
                level,
            )


def _row(fleet: Fleet) -> FleetRow:
    versions = tuple(key.version for key in fleet.keys)
    return FleetRow(fleet.name, fleet.first, fleet.last, int(fleet.level), versions, fleet.tag)
