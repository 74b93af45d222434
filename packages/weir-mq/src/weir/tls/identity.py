"""The identity in a certificate: one URI among the alternative names of its subject.

    weir://SYSTEM/SET/node/N                a node: the only one that is a broker to others
    weir://SYSTEM/SET/user/NAMESPACE/NAME   a client
    weir://SYSTEM/SET/device/HUB/GENERATION a device

SYSTEM is the id of the system in hexadecimal digits, as `weir node status` shows it. SET is the id
of a node's BrokerSet, 0 in a system with one; of users and devices it is 0.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from weir.errors import WeirError

_SCHEME = "weir://"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_SYSTEM = re.compile(r"[1-9a-f][0-9a-f]{0,15}")
_NUMBER_MAX = (1 << 64) - 1


class BadIdentity(WeirError):
    """What is to be an identity is none; the message says what to write."""


class Role(StrEnum):
    """What a certificate is for."""

    NODE = "node"
    USER = "user"
    DEVICE = "device"


#: How each is written behind the set.
_PARTS = {Role.NODE: ("N",), Role.USER: ("NAMESPACE", "NAME"), Role.DEVICE: ("HUB", "GENERATION")}


class Identity(msgspec.Struct, frozen=True):
    """The identity of a peer. `names` are the parts behind the role: `("3",)` of node 3."""

    system: int
    set: int
    role: Role
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{_SCHEME}{self.system:x}/{self.set}/{self.role}/{'/'.join(self.names)}"

    @property
    def node(self) -> int:
        """The number of the node; 0 if the identity is not a node's."""
        return int(self.names[0]) if self.role is Role.NODE else 0


def node(system: int, number: int) -> Identity:
    """Return the identity of a node. Raises `BadIdentity`."""
    return parse_identity(f"{_SCHEME}{system:x}/0/node/{number}")


def parse_identity(uri: str) -> Identity:
    """Return the identity that a URI names. Raises `BadIdentity` for any other text."""
    parts = uri.removeprefix(_SCHEME).split("/")
    if not uri.startswith(_SCHEME) or len(parts) < 3 or not _SYSTEM.fullmatch(parts[0]):
        raise BadIdentity(f"{uri!r} is no identity: write weir://SYSTEM/0/node/1, say")
    system, brokerset, role, *names = parts
    if role not in Role.__members__.values():
        raise BadIdentity(f"{uri!r}: the role is node, user or device, not {role!r}")
    kind = Role(role)
    wanted = _PARTS[kind]
    numbers = kind is not Role.USER
    fits = len(names) == len(wanted) and _is_number(brokerset)
    if not fits or not all(_is_number(one) if numbers else _is_name(one) for one in names):
        like = "/".join((_SCHEME + "SYSTEM", "SET", role, *wanted))
        raise BadIdentity(f"{uri!r} is no identity of a {role}: write {like}")
    if kind is Role.NODE and names[0] == "0":
        raise BadIdentity(f"{uri!r}: nodes are numbered from 1")
    return Identity(int(system, 16), int(brokerset), kind, tuple(names))


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and int(text) <= _NUMBER_MAX


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and text not in (".", "..")
