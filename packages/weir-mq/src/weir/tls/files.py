"""The files of TLS, and what OpenSSL makes of them.

A broker's are built aside and tried, by a handshake in memory, before anybody is served with them:
a key of another certificate, a chain that does not end in the bundle, and dates that are not now
are told then, and not to its clients.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from weir.errors import WeirError
from weir.tls.identity import Role
from weir.tls.peers import PeerCertificate, certificate_of

#: The name of the protocol inside: a connection that was meant for another one is refused.
ALPN = "weir"
Minimum = Literal["1.3", "1.2"]
#: Of TLS 1.2: keys that are forgotten, and ciphers that authenticate.
_CIPHERS_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"
_FILE_BYTES_MAX = 1 << 20
_HANDSHAKE_STEPS_MAX = 8


class BadCertificate(WeirError):
    """Files of TLS cannot be used; the message says which, why, and what to do."""


class ServerFiles(NamedTuple):
    """What a broker is given: its certificate with its chain, the key, the bundle of CAs by which
    it and its clients are verified, and a list of serial numbers that are revoked (or empty).
    """

    certificate: str
    key: str
    trust: str
    revoked: str = ""


class ClientFiles(NamedTuple):
    """What a client is given; all of it may be empty.

    Without `ca` the bundle of the machine is used. `server_name` is looked for in the certificates
    of brokers, instead of the host that is dialled.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""


class ServerTls(NamedTuple):
    """What a broker serves with, what it dials other nodes with, what its own certificate says, and
    the revoked serial numbers.
    """

    context: ssl.SSLContext
    dialling: ssl.SSLContext
    own: PeerCertificate
    revoked: frozenset[str]


def server_tls(files: ServerFiles, minimum: Minimum = "1.3", requires: bool = False) -> ServerTls:
    """Read a broker's files and try them. `requires` asks each client for a certificate.

    Raises `BadCertificate`.
    """
    context = _server_context(files, minimum)
    context.verify_mode = ssl.CERT_REQUIRED if requires else ssl.CERT_OPTIONAL
    dialling = client_context(ClientFiles(files.trust, files.certificate, files.key))
    dialling.check_hostname = False  # a node is known by its number, wherever it is
    own = _tried(files, dialling)
    if own.identity is not None and own.identity.role is not Role.NODE:
        raise BadCertificate(
            f"{files.certificate} is of {own.identity}, and a broker needs one of a node: "
            "`weir cert issue node N --host NAME`"
        )
    return ServerTls(context, dialling, own, _revoked(files.revoked))


def client_context(files: ClientFiles) -> ssl.SSLContext:
    """Return what a client connects with. Raises `BadCertificate`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit(context, "1.3")
    if files.ca:
        _trust(context, files.ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if files.certificate or files.key:
        _load(context, files.certificate, files.key)
    return context


def _server_context(files: ServerFiles, minimum: Minimum) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit(context, minimum)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    # Shards cannot share the keys of tickets, so a client that came to another one would have
    # brought its ticket in vain.
    context.num_tickets = 0
    _load(context, files.certificate, files.key)
    _trust(context, files.trust)
    return context


def _limit(context: ssl.SSLContext, minimum: Minimum) -> None:
    newest = ssl.TLSVersion.TLSv1_3
    context.minimum_version = newest if minimum == "1.3" else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS_1_2)
    context.set_alpn_protocols([ALPN])


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    if not (certificate and key):
        missing, has = ("key", certificate) if certificate else ("certificate", key)
        raise BadCertificate(f"{has} is given without its {missing}: give both")
    for file in (certificate, key):
        _check_file(file)
    try:
        # The password of an encrypted key would have to be asked for at a terminal.
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if "MISMATCH" in str(error.reason):
            raise BadCertificate(
                f"{key} is the key of another certificate than {certificate}: copy both"
            ) from None
        raise BadCertificate(
            f"{certificate} and {key} cannot be read ({_reason(error)}): they are PEM files, the "
            "key without a password; one that was copied by half is copied again"
        ) from None
    except ValueError as error:
        raise BadCertificate(f"{key} {error}") from None


def _no_password() -> str:
    raise ValueError("has a password: store it without one, readable to its user alone")


def _trust(context: ssl.SSLContext, bundle: str) -> None:
    _check_file(bundle)
    try:
        context.load_verify_locations(bundle)
    except ssl.SSLError as error:
        raise BadCertificate(
            f"{bundle} is no bundle of CA certificates in PEM ({_reason(error)})"
        ) from None


def _check_file(name: str) -> None:
    file = Path(name)
    try:
        size = file.stat().st_size
        with file.open("rb"):
            pass
    except OSError as error:
        raise BadCertificate(f"{name} cannot be read: {error.strerror}") from None
    if not 0 < size <= _FILE_BYTES_MAX:
        raise BadCertificate(f"{name} has {size:,} bytes: that is no certificate or key in PEM")


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _tried(files: ServerFiles, dialling: ssl.SSLContext) -> PeerCertificate:
    """Return what the own certificate says, once it has shaken hands with itself in memory: as it
    does with another node, each side verifying the other.
    """
    serving = _server_context(files, "1.3")
    serving.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = dialling.wrap_bio(to_client, to_server)
    try:
        for _ in range(_HANDSHAKE_STEPS_MAX):
            for side in (client, server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise BadCertificate(
            f"{files.certificate} does not verify against {files.trust}: {error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        raise BadCertificate(f"{files.certificate}: {_reason(error)}") from None
    found = client.getpeercert()
    assert found
    return certificate_of(dict(found))


def _revoked(name: str) -> frozenset[str]:
    """Read serial numbers in hexadecimal digits, one a line, with a comment behind it."""
    if not name:
        return frozenset()
    try:
        with Path(name).open("rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise BadCertificate(f"{name} cannot be read: {error.strerror}") from None
    if len(text) > _FILE_BYTES_MAX:
        raise BadCertificate(f"{name} is over {_FILE_BYTES_MAX:,} bytes: drop what has expired")
    found = set()
    for number, line in enumerate(text.decode(errors="replace").splitlines(), 1):
        serial = line.partition("#")[0].strip().lower().replace(":", "").lstrip("0")
        if serial and not set(serial) <= set("0123456789abcdef"):
            raise BadCertificate(
                f"{name}, line {number}: {serial!r} is no serial number: write hexadecimal digits"
            )
        if serial:
            found.add(serial)
    return frozenset(found)
