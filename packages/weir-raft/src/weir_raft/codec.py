"""Messages as bytes, for hosts whose entries hold bytes.

A host may use its own encoding instead: the library itself never reads or writes bytes of messages.
All numbers are little-endian, and none is negative or above 2^63 - 1. A message begins with

    offset size field
    0      1    version, 1
    1      1    kind
    2      2    flags of this kind; the others are 0

and goes on with i64 fields in the order of `_FIELDS`. An APPEND then has u32 how many entries, and
of each i64 term, u32 length, u16 kind and u16 flags (1: its data is None, and its length 0), then
the data of all of them. An INSTALL_SNAPSHOT has u32 length of the configuration, the configuration
as `Configuration.pack` gives it, then the piece. A BEAT has u32 how many groups and three i64 of
each, a BEAT_REPLY u32 how many and two i64 of each.

There is one encoding of each message, and no checksum: where the transport does not protect what it
carries, the host adds one. Who reads bytes of strangers authenticates them first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from weir_raft.errors import CodecError, InvalidConfig
from weir_raft.membership import Configuration
from weir_raft.messages import (
    Append,
    AppendReply,
    Beat,
    BeatReply,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    LinkMessage,
    Message,
    SnapshotMeta,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from weir_raft.storage import Entry, EntryKind

Buffer = bytes | bytearray | memoryview

#: What `decode` and `decode_link` take unless they are told otherwise.
MESSAGE_BYTES_MAX = 64 << 20
#: The highest term, index, id, round or fence: one above it still fits its field.
NUMBER_MAX = (1 << 63) - 1

_VERSION = 1
_HEAD = struct.Struct("<BBH")
_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<qIHH")
_LED = struct.Struct("<qqq")
_DROPPED = struct.Struct("<qq")
_NO_DATA = 1


class _Kind(IntEnum):
    VOTE_REQUEST = 1
    VOTE_REPLY = 2
    APPEND = 3
    APPEND_REPLY = 4
    HEARTBEAT = 5
    HEARTBEAT_REPLY = 6
    INSTALL_SNAPSHOT = 7
    SNAPSHOT_REPLY = 8
    TIMEOUT_NOW = 9
    BEAT = 16
    BEAT_REPLY = 17


class _Fields(NamedTuple):
    """The i64 fields of a kind, and its flags from the lowest bit on."""

    numbers: struct.Struct
    flags: int


def _fields(numbers: str, flags: str = "") -> _Fields:
    return _Fields(struct.Struct(f"<{len(numbers.split())}q"), len(flags.split()))


_FIELDS = {
    _Kind.VOTE_REQUEST: _fields("to sender term last_index last_term", "pre forced"),
    _Kind.VOTE_REPLY: _fields("to sender term fence", "granted pre"),
    _Kind.APPEND: _fields("to sender term prev_index prev_term commit", "spared"),
    _Kind.APPEND_REPLY: _fields("to sender term index hint_index hint_term commit", "rejected"),
    _Kind.HEARTBEAT: _fields("to sender term commit round"),
    _Kind.HEARTBEAT_REPLY: _fields("to sender term round"),
    _Kind.INSTALL_SNAPSHOT: _fields(
        "to sender term index index_term base_index base_term size position", "done spared"
    ),
    _Kind.SNAPSHOT_REPLY: _fields("to sender term position", "rejected"),
    _Kind.TIMEOUT_NOW: _fields("to sender term"),
    _Kind.BEAT: _fields("number version fence", "led_is_told"),
    _Kind.BEAT_REPLY: _fields("number version fence"),
}
_ENTRY_KINDS = {int(kind): kind for kind in EntryKind}
_Row = TypeVar("_Row", tuple[int, int], tuple[int, int, int])


# -- to bytes ----------------------------------------------------------------------------------


def encode(message: Message | LinkMessage) -> bytes:
    """Return a message as bytes.

    Raises `CodecError` for a number that no field holds, and for an entry whose data are not bytes
    of its size: such a host encodes them itself.
    """
    try:
        return b"".join(_parts(message))
    except struct.error as error:
        raise CodecError(f"a {type(message).__name__} that no bytes can hold: {error}") from error


def _parts(message: Message | LinkMessage) -> Iterable[Buffer]:
    match message:
        case Append(to, sender, term, prev_index, prev_term, entries, commit, spared):
            ends: tuple[int, ...] = (prev_index, prev_term, commit)
            yield _start(_Kind.APPEND, (to, sender, term, *ends), spared)
            yield encode_entries(entries, prev_index + 1)
        case AppendReply(to, sender, term, index, rejected, hint_index, hint_term, commit):
            ends = (index, hint_index, hint_term, commit)
            yield _start(_Kind.APPEND_REPLY, (to, sender, term, *ends), rejected)
        case VoteRequest(to, sender, term, index, last_term, pre, forced):
            yield _start(_Kind.VOTE_REQUEST, (to, sender, term, index, last_term), pre, forced)
        case VoteReply(to, sender, term, granted, pre, fence):
            yield _start(_Kind.VOTE_REPLY, (to, sender, term, fence), granted, pre)
        case Heartbeat(to, sender, term, commit, round):
            yield _start(_Kind.HEARTBEAT, (to, sender, term, commit, round))
        case HeartbeatReply(to, sender, term, round):
            yield _start(_Kind.HEARTBEAT_REPLY, (to, sender, term, round))
        case InstallSnapshot():
            yield from _snapshot_parts(message)
        case SnapshotReply(to, sender, term, position, rejected):
            yield _start(_Kind.SNAPSHOT_REPLY, (to, sender, term, position), rejected)
        case TimeoutNow(to, sender, term):
            yield _start(_Kind.TIMEOUT_NOW, (to, sender, term))
        case Beat(number, version, led, fence):
            yield _start(_Kind.BEAT, (number, version, fence), led is not None)
            yield from _row_parts(_LED, led or ())
        case BeatReply(number, version, dropped, fence):
            yield _start(_Kind.BEAT_REPLY, (number, version, fence))
            yield from _row_parts(_DROPPED, dropped)


def _start(kind: _Kind, numbers: tuple[int, ...], *flags: bool) -> bytes:
    _within(kind, numbers)
    bits = sum(1 << place for place, flag in enumerate(flags) if flag)
    return _HEAD.pack(_VERSION, kind, bits) + _FIELDS[kind].numbers.pack(*numbers)


def _snapshot_parts(message: InstallSnapshot) -> Iterable[Buffer]:
    m, meta = message, message.snapshot
    numbers = (m.to, m.sender, m.term, meta.index, meta.term, meta.base_index, meta.base_term,
               meta.size, m.position)  # fmt: skip
    configuration = meta.configuration.pack()
    _configuration(configuration)
    yield _start(_Kind.INSTALL_SNAPSHOT, numbers, m.done, m.spared)
    yield _COUNT.pack(len(configuration))
    yield configuration
    yield m.data


def _row_parts(row: struct.Struct, rows: Sequence[tuple[int, ...]]) -> Iterable[bytes]:
    yield _COUNT.pack(len(rows))
    for one in rows:
        _not_negative(one)
        yield row.pack(*one)


def encode_entries(entries: Sequence[Entry], first: int) -> bytes:
    """Return entries that follow one another from index `first` on, as an APPEND holds them.

    Raises `CodecError` as `encode` does. A host's storage may keep them so.
    """
    _fits_index(first, len(entries))
    rows: list[Buffer] = [_COUNT.pack(len(entries))]
    payloads: list[Buffer] = []
    for index, entry in enumerate(entries, first):
        data = entry.data
        if data is not None and not isinstance(data, bytes | bytearray | memoryview):
            raise CodecError(
                f"entry {entry.index} holds a {type(data).__name__}: propose bytes, or encode "
                "messages by yourself"
            )
        payload = memoryview(data or b"").cast("B")
        if entry.index != index or entry.size != len(payload):
            raise CodecError(
                f"entry {entry.index} at {index} of {len(payload)} bytes says that it has "
                f"{entry.size}: propose data with the number of its bytes"
            )
        _not_negative((entry.term,))
        flags = _NO_DATA if data is None else 0
        try:
            rows.append(_ENTRY.pack(entry.term, entry.size, entry.kind, flags))
        except struct.error as error:
            raise CodecError(f"entry {index} is one that no bytes can hold: {error}") from error
        payloads.append(payload)
    return b"".join((*rows, *payloads))


# -- from bytes --------------------------------------------------------------------------------


def decode(data: Buffer, max_bytes: int = MESSAGE_BYTES_MAX) -> Message:
    """Return the message that `encode` gave as these bytes, for Node.step.

    Raises `CodecError` for any other bytes, and for more than `max_bytes` of them: nothing of them
    is kept, and each length and count is compared with what is there before it is gone by.
    """
    kind, numbers, flags, rest = _open(data, max_bytes)
    match kind:
        case _Kind.BEAT | _Kind.BEAT_REPLY:
            raise CodecError("what two hosts tell each other of all groups is for decode_link()")
        case _Kind.APPEND:
            to, sender, term, prev_index, prev_term, commit = numbers
            entries = _entries(rest, prev_index + 1)
            return Append(to, sender, term, prev_index, prev_term, entries, commit, flags[0])
        case _Kind.INSTALL_SNAPSHOT:
            return _install_snapshot(numbers, flags, rest)
    _ends(rest)
    match kind:
        case _Kind.VOTE_REQUEST:
            to, sender, term, last_index, last_term = numbers
            pre, forced = flags
            return VoteRequest(to, sender, term, last_index, last_term, pre, forced)
        case _Kind.VOTE_REPLY:
            to, sender, term, fence = numbers
            granted, pre = flags
            return VoteReply(to, sender, term, granted, pre, fence)
        case _Kind.APPEND_REPLY:
            to, sender, term, index, hint_index, hint_term, commit = numbers
            return AppendReply(to, sender, term, index, flags[0], hint_index, hint_term, commit)
        case _Kind.HEARTBEAT:
            return Heartbeat(*numbers)
        case _Kind.HEARTBEAT_REPLY:
            return HeartbeatReply(*numbers)
        case _Kind.SNAPSHOT_REPLY:
            to, sender, term, position = numbers
            return SnapshotReply(to, sender, term, position, flags[0])
    return TimeoutNow(*numbers)


def decode_link(data: Buffer, max_bytes: int = MESSAGE_BYTES_MAX) -> LinkMessage:
    """Return the beat or answer that `encode` gave as these bytes, for Multi.step_link.

    Raises `CodecError` as `decode` does.
    """
    kind, numbers, flags, rest = _open(data, max_bytes)
    if kind < _Kind.BEAT:
        raise CodecError("a message between members of one group is for decode()")
    number, version, fence = numbers
    if kind is _Kind.BEAT_REPLY:
        dropped: tuple[tuple[int, int], ...] = _rows(_DROPPED, rest)
        return BeatReply(number, version, dropped, fence)
    led: tuple[tuple[int, int, int], ...] = _rows(_LED, rest)
    if led and not flags[0]:
        raise CodecError("a beat names groups and says that it names none")
    return Beat(number, version, led if flags[0] else None, fence)


def _open(
    data: Buffer, max_bytes: int
) -> tuple[_Kind, tuple[int, ...], tuple[bool, ...], memoryview]:
    """Return the kind, fields and flags of a message, and what lies behind them."""
    body = memoryview(data).cast("B")
    if len(body) > max_bytes:
        raise CodecError(f"a message of {len(body):,} bytes: {max_bytes:,} are allowed")
    if len(body) < _HEAD.size:
        raise CodecError(f"a message of {len(body)} bytes is cut off")
    version, number, bits = _HEAD.unpack_from(body)
    if version != _VERSION:
        raise CodecError(f"a message of version {version}: this release reads {_VERSION}")
    try:
        kind = _Kind(number)
    except ValueError:
        raise CodecError(f"a message of kind {number} is not known to this release") from None
    numbers, count = _FIELDS[kind]
    if bits >> count:
        raise CodecError(f"flags {bits:#x} of a {kind.name} are not known to this release")
    end = _HEAD.size + numbers.size
    if len(body) < end:
        raise CodecError(f"a {kind.name} of {len(body)} bytes is cut off")
    found = numbers.unpack_from(body, _HEAD.size)
    _within(kind, found)
    return kind, found, tuple(bool(bits >> place & 1) for place in range(count)), body[end:]


def decode_entries(data: Buffer, first: int) -> tuple[Entry, ...]:
    """Return what `encode_entries` gave; raises `CodecError` for any other bytes."""
    return _entries(memoryview(data).cast("B"), first)


def _entries(body: memoryview, first: int) -> tuple[Entry, ...]:
    count, start = _counted(body, _ENTRY.size)
    _fits_index(first, count)
    entries, at = [], start
    for index, (term, size, number, flags) in enumerate(
        _ENTRY.iter_unpack(body[_COUNT.size : start]), first
    ):
        _not_negative((term,))
        kind = _ENTRY_KINDS.get(number)
        if kind is None or flags & ~_NO_DATA or (flags and size):
            raise CodecError(f"entry {index} has kind {number}, flags {flags} and {size:,} bytes")
        if size > len(body) - at:
            raise CodecError(f"entry {index} has {size:,} bytes: {len(body) - at:,} are there")
        data = None if flags else bytes(body[at : at + size])
        if kind is EntryKind.CONFIGURATION:
            _configuration(data or b"")
        entries.append(Entry(index, term, kind, data, size))
        at += size
    _ends(body[at:])
    return tuple(entries)


def _install_snapshot(
    numbers: tuple[int, ...], flags: tuple[bool, ...], body: memoryview
) -> InstallSnapshot:
    to, sender, term, index, index_term, base_index, base_term, size, position = numbers
    _, start = _counted(body, 1)
    configuration = _configuration(bytes(body[_COUNT.size : start]))
    meta = SnapshotMeta(index, index_term, configuration, base_index, base_term, size)
    done, spared = flags
    return InstallSnapshot(to, sender, term, meta, position, bytes(body[start:]), done, spared)


def _rows(row: struct.Struct, body: memoryview) -> tuple[_Row, ...]:
    _, end = _counted(body, row.size)
    _ends(body[end:])
    rows = tuple(row.iter_unpack(body[_COUNT.size : end]))
    for one in rows:
        _not_negative(one)
    return rows


# -- checks ------------------------------------------------------------------------------------


def _counted(body: memoryview, each_bytes: int) -> tuple[int, int]:
    """Return the u32 count at the start, and where that many rows end; all of them are there."""
    if len(body) < _COUNT.size:
        raise CodecError("a message is cut off in front of a count")
    (count,) = _COUNT.unpack_from(body)
    end = _COUNT.size + count * each_bytes
    if end > len(body):
        raise CodecError(f"{count:,} of {each_bytes} bytes are told, {len(body):,} bytes are there")
    return count, end


def _ends(rest: memoryview) -> None:
    if rest:
        raise CodecError(f"{len(rest):,} bytes lie behind a message")


def _within(kind: _Kind, numbers: tuple[int, ...]) -> None:
    _not_negative(numbers)
    if kind < _Kind.BEAT and not (numbers[0] and numbers[1]):
        raise CodecError(f"a {kind.name} is from {numbers[1]} to {numbers[0]}: 0 is nobody")


def _not_negative(numbers: tuple[int, ...]) -> None:
    if min(numbers) < 0:
        raise CodecError(f"no term, index, id, round or fence is negative: {numbers}")


def _fits_index(first: int, count: int) -> None:
    if first + count - 1 > NUMBER_MAX:
        raise CodecError(f"{count:,} entries from index {first} on pass the highest index")


def _configuration(data: Buffer) -> Configuration:
    """Return the configuration that `Configuration.pack` gave."""
    try:
        found = Configuration.unpack(bytes(data))
    except InvalidConfig as error:
        raise CodecError(str(error)) from error
    if found.pack() != data or max(found.members, default=0) > NUMBER_MAX:
        raise CodecError("a configuration that no release wrote")
    return found
