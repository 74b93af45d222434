"""What nodes tell each other of entries that rotted on one of them, as frames of a link.

A body, little-endian, is u32 CRC-32C of the rest of its head, the head, then payloads as they are.
An ASK's head is u32 how many, then (index u64, term u64) each. A GIVE's head is u32 how many, then
32 bytes an entry (index u64, term u64, payload length u32, CRC-32C of the payload u32, kind u8, 7
bytes 0). Batches carry CRC and hash of their own, and the CRC field is 0 there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from weir.broker.records.entries import Payload
from weir.broker.replica.peers.frames import (
    BadMessage,
    FrameKind,
    checked,
    fits,
    framed,
    kind_of,
    sent_to,
    within,
)
from weir.codec.checksums import crc32c
from weir.codec.fields import U32, Buffer
from weir.errors import WeirError
from weir.protocol.link import LinkFrame
from weir.storage.format.frame import Kind

_NAME = struct.Struct("<QQ")
_ENTRY = struct.Struct("<QQIIB7x")

#: Index and term of an entry: of a group, they name it, on whatever node.
Name = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Given:
    """An entry that another node has."""

    name: Name
    payload: Payload


def pack_ask(group: int, names: Sequence[Name]) -> tuple[Buffer, ...]:
    """Return the frame that asks for entries of a group."""
    head = U32.pack(len(names)) + b"".join(_NAME.pack(*name) for name in names)
    return framed(FrameKind.REFILL_ASK, group, head)


def unpack_ask(frame: LinkFrame) -> list[Name]:
    """Return which entries are asked for. Raises `BadMessage`."""
    try:
        head = checked(frame.body, len(frame.body))
        (count,) = U32.unpack_from(head)
        fits(head, U32.size + count * _NAME.size)
        names = [(index, term) for index, term in _NAME.iter_unpack(head[U32.size :])]
        for name in names:
            within(*name)
        return names
    except struct.error as error:
        raise BadMessage(f"frame of kind {frame.kind}: {error}") from error


def pack_give(group: int, given: Sequence[tuple[Name, Kind, Buffer]]) -> tuple[Buffer, ...]:
    """Return the frame that gives entries of a group, with kind and payload; perhaps none."""
    rows = [U32.pack(len(given))]
    for (index, term), kind, payload in given:
        crc = 0 if kind is Kind.BATCHES else crc32c(payload)
        rows.append(_ENTRY.pack(index, term, len(payload), crc, kind))
    return framed(FrameKind.REFILL_GIVE, group, b"".join(rows), *(data for _, _, data in given))


def unpack_give(frame: LinkFrame) -> list[Given]:
    """Return the entries of a GIVE, each of them verified. Raises `BadMessage`."""
    body = frame.body
    try:
        (count,) = U32.unpack_from(body, U32.size)
        at = U32.size + U32.size + count * _ENTRY.size
        head = checked(body, at)
        found = []
        for index, term, size, crc, number in _ENTRY.iter_unpack(head[U32.size :]):
            data, kind = body[at : at + size], kind_of(number)
            if len(data) != size or (kind is not Kind.BATCHES and crc32c(data) != crc):
                raise BadMessage("an entry is cut short, or fails its CRC-32C")
            within(index, term)
            found.append(Given((index, term), sent_to(frame.group, kind, data)))
            at += size
        fits(body, at)
    except (struct.error, WeirError, ValueError, IndexError) as error:
        raise BadMessage(f"frame of kind {frame.kind} of group {frame.group}: {error}") from error
    return found
