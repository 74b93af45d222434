"""The private CA of a set: a folder that stays with the operator, and on no node.

authority.json   the system, the set, and which CA signs now
ca.pem           the bundle: what nodes and clients trust
ca-N.pem, .key   each CA; the newest signs, unless a rotation has begun only
issued/          what was issued: NAME.pem and NAME.key; former/ has those that were renewed
revoked.txt      serial numbers that nodes refuse, one a line

Every file is created by a rename: a reader, or the next run after a kill, finds either the old file
or the new one. A CA is replaced in three steps, between which files are carried to all machines:
`prepare` adds a new one to the bundle, `switch` signs with it, `finish` drops the old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from weir.errors import WeirError
from weir.tls.identity import BadIdentity, Identity, Role, parse_identity

Step = Literal["prepare", "switch", "finish"]
Clock = Callable[[], datetime]

CA_DAYS = 3_650
DAYS = {Role.NODE: 397, Role.USER: 90, Role.DEVICE: 3_650}
DAYS_MAX = 36_500
#: Certificates begin so long ago: clocks differ.
_EARLIER = timedelta(hours=1)
_RECORD = "authority.json"
_BUNDLE = "ca.pem"
REVOKED = "revoked.txt"
_ISSUED, _FORMER = "issued", "former"
_LOCK = "lock"
#: What `begun` writes, in this order.
_BEGUN = ("ca-1.key", "ca-1.pem", _BUNDLE, _RECORD)


class BadAuthority(WeirError):
    """The folder of a CA cannot be used, or not for that."""


class Issued(NamedTuple):
    """A certificate that was issued; `ends` is when it expires."""

    name: str
    identity: Identity
    serial: str
    ends: datetime
    hosts: tuple[str, ...]
    ca: int
    revoked: bool
    certificate: Path
    key: Path


class _Record(msgspec.Struct, frozen=True):
    system: str
    set: int
    #: The CA that signs, and the newest one.
    signs: int
    newest: int
    #: Those that the bundle has.
    trusted: tuple[int, ...]


def _utc() -> datetime:
    return datetime.now(UTC)


class Authority:
    """A CA's folder, held while this is used: one command at a time changes it."""

    def __init__(self, folder: Path, record: _Record, now: Clock) -> None:
        """Use a folder; `begun` makes one, and `opened` opens one."""
        self._now = now
        self.folder = folder
        self._record = record

    @property
    def system(self) -> int:
        """The system whose nodes, users and devices it speaks for."""
        return int(self._record.system, 16)

    @property
    def set(self) -> int:
        """The set."""
        return self._record.set

    @property
    def bundle(self) -> Path:
        """The bundle of CAs that nodes and clients trust."""
        return self.folder / _BUNDLE

    def issue(
        self, identity: Identity, hosts: Sequence[str] = (), days: int | None = None
    ) -> Issued:
        """Issue a certificate with a new key. `hosts` are the names and addresses of a node.

        Raises `BadAuthority` for an identity of another system, and where it is issued already.
        """
        name = name_of(identity)
        if (self.folder / _ISSUED / f"{name}.pem").exists():
            raise BadAuthority(
                f"{name} has a certificate already: `weir cert renew {name}` makes a new one"
            )
        return self._issue(identity, hosts, days)

    def renew(self, name: str, days: int | None = None) -> Issued:
        """Issue it again, with a new key, by the CA that signs now; the old one stays valid until
        it ends. Raises `BadAuthority`.
        """
        old = self.find(name)
        # It stays valid, so it can be revoked: first, that none is missed.
        former = self.folder / _ISSUED / _FORMER
        former.mkdir(exist_ok=True)
        _write(former / f"{old.name}.{old.serial}.pem", old.certificate.read_bytes())
        return self._issue(old.identity, old.hosts, days)

    def find(self, name: str) -> Issued:
        """Return what was issued by its name or its serial number. Raises `BadAuthority`."""
        wanted = name.lower().lstrip("0")
        for one in self.issued():
            if name == one.name or wanted == one.serial:
                return one
        known = ", ".join(one.name for one in self.issued()[:10]) or "none yet"
        raise BadAuthority(f"no certificate has the name {name!r}; issued: {known}")

    def issued(self) -> list[Issued]:
        """Return all that was issued, by name. Raises `BadAuthority` for a file that is damaged."""
        revoked = self.revoked()
        files = sorted((self.folder / _ISSUED).glob("*.pem"))
        return [self._read(file, revoked) for file in files]

    def revoke(self, name: str) -> Issued:
        """Add a certificate to those that nodes refuse, with all that it came after, and forget it:
        it can be issued anew.
        """
        one = self.find(name)
        file = self.folder / REVOKED
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        revoked = self.revoked()
        former = sorted((self.folder / _ISSUED / _FORMER).glob(f"{one.name}.*.pem"))
        for each in (*(self._read(old, revoked) for old in former), one):
            if each.serial not in revoked and each.ends > self._now():
                text += f"{each.serial}  # {each.identity}, ends {each.ends:%Y-%m-%d}\n"
        _write(file, text.encode())
        for old in former:
            old.unlink()
        one.certificate.unlink(missing_ok=True)
        one.key.unlink(missing_ok=True)
        return one._replace(revoked=True)

    def revoked(self) -> frozenset[str]:
        """Return the serial numbers that nodes refuse."""
        file = self.folder / REVOKED
        if not file.exists():
            return frozenset()
        lines = file.read_text(encoding="utf-8").splitlines()
        return frozenset(line.partition("#")[0].strip() for line in lines) - {""}

    def rotate(self, step: Step) -> str:
        """Take a step of replacing the CA; return what to do next. Taken again, it does nothing.

        Raises `BadAuthority` for a step that is not the next one.
        """
        record = self._record
        under_way = record.newest != record.signs
        if step == "prepare":
            if not under_way:
                if len(record.trusted) > 1:
                    raise BadAuthority("a rotation is not finished: `weir cert rotate-ca finish`")
                number = record.newest + 1
                _new_ca(self.folder, number, record, self._now())
                self._save(newest=number, trusted=(*record.trusted, number))
            return (
                f"Carry {self.bundle} to all nodes and clients; once all have it: "
                "weir cert rotate-ca switch"
            )
        if step == "switch":
            if under_way:
                self._save(signs=record.newest)
            elif len(record.trusted) == 1:
                raise BadAuthority("there is no new CA: `weir cert rotate-ca prepare` makes it")
            return (
                "Renew all (weir cert renew NAME), carry them out, then: weir cert rotate-ca finish"
            )
        if step not in get_args(Step):
            raise BadAuthority(f"{step!r} is no step: prepare, switch and finish are")
        if record.newest == 1:
            raise BadAuthority(
                "no rotation has begun, and the CA is as it was: `weir cert rotate-ca prepare` "
                "makes a new one"
            )
        if under_way:
            raise BadAuthority("the old CA still signs: run `weir cert rotate-ca switch` first")
        old = [one.name for one in self.issued() if one.ca != record.signs]
        if old:
            shown = ", ".join(old[:10])
            more = f" and {len(old) - 10:,} more" if len(old) > 10 else ""
            raise BadAuthority(f"these are of the old CA, renew them: {shown}{more}")
        self._save(trusted=(record.signs,))
        return f"Carry {self.bundle} to all nodes and clients: the old CA is no longer trusted"

    def _save(
        self, signs: int | None = None, newest: int | None = None,
        trusted: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        record = self._record
        record = msgspec.structs.replace(
            record,
            signs=record.signs if signs is None else signs,
            newest=record.newest if newest is None else newest,
            trusted=record.trusted if trusted is None else trusted,
        )
        # The bundle first: a signer that is not in it would be trusted by nobody.
        if len(record.trusted) >= len(self._record.trusted):
            _write_bundle(self.folder, record)
        _write(self.folder / _RECORD, msgspec.json.encode(record))
        _write_bundle(self.folder, record)
        self._record = record

    def _issue(self, identity: Identity, hosts: Sequence[str], days: int | None) -> Issued:
        is_of_set = identity.role is Role.NODE  # users and devices belong to no BrokerSet
        if identity.system != self.system or not (is_of_set or identity.set == self.set):
            raise BadAuthority(
                f"{identity} is of another system than this CA, which is of {self.system:x}"
            )
        if identity.role is Role.NODE and not hosts:
            raise BadAuthority(
                "a node needs the names and addresses by which it is dialled: --host NAME"
            )
        lasts = _days(days, DAYS[identity.role])
        signer = self._record.signs
        ca = _read_certificate(self.folder / f"ca-{signer}.pem")
        ca_key = _read_key(self.folder / f"ca-{signer}.key")
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.role is Role.NODE:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        now = self._now()
        ends = min(now + timedelta(days=lasts), ca.not_valid_after_utc)
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(str(identity))]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_named(name_of(identity)))
            .issuer_name(ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(ends)
            .add_extension(
                x509.SubjectAlternativeName(names + [_host(one) for one in hosts]), False
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(_usage(ca=False), True)
            .add_extension(x509.ExtendedKeyUsage(usages), False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False
            )
            .sign(ca_key, hashes.SHA256())
        )
        folder = self.folder / _ISSUED
        folder.mkdir(exist_ok=True)
        file = folder / f"{name_of(identity)}.pem"
        # In this order: a kill in between leaves a key without its certificate, which is renewed.
        _write(file.with_suffix(".key"), _pem_key(key), secret=True)
        _write(file, _pem(certificate))
        return self._read(file, frozenset())

    def _read(self, file: Path, revoked: frozenset[str]) -> Issued:
        found = _read_certificate(file)
        try:
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
            identity = parse_identity(uri)
        except (x509.ExtensionNotFound, ValueError, BadIdentity):
            raise BadAuthority(f"{file} was not issued by this CA: move it elsewhere") from None
        addresses = names.get_values_for_type(x509.IPAddress)
        hosts = (*names.get_values_for_type(x509.DNSName), *map(str, addresses))
        serial = f"{found.serial_number:x}"
        return Issued(
            file.stem, identity, serial, found.not_valid_after_utc, hosts, _signer(found),
            serial in revoked, file, file.with_suffix(".key"),
        )  # fmt: skip


@contextlib.contextmanager
def opened(folder: Path, now: Clock = _utc) -> Iterator[Authority]:
    """Open the folder of a CA, and hold it; `now` is its clock. Raises `BadAuthority`."""
    if not (folder / _RECORD).exists():
        raise BadAuthority(f"{folder} holds no CA: `weir cert init --folder {folder}` makes one")
    with _held(folder):
        try:
            record = msgspec.json.decode((folder / _RECORD).read_bytes(), type=_Record)
        except msgspec.DecodeError as error:
            raise BadAuthority(f"{folder / _RECORD}: {error}. Restore it from a backup") from None
        yield Authority(folder, record, now)


@contextlib.contextmanager
def begun(
    folder: Path, system: int, set: int = 0, days: int | None = None, now: Clock = _utc
) -> Iterator[Authority]:
    """Make a CA for a system, and hold its folder. Raises `BadAuthority` where one is already, and
    for a folder with other files.
    """
    _check_free(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _held(folder):
        if (folder / _RECORD).exists():
            raise BadAuthority(f"{folder} holds a CA already: give another folder")
        record = _Record(f"{system:x}", set, 1, 1, (1,))
        _new_ca(folder, 1, record, now(), days)
        _write_bundle(folder, record)
        _write(folder / _RECORD, msgspec.json.encode(record))  # last: with it all of it is there
        yield Authority(folder, record, now)


def _check_free(folder: Path) -> None:
    """Raise `BadAuthority` for a folder with files, but for those that an interrupted `begun` left:
    another CA may have a ca.pem as well.
    """
    if (folder / _RECORD).exists() or not folder.is_dir():
        return  # the one is refused once the folder is held, the other is made
    names = {one.name.removesuffix(".new") for one in folder.iterdir()} - {_LOCK, "lost+found"}
    written = _BEGUN[: len(names.intersection(_BEGUN))]
    if foreign := sorted(names.difference(written)):
        raise BadAuthority(
            f"{folder} holds other files ({', '.join(foreign[:3])}) and no CA: give --folder an "
            "empty folder, or one that does not exist yet"
        )


def name_of(identity: Identity) -> str:
    """Return the name of a certificate's files: `node-1`, `user-NAME@NAMESPACE`, `device-7-0`."""
    if identity.role is Role.USER:
        namespace, name = identity.names
        return f"{identity.role}-{name}@{namespace}"
    return "-".join((identity.role, *identity.names))


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadAuthority(f"another command uses {folder}: wait until it is done") from None
        yield


def _days(days: int | None, default: int) -> int:
    if days is not None and not 1 <= days <= DAYS_MAX:
        raise BadAuthority(f"--days {days}: give 1 to {DAYS_MAX:,}")
    return days or default


def _new_ca(
    folder: Path, number: int, record: _Record, now: datetime, days: int | None = None
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _named(f"weir {record.system}/{record.set} CA {number}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=_days(days, CA_DAYS)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(_usage(ca=True), True)
        .add_extension(identifier, False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False
        )
        .sign(key, hashes.SHA256())
    )
    _write(folder / f"ca-{number}.key", _pem_key(key), secret=True)
    _write(folder / f"ca-{number}.pem", _pem(certificate))


def _write_bundle(folder: Path, record: _Record) -> None:
    parts = [(folder / f"ca-{number}.pem").read_bytes() for number in record.trusted]
    _write(folder / _BUNDLE, b"".join(parts))


def _usage(ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _named(name: str) -> x509.Name:
    # A common name has 64 characters at most; the identity is in the alternative names.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    try:
        return x509.DNSName(text.encode("idna").decode("ascii"))
    except (UnicodeError, ValueError):
        raise BadAuthority(f"--host {text!r}: that is no name of a machine") from None


def _signer(certificate: x509.Certificate) -> int:
    (name,) = certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    number = str(name.value).rpartition(" ")[2]
    return int(number) if number.isdecimal() else 0


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _read_certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise BadAuthority(f"{file} cannot be read ({error}): restore it from a backup") from None


def _read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise BadAuthority(f"{file} cannot be read ({error}): restore it from a backup") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadAuthority(f"{file} is no key of a CA that `weir cert init` made")
    return key


def _write(file: Path, data: bytes, secret: bool = False) -> None:
    """Put a whole file in the place of another, durably."""
    new = file.with_name(f"{file.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if secret else 0o644),
              "wb") as out:  # fmt: skip
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    new.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
