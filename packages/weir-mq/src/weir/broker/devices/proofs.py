"""Hubs of a fleet prove their identity before the broker stores anything (`weir.access.devices`).

Until its proof is checked a connection leaves nothing: no slot, no boot, no row, no fence. A hub
that is unknown, has a wrong secret, or was revoked gets the same answer, after the same work.
"""

from __future__ import annotations

from typing import NamedTuple

from weir.access.devices import (
    SECRET_BYTES,
    Claim,
    Level,
    Nonces,
    check_proof,
    derive_secret,
    frame_keys,
    prove_broker,
    prove_device,
)
from weir.broker.api.effects import SignFrames
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.security.enrolment import FleetVault
from weir.broker.metadata.security.fleets import Device, Fleet
from weir.broker.runtime.session import Session
from weir.errors import NoHello, NotAuthenticated, Unavailable
from weir.protocol.proof import Challenge, DeviceHello, DeviceProof, DeviceProven

_REFUSED = "this proof does not prove this hub: check the device's secret"
_NO_KEY = b"no fleet has this key".ljust(SECRET_BYTES, b"\0")


class Checked(NamedTuple):
    """A proof that was right: what the device said, and how its connection goes on."""

    proven: DeviceProven
    #: What signs its frames, None if they are not signed.
    signs: SignFrames | None


class Proofs:
    """Asks for proofs and checks them, by the fleets in this shard's copy of the registry."""

    __slots__ = ("_catalog", "_nonces", "_system", "_vault")

    def __init__(
        self, catalog: Catalog, system: int, nonces: Nonces | None, vault: FleetVault
    ) -> None:
        """Ask by `nonces`, check by the fleet keys that `vault` opens. Where it does not, and
        without nonces, hubs of fleets are told to find another node.
        """
        self._catalog = catalog
        self._system = system
        self._nonces = nonces
        self._vault = vault

    def concerns(self, hub: int) -> bool:
        """Return whether a hub must prove itself."""
        return self._catalog.fleets.find(hub) is not None

    def challenge(self, session: Session, hello: DeviceHello) -> Challenge:
        """Return what a hub must answer; a challenge that it had before is void.

        Raises `Unavailable` where this node cannot check the answer.
        """
        fleet = self._catalog.fleets.find(hello.hub)
        if self._nonces is None or fleet is None:
            raise Unavailable("this node checks no proofs: connect to another one")
        asked = Challenge(self._system, fleet.level, self._nonces.next())
        session.asked = hello, asked
        return asked

    def check(self, session: Session, proof: DeviceProof) -> Checked:
        """Check the answer to the session's challenge; one answer is taken, unless this raises
        `Unavailable`: the key file does not open the fleet's key here.

        Raises `NotAuthenticated`, whatever is wrong with the proof, and `NoHello`.
        """
        if session.asked is None:
            raise NoHello("say hello before the proof: it answers a challenge")
        hello, asked = session.asked
        fleets = self._catalog.fleets
        fleet, device = fleets.find(hello.hub), fleets.device(hello.hub)
        key = self._fleet_key(fleet, proof.key_version)
        generation = proof.generation if proof.generation == device.before else device.generation
        secret = derive_secret(key or _NO_KEY, self._system, hello.hub, generation)
        claim = proof.claim(asked, hello)
        # All of it is done whatever is wrong: time tells no more than the code.
        is_right = check_proof(prove_device(secret, claim), proof.proof)
        if not (is_right & _may_come(fleet, device, claim) & (key is not None)):
            raise NotAuthenticated(_REFUSED)
        proven = DeviceProven(proof.sn, hello, proof.generation, prove_broker(secret, claim))
        signs = None
        if proof.level >= Level.SIGNED:
            signs = SignFrames(session.id, frame_keys(secret, claim))
        return Checked(proven, signs)

    def may_stay(self, session: Session) -> bool:
        """Return whether a session's hub needs no proof, or gave one that still counts."""
        if session.device is None:
            return True
        hub, proven = session.hub, session.proven
        if proven is None:
            return not self.concerns(hub)
        fleet = self._catalog.fleets.find(hub)
        if fleet is not None and session.proven_by is not None:
            version, level = session.proven_by
            if fleet.key(version) is None or level < fleet.level:
                return False
        return proven[0] == hub and self.is_current(*proven)

    def is_current(self, hub: int, generation: int) -> bool:
        """Return whether a device of this generation may still be here."""
        fleets = self._catalog.fleets
        return fleets.find(hub) is not None and fleets.device(hub).admits(generation)

    def certifies(self, session: Session, hub: int) -> bool:
        """Return whether a session has shown the certificate of a hub, and not of another one; of
        which generation is not looked at.

        Raises `NotAuthenticated` for the certificate of another hub.
        """
        certified = session.certified_device
        if certified is None or session.passed:
            return False
        if certified[0] != hub:
            raise NotAuthenticated(_REFUSED)
        return self.concerns(hub)

    def is_ahead(self, hub: int, generation: int) -> bool:
        """Return whether this shard may not have heard yet of a device, or of its fleet."""
        fleets = self._catalog.fleets
        return fleets.find(hub) is None or generation > fleets.device(hub).generation

    def tag_of(self, hub: int) -> str:
        """Return the tag of a hub's fleet."""
        fleet = self._catalog.fleets.find(hub)
        return fleet.tag if fleet is not None else ""

    def _fleet_key(self, fleet: Fleet | None, version: int) -> bytes | None:
        wrapped = None if fleet is None else fleet.key(version)
        return None if fleet is None or wrapped is None else self._vault.open(fleet, wrapped)


def _may_come(fleet: Fleet | None, device: Device, claim: Claim) -> bool:
    return (
        fleet is not None
        and device.admits(claim.generation)
        and claim.is_fresh
        and claim.level in (Level.PROOF, Level.SIGNED)
        and claim.level >= fleet.level
    )
