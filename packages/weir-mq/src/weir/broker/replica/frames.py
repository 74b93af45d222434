"""What replicas of a group tell each other, as frames of a link (`weir.protocol.link`).

A body, little-endian, is u32 CRC-32C of the rest of its head, the head, then payloads as they are.
An APPEND's head:

    offset size field
    0      4    CRC-32C                     24  8  term
    4      4    how many entries            32  8  index before the first entry
    8      8    to, a voter id              40  8  term of that
    16     8    sender, a voter id          48  8  index through which all is committed
                                            56  8  1 if the receiver is spared, else 0

then 24 bytes an entry (term u64, payload length u32, CRC-32C of the payload u32, kind u8, 7 bytes
0), then the payloads. Batches carry CRC and hash of their own: both are checked on arrival, and the
CRC field is 0. Nothing of a frame that fails a check is used.

Nodes also tell each other of entries that rotted on one of them. An ASK's head is u32 how many,
then (index u64, term u64) each. A GIVE's head is u32 how many, then 32 bytes an entry (index u64,
then as an entry of an APPEND).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import chain, starmap
from typing import Any, NamedTuple

import msgspec

import weir_raft as raft
from weir.broker.records.entries import (
    Payload,
    belongs,
    entry_of,
    highest_stamp,
    names_twice,
    read_back,
    stored_in,
)
from weir.codec import U32, Buffer, crc32c, total
from weir.errors import Halted, WeirError
from weir.model.ids import REGISTRY_GROUP, VOTER_MAX
from weir.order.clock import STAMP_FAR
from weir.protocol.link import LINK_HEADER, LinkFrame
from weir.storage.format.frame import Kind
from weir_raft import messages as m

_VOTE_REQUEST = struct.Struct("<QQQQQBB")
_VOTE_REPLY = struct.Struct("<QQQQBB")
_APPEND = struct.Struct("<IQQQQQQQ")
_ENTRY = struct.Struct("<QIIB7x")
_APPEND_REPLY = struct.Struct("<QQQQQQQB")
_HEARTBEAT = struct.Struct("<QQQQQ")
_HEARTBEAT_REPLY = struct.Struct("<QQQQ")
_SNAPSHOT = struct.Struct("<QQQQQQQQQBBHI")
_SNAPSHOT_REPLY = struct.Struct("<QQQQB")
_TIMEOUT_NOW = struct.Struct("<QQQ")
_BEAT = struct.Struct("<QQQBI")
_LED = struct.Struct("<QQQ")
_BEAT_REPLY = struct.Struct("<QQQI")
_DROPPED = struct.Struct("<QQ")
_CLOCK = struct.Struct("<q")
_FULL = struct.Struct("<q")

_BATCHES = int(Kind.BATCHES)
_CRC_SIZE = U32.size
_ENTRY_KINDS = {
    int(kind): kind
    for kind in (Kind.BATCHES, Kind.CONTROL, Kind.NOOP, Kind.CONFIGURATION, Kind.STAGED)
}
_NAME = struct.Struct("<QQ")
_GIVEN_ENTRY = struct.Struct("<QQIIB7x")

#: Index and term of an entry: of a group, they name it, on whatever node.
Name = tuple[int, int]


class FrameKind(IntEnum):
    """What a link frame holds. Those from BEAT on are of all groups, and name group 0."""

    VOTE_REQUEST = 1
    VOTE_REPLY = 2
    APPEND = 3
    APPEND_REPLY = 4
    HEARTBEAT = 5
    HEARTBEAT_REPLY = 6
    SNAPSHOT = 7
    SNAPSHOT_REPLY = 8
    TIMEOUT_NOW = 9
    #: See `weir.broker.replica.frames`.
    REFILL_ASK = 10
    REFILL_GIVE = 11
    BEAT = 16
    BEAT_REPLY = 17
    CLOCK = 18
    FULL = 19


#: Plain numbers: each frame is compared with them.
_BEAT_SENT, _CLOCK_TOLD = int(FrameKind.BEAT), int(FrameKind.CLOCK)
_FULL_TOLD = int(FrameKind.FULL)


#: No term, index, round or stamp is above this. It lies 2^63 below the end of their fields, so what
#: was adopted from a frame can be counted up, and written, for ever.
NUMBER_MAX = (1 << 63) - 1
#: Nor has a partition messages behind this offset: a billion a second would take 146 years.
_OFFSET_FAR = 1 << 62


class BadMessage(Exception):
    """A frame of a link that its sender did not mean so, or that this release does not know."""


class ImpossibleMessage(BadMessage):
    """A sound frame that says what cannot be true: its sender is broken, or means harm."""


class ClockTold(NamedTuple):
    """What the wall clock of a node said when it sent this, in milliseconds since 1970."""

    wall_ms: int


class FullTold(NamedTuple):
    """The disk of a node has no room for more, as of when it sent this. If it takes no publishes,
    `needed_bytes` are to be freed.
    """

    needed_bytes: int = 0


#: What two shards tell each other of all their groups.
Told = m.LinkMessage | ClockTold | FullTold


def pack(group: int, message: m.Message) -> tuple[Buffer, ...]:
    """Return the frame of a message to a replica of `group`; payloads are not copied."""
    if isinstance(message, m.Append):
        return _pack_append(group, message)
    kind, head, data = _PACK[type(message)](message)
    return framed(kind, group, head, *data)


def pack_link(message: Told) -> tuple[Buffer, ...]:
    """Return the frame of what two shards tell each other of all their groups."""
    if isinstance(message, ClockTold):
        return framed(FrameKind.CLOCK, 0, _CLOCK.pack(message.wall_ms))
    if isinstance(message, FullTold):
        # Earlier releases look at the kind alone.
        needed = message.needed_bytes
        return framed(FrameKind.FULL, 0, _FULL.pack(needed) if needed else b"")
    if isinstance(message, m.Beat):
        led = message.led or ()
        head = _BEAT.pack(
            message.number, message.version, message.fence, message.led is not None, len(led)
        )
        return framed(FrameKind.BEAT, 0, head + b"".join(starmap(_LED.pack, led)))
    dropped = message.dropped
    head = _BEAT_REPLY.pack(message.number, message.version, message.fence, len(dropped))
    return framed(FrameKind.BEAT_REPLY, 0, head + b"".join(starmap(_DROPPED.pack, dropped)))


def unpack(frame: LinkFrame) -> m.Message:
    """Return the message of a frame of a group. Raises `BadMessage`."""
    read = _READ.get(frame.kind)
    if read is None:
        raise BadMessage(f"a frame of kind {frame.kind} is not known to this release")
    try:
        return read(frame)
    except (struct.error, WeirError, raft.RaftError, ValueError, IndexError) as error:
        raise BadMessage(f"frame of kind {frame.kind} of group {frame.group}: {error}") from error


def unpack_link(frame: LinkFrame) -> Told:
    """Return what a frame of all groups says. Raises `BadMessage`."""
    try:
        if frame.kind == _CLOCK_TOLD:
            return ClockTold(*_small(_CLOCK, frame))
        body = checked(frame.body, len(frame.body))
        if frame.kind == _FULL_TOLD:
            needed = _FULL.unpack_from(body)[0] if body else 0
            within(needed)
            return FullTold(needed)
        if frame.kind == _BEAT_SENT:
            number, version, fence, is_new, count = _BEAT.unpack_from(body)
            fits(body, _BEAT.size + count * _LED.size)
            led = tuple(_LED.iter_unpack(body[_BEAT.size :])) if is_new else None
            within(number, version, fence, *chain.from_iterable(led or ()))
            return m.Beat(number, version, led, fence)
        number, version, fence, count = _BEAT_REPLY.unpack_from(body)
        fits(body, _BEAT_REPLY.size + count * _DROPPED.size)
        dropped = tuple(_DROPPED.iter_unpack(body[_BEAT_REPLY.size :]))
        within(number, version, fence, *chain.from_iterable(dropped))
        return m.BeatReply(number, version, dropped, fence)
    except struct.error as error:
        raise BadMessage(f"frame of kind {frame.kind}: {error}") from error


# -- appends -------------------------------------------------------------------------------------


def _pack_append(group: int, message: m.Append) -> tuple[Buffer, ...]:
    rows = [
        _APPEND.pack(
            len(message.entries), message.to, message.sender, message.term,
            message.prev_index, message.prev_term, message.commit, message.spared,
        )
    ]  # fmt: skip
    payloads: list[Buffer] = []
    for entry in message.entries:
        payload = stored_in(entry)
        crc = 0
        if payload.kind is not Kind.BATCHES:
            for buffer in payload.buffers:
                crc = crc32c(buffer, crc)
        rows.append(_ENTRY.pack(entry.term, payload.size, crc, payload.kind))
        payloads += payload.buffers
    return framed(FrameKind.APPEND, group, b"".join(rows), *payloads)


def _unpack_append(frame: LinkFrame) -> m.Append:
    body, group = frame.body, frame.group
    (count,) = U32.unpack_from(body, U32.size)
    end = U32.size + _APPEND.size + count * _ENTRY.size
    head = checked(body, end)
    _, to, sender, term, prev_index, prev_term, commit, spared = _APPEND.unpack_from(head)
    rows = [*_ENTRY.iter_unpack(head[_APPEND.size :])]
    # A row begins with the term of its entry.
    highest = max(rows)[0] if rows else 0
    within(term, prev_index, prev_term, commit, prev_index + count, highest)
    entries = []
    at, index = end, prev_index
    for entry_term, size, crc, kind in rows:
        data = body[at : at + size]
        if len(data) != size or not size:
            raise BadMessage(f"an entry of {size:,} bytes, of which {len(data):,} are there")
        if kind != _BATCHES and crc32c(data) != crc:
            raise BadMessage("an entry fails its CRC-32C")
        index += 1
        at += size
        payload = sent_to(group, kind_of(kind), data)
        entries.append(entry_of(index, entry_term, payload))
    fits(body, at)
    return m.Append(to, sender, term, prev_index, prev_term, tuple(entries), commit, bool(spared))


def sent_to(group: int, kind: Kind, data: Buffer) -> Payload:
    """Return the payload of an entry that another node sent to a group, each batch checked.

    Raises `ImpossibleMessage` for one that no group of its kind has, or that a newer release wrote;
    as `read_back` for others.
    """
    try:
        payload = read_back(kind, data, group)
    except Halted as error:
        raise ImpossibleMessage(
            f"an entry was written by a newer release of weir, or by none: {error}"
        ) from None
    for batch in payload.batches:
        if batch.stamp > STAMP_FAR or batch.offset > _OFFSET_FAR:
            raise ImpossibleMessage(f"no leader wrote offset {batch.offset}, stamp {batch.stamp}")
    if payload.control is not None and (record := payload.change) is not None:
        if not belongs(payload.control, group):
            raise ImpossibleMessage(f"group {group} has no {type(record).__name__}")
        if names_twice(record):
            raise ImpossibleMessage("a group cannot have a voter twice")
        if (stamp := highest_stamp(record)) > STAMP_FAR:
            raise ImpossibleMessage(f"no leader wrote a {type(record).__name__} at stamp {stamp}")
    if kind is Kind.CONFIGURATION:
        _check_voters(raft.Configuration.unpack(bytes(data)))
    if payload.staged is not None and payload.staged.stamp > STAMP_FAR:
        raise ImpossibleMessage(f"no leader staged a batch at stamp {payload.staged.stamp}")
    if kind in (Kind.BATCHES, Kind.STAGED) and group == REGISTRY_GROUP:
        raise ImpossibleMessage("the registry has no batches")
    return payload


def _check_voters(configuration: raft.Configuration) -> None:
    if max(configuration.members) > VOTER_MAX:
        raise ImpossibleMessage(f"a voter above {VOTER_MAX:,} is of no node")


def kind_of(number: int) -> Kind:
    """Return which kind of entry it is. Raises `ImpossibleMessage`."""
    kind = _ENTRY_KINDS.get(number)
    if kind is None:
        raise ImpossibleMessage(
            f"an entry of kind {number} is not known to this release: it was written by a newer "
            "release of weir, or by none; upgrade this node"
        )
    return kind


# -- snapshots -----------------------------------------------------------------------------------


def _pack_snapshot(message: m.InstallSnapshot) -> tuple[FrameKind, bytes, tuple[Buffer, ...]]:
    meta = message.snapshot
    configuration = meta.configuration.pack()
    head = _SNAPSHOT.pack(
        message.to, message.sender, message.term, meta.index, meta.term, meta.base_index,
        meta.base_term, meta.size, message.position, message.done, message.spared,
        len(configuration),
        crc32c(message.data),
    )  # fmt: skip
    return FrameKind.SNAPSHOT, head + configuration, (message.data,)


def _unpack_snapshot(frame: LinkFrame) -> m.InstallSnapshot:
    body = frame.body
    start = U32.size + _SNAPSHOT.size
    *fields, done, spared, size, crc = _SNAPSHOT.unpack_from(body, U32.size)
    head = checked(body, start + size)
    configuration = raft.Configuration.unpack(bytes(head[_SNAPSHOT.size :]))
    _check_voters(configuration)
    to, sender, term, index, index_term, base_index, base_term, whole, position = fields
    within(*fields)
    data = bytes(body[start + size :])
    if crc32c(data) != crc:
        raise BadMessage("a piece of a snapshot fails its CRC-32C")
    meta = m.SnapshotMeta(index, index_term, configuration, base_index, base_term, whole)
    return m.InstallSnapshot(to, sender, term, meta, position, data, bool(done), bool(spared))


# -- the small ones ------------------------------------------------------------------------------

_PACK: dict[type, Callable[[Any], tuple[FrameKind, bytes, tuple[Buffer, ...]]]] = {
    m.VoteRequest: lambda v: (
        FrameKind.VOTE_REQUEST,
        _VOTE_REQUEST.pack(v.to, v.sender, v.term, v.last_index, v.last_term, v.pre, v.forced),
        (),
    ),
    m.VoteReply: lambda v: (
        FrameKind.VOTE_REPLY,
        _VOTE_REPLY.pack(v.to, v.sender, v.term, v.fence, v.granted, v.pre),
        (),
    ),
    m.AppendReply: lambda v: (
        FrameKind.APPEND_REPLY,
        _APPEND_REPLY.pack(
            v.to, v.sender, v.term, v.index, v.hint_index, v.hint_term, v.commit, v.rejected
        ),
        (),
    ),
    m.Heartbeat: lambda v: (
        FrameKind.HEARTBEAT,
        _HEARTBEAT.pack(v.to, v.sender, v.term, v.commit, v.round),
        (),
    ),
    m.HeartbeatReply: lambda v: (
        FrameKind.HEARTBEAT_REPLY,
        _HEARTBEAT_REPLY.pack(v.to, v.sender, v.term, v.round),
        (),
    ),
    m.InstallSnapshot: _pack_snapshot,
    m.SnapshotReply: lambda v: (
        FrameKind.SNAPSHOT_REPLY,
        _SNAPSHOT_REPLY.pack(v.to, v.sender, v.term, v.position, v.rejected),
        (),
    ),
    m.TimeoutNow: lambda v: (
        FrameKind.TIMEOUT_NOW,
        _TIMEOUT_NOW.pack(v.to, v.sender, v.term),
        (),
    ),
}


def _small(layout: struct.Struct, frame: LinkFrame) -> tuple[Any, ...]:
    body = checked(frame.body, U32.size + layout.size)
    fits(frame.body, U32.size + layout.size)
    found = layout.unpack(body)
    within(*found)
    return found


def _vote_request(frame: LinkFrame) -> m.VoteRequest:
    to, sender, term, index, last_term, pre, forced = _small(_VOTE_REQUEST, frame)
    return m.VoteRequest(to, sender, term, index, last_term, bool(pre), bool(forced))


def _vote_reply(frame: LinkFrame) -> m.VoteReply:
    to, sender, term, fence, granted, pre = _small(_VOTE_REPLY, frame)
    return m.VoteReply(to, sender, term, bool(granted), bool(pre), fence)


def _append_reply(frame: LinkFrame) -> m.AppendReply:
    to, sender, term, index, hint_index, hint_term, commit, rejected = _small(_APPEND_REPLY, frame)
    return m.AppendReply(to, sender, term, index, bool(rejected), hint_index, hint_term, commit)


def _snapshot_reply(frame: LinkFrame) -> m.SnapshotReply:
    to, sender, term, position, rejected = _small(_SNAPSHOT_REPLY, frame)
    return m.SnapshotReply(to, sender, term, position, bool(rejected))


_READ: dict[int, Callable[[LinkFrame], m.Message]] = {
    FrameKind.VOTE_REQUEST: _vote_request,
    FrameKind.VOTE_REPLY: _vote_reply,
    FrameKind.APPEND: _unpack_append,
    FrameKind.APPEND_REPLY: _append_reply,
    FrameKind.HEARTBEAT: lambda frame: m.Heartbeat(*_small(_HEARTBEAT, frame)),
    FrameKind.HEARTBEAT_REPLY: lambda frame: m.HeartbeatReply(*_small(_HEARTBEAT_REPLY, frame)),
    FrameKind.SNAPSHOT: _unpack_snapshot,
    FrameKind.SNAPSHOT_REPLY: _snapshot_reply,
    FrameKind.TIMEOUT_NOW: lambda frame: m.TimeoutNow(*_small(_TIMEOUT_NOW, frame)),
}


# -- frames --------------------------------------------------------------------------------------


def framed(kind: FrameKind, group: int, head: bytes, *payloads: Buffer) -> tuple[Buffer, ...]:
    """Return a frame with a CRC-32C before its head; payloads are not copied."""
    size = U32.size + len(head) + (total(payloads) if payloads else 0)
    return (LINK_HEADER.pack(kind, size, group) + U32.pack(crc32c(head)) + head, *payloads)


def within(*numbers: int) -> None:
    """Raise `ImpossibleMessage` for a number that no field of its kind ever has."""
    if max(numbers) > NUMBER_MAX or min(numbers) < 0:
        raise ImpossibleMessage(f"a frame says {max(numbers):,}: at most {NUMBER_MAX:,} can be")


def checked(body: memoryview, end: int) -> memoryview:
    """Return the head behind its CRC, up to byte `end` of the body. Raises `BadMessage`."""
    head = body[_CRC_SIZE:end]
    if len(body) < end or U32.unpack_from(body)[0] != crc32c(head):
        raise BadMessage("the head of a frame fails its CRC-32C")
    return head


def fits(body: memoryview, end: int) -> None:
    """Raise `BadMessage` unless the body ends there."""
    if len(body) != end:
        raise BadMessage(f"a frame's body has {len(body):,} bytes, and should have {end:,}")


class Given(msgspec.Struct, frozen=True):
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
        rows.append(_GIVEN_ENTRY.pack(index, term, len(payload), crc, kind))
    return framed(FrameKind.REFILL_GIVE, group, b"".join(rows), *(data for _, _, data in given))


def unpack_give(frame: LinkFrame) -> list[Given]:
    """Return the entries of a GIVE, each of them verified. Raises `BadMessage`."""
    body = frame.body
    try:
        (count,) = U32.unpack_from(body, U32.size)
        at = U32.size + U32.size + count * _GIVEN_ENTRY.size
        head = checked(body, at)
        found = []
        for index, term, size, crc, number in _GIVEN_ENTRY.iter_unpack(head[U32.size :]):
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
