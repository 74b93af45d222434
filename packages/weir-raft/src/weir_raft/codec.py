"""Messages as bytes, for hosts whose entries hold bytes.

A host may use its own encoding instead: the library itself never reads or writes bytes of messages.
All numbers are little-endian, and none is negative or above 2^63 - 1. A message begins with

    offset size field
    0      1    version, 1
    1      1    kind
    2      2    flags of this kind; the others are 0

and goes on with i64 fields in the order of `_LAYOUTS`. An APPEND then has u32 how many entries, and
of each i64 term, u32 length, u16 kind and u16 flags (1: its data is None, and its length 0), then
the data of all of them. An INSTALL_SNAPSHOT has u32 length of the configuration, the configuration
as `Configuration.pack` gives it, then the piece. A BEAT has u32 how many groups and three i64 of
each, a BEAT_REPLY u32 how many and two i64 of each.

There is one encoding of each message, and no checksum: where the transport does not protect what it
carries, the host adds one. A host that reads bytes of strangers authenticates them first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

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


class _Layout:
    """What makes a message of a kind, and the names of its i64 fields, and of its flags from the
    lowest bit on.
    """

    __slots__ = ("flags", "make", "names", "numbers")

    def __init__(self, make: Callable[..., Any], names: str, flags: str = "") -> None:
        self.make = make
        self.names = tuple(names.split())
        self.flags = tuple(flags.split())
        self.numbers = struct.Struct(f"<{len(self.names)}q")


_LAYOUTS = {
    _Kind.VOTE_REQUEST: _Layout(VoteRequest, "to sender term last_index last_term", "pre forced"),
    _Kind.VOTE_REPLY: _Layout(VoteReply, "to sender term fence", "granted pre"),
    _Kind.APPEND: _Layout(Append, "to sender term prev_index prev_term commit", "spared"),
    _Kind.APPEND_REPLY: _Layout(
        AppendReply, "to sender term index hint_index hint_term commit", "rejected"
    ),
    _Kind.HEARTBEAT: _Layout(Heartbeat, "to sender term commit round"),
    _Kind.HEARTBEAT_REPLY: _Layout(HeartbeatReply, "to sender term round"),
    _Kind.INSTALL_SNAPSHOT: _Layout(
        InstallSnapshot,
        "to sender term index index_term base_index base_term size position",
        "done spared",
    ),
    _Kind.SNAPSHOT_REPLY: _Layout(SnapshotReply, "to sender term position", "rejected"),
    _Kind.TIMEOUT_NOW: _Layout(TimeoutNow, "to sender term"),
    _Kind.BEAT: _Layout(Beat, "number version fence", "led_is_told"),
    _Kind.BEAT_REPLY: _Layout(BeatReply, "number version fence"),
}
_KIND_OF = {layout.make: kind for kind, layout in _LAYOUTS.items()}
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
    kind = _KIND_OF[type(message)]
    names, flags = _LAYOUTS[kind].names, _LAYOUTS[kind].flags
    if isinstance(message, InstallSnapshot):
        m, meta = message, message.snapshot
        configuration = meta.configuration.pack()
        _configuration(configuration)
        place = (meta.index, meta.term, meta.base_index, meta.base_term, meta.size)
        yield _start(kind, (m.to, m.sender, m.term, *place, m.position), (m.done, m.spared))
        yield from (_COUNT.pack(len(configuration)), configuration, m.data)
        return
    numbers = [getattr(message, name) for name in names]
    if isinstance(message, Beat):
        yield _start(kind, numbers, (message.led is not None,))
        yield from _row_parts(_LED, message.led or ())
        return
    yield _start(kind, numbers, [getattr(message, flag) for flag in flags])
    if isinstance(message, Append):
        yield encode_entries(message.entries, message.prev_index + 1)
    elif isinstance(message, BeatReply):
        yield from _row_parts(_DROPPED, message.dropped)


def _start(kind: _Kind, numbers: Sequence[int], flags: Sequence[bool]) -> bytes:
    _within(kind, numbers)
    bits = sum(1 << place for place, flag in enumerate(flags) if flag)
    return _HEAD.pack(_VERSION, kind, bits) + _LAYOUTS[kind].numbers.pack(*numbers)


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
    kind, fields, rest = _open(data, max_bytes)
    if kind >= _Kind.BEAT:
        raise CodecError("what two hosts tell each other of all groups is for decode_link()")
    if kind is _Kind.APPEND:
        return Append(entries=_entries(rest, fields["prev_index"] + 1), **fields)
    if kind is _Kind.INSTALL_SNAPSHOT:
        return _install_snapshot(fields, rest)
    _ends(rest)
    message: Message = _LAYOUTS[kind].make(**fields)
    return message


def decode_link(data: Buffer, max_bytes: int = MESSAGE_BYTES_MAX) -> LinkMessage:
    """Return the beat or answer that `encode` gave as these bytes, for Multi.step_link.

    Raises `CodecError` as `decode` does.
    """
    kind, fields, rest = _open(data, max_bytes)
    if kind < _Kind.BEAT:
        raise CodecError("a message between members of one group is for decode()")
    if kind is _Kind.BEAT_REPLY:
        dropped: tuple[tuple[int, int], ...] = _rows(_DROPPED, rest)
        return BeatReply(dropped=dropped, **fields)
    is_told = fields.pop("led_is_told")
    led: tuple[tuple[int, int, int], ...] = _rows(_LED, rest)
    if led and not is_told:
        raise CodecError("a beat names groups and says that it names none")
    return Beat(led=led if is_told else None, **fields)


def _open(data: Buffer, max_bytes: int) -> tuple[_Kind, dict[str, Any], memoryview]:
    """Return the kind of a message, its fields and flags by name, and what lies behind them."""
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
    layout = _LAYOUTS[kind]
    if bits >> len(layout.flags):
        raise CodecError(f"flags {bits:#x} of a {kind.name} are not known to this release")
    end = _HEAD.size + layout.numbers.size
    if len(body) < end:
        raise CodecError(f"a {kind.name} of {len(body)} bytes is cut off")
    numbers = layout.numbers.unpack_from(body, _HEAD.size)
    _within(kind, numbers)
    fields: dict[str, Any] = dict(zip(layout.names, numbers, strict=True))
    fields |= {flag: bool(bits >> place & 1) for place, flag in enumerate(layout.flags)}
    return kind, fields, body[end:]


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


def _install_snapshot(fields: dict[str, Any], body: memoryview) -> InstallSnapshot:
    _, start = _counted(body, 1)
    configuration = _configuration(body[_COUNT.size : start])
    names = ("index", "index_term", "base_index", "base_term", "size")
    index, term, *rest = [fields.pop(name) for name in names]
    meta = SnapshotMeta(index, term, configuration, *rest)
    return InstallSnapshot(snapshot=meta, data=bytes(body[start:]), **fields)


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


def _within(kind: _Kind, numbers: Sequence[int]) -> None:
    _not_negative(numbers)
    if kind < _Kind.BEAT and not (numbers[0] and numbers[1]):
        raise CodecError(f"a {kind.name} is from {numbers[1]} to {numbers[0]}: 0 is nobody")


def _not_negative(numbers: Sequence[int]) -> None:
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
