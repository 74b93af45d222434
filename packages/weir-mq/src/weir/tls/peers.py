"""What the certificate of the other side says, once a handshake has verified it."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from weir.errors import Disconnected
from weir.tls.identity import BadIdentity, Identity, parse_identity


class PeerCertificate(NamedTuple):
    """A certificate that was verified. `identity` is None in one that this CA's tools did not make;
    `ends` is in seconds since 1970; `serial` in hexadecimal digits, small and without zeros ahead.
    """

    identity: Identity | None
    serial: str
    ends: float


def peer_of(tls: ssl.SSLObject) -> PeerCertificate | None:
    """Return what the other side's certificate says; None if it has none, or none was asked for."""
    found = tls.getpeercert()
    return certificate_of(dict(found)) if found else None


def certificate_of(found: dict[str, object]) -> PeerCertificate:
    """Read a certificate as `ssl` gives it. One with several identities has none."""
    names = found.get("subjectAltName", ())
    assert isinstance(names, tuple)
    uris = [value for kind, value in names if kind == "URI" and value.startswith("weir://")]
    identity: Identity | None = None
    if len(uris) == 1:
        try:
            identity = parse_identity(uris[0])
        except BadIdentity:
            identity = None
    ends = ssl.cert_time_to_seconds(str(found["notAfter"]))
    serial = str(found.get("serialNumber", "")).lower().lstrip("0") or "0"
    return PeerCertificate(identity, serial, float(ends))


def check_broker(peer: PeerCertificate | None, system: int, node: int, where: str) -> None:
    """Raise `Disconnected` unless the peer has the certificate of `node` of `system`.

    A certificate without an identity, as of a public CA, speaks for its name alone.
    """
    if peer is None or peer.identity is None:
        return
    who = peer.identity
    if (who.system, who.node) != (system, node):
        raise Disconnected(
            f"{where} says it is node {node} of system {system:x}, and its certificate is for "
            f"{who}: give that node a certificate of its own (`weir cert issue node {node}`)"
        )
