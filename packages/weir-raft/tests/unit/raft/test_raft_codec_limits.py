"""What the codec refuses, by name; that it never raises anything else is a property test's."""

from __future__ import annotations

import pytest

from weir_raft import (
    Append,
    AppendReply,
    CodecError,
    Configuration,
    Entry,
    EntryKind,
    InstallSnapshot,
    Message,
    SnapshotMeta,
    TimeoutNow,
)
from weir_raft.codec import NUMBER_MAX, decode, decode_entries, decode_link, encode


def appended(*entries: Entry) -> Append:
    return Append(2, 1, 7, 0, 0, entries, 0)


def test_what_no_bytes_can_hold_is_refused() -> None:
    kind = EntryKind.NORMAL
    members = tuple(range(1, 70_000))
    meta = SnapshotMeta(1, 1, Configuration(members), 1, 1, 0)
    refused: tuple[tuple[Message, str], ...] = (
        (TimeoutNow(2, 1, NUMBER_MAX + 1), "no bytes can hold"),
        (TimeoutNow(2, 1, -1), "negative"),
        (TimeoutNow(0, 1, 7), "nobody"),
        (AppendReply(2, 0, 7, 1), "nobody"),
        (appended(Entry(1, 1, kind, ["k", "v"], 2)), "holds a list: propose bytes"),
        (appended(Entry(1, 1, kind, b"data", 5)), "says that it has 5"),
        (appended(Entry(2, 1, kind, b"data", 4)), "entry 2 at 1"),
        (appended(Entry(1, NUMBER_MAX + 1, kind, b"data", 4)), "no bytes can hold"),
        (Append(2, 1, 7, NUMBER_MAX, 0, (Entry(NUMBER_MAX + 1, 1, kind, b"", 0),), 0), "highest"),
        (InstallSnapshot(2, 1, 7, meta, 0, b"", True), "no bytes can hold"),
    )
    for message, why in refused:
        with pytest.raises(CodecError, match=why):
            encode(message)


def test_another_version_kind_or_flag_is_named() -> None:
    data = encode(TimeoutNow(2, 1, 7))
    for place, value, why in ((0, 2, "version 2"), (1, 77, "kind 77"), (2, 1, "flags 0x1")):
        altered = bytearray(data)
        altered[place] = value
        for read in (decode, decode_link):
            with pytest.raises(CodecError, match=why):
                read(altered)


def test_a_message_above_the_limit_is_refused_unread() -> None:
    data = encode(appended(Entry(1, 1, EntryKind.NORMAL, bytes(1_000), 1_000)))
    assert decode(data, len(data)) == decode(data)
    with pytest.raises(CodecError, match="999 are allowed"):
        decode(data, 999)


def test_entries_of_unknown_kinds_or_impossible_configurations_are_refused() -> None:
    data = bytearray(encode(appended(Entry(1, 1, EntryKind.NORMAL, b"x", 1))))
    data[-5] = 9
    with pytest.raises(CodecError, match="kind 9"):
        decode(data)
    for packed in (b"", Configuration((1, 1)).pack(), Configuration((1 << 63,)).pack()):
        entry = Entry(1, 1, EntryKind.CONFIGURATION, packed, len(packed))
        with pytest.raises(CodecError, match=r"configuration|twice"):
            decode(encode(appended(entry)))


def test_entries_are_bytes_after_a_round_trip() -> None:
    """Whatever the host kept them in: nothing of the message's own bytes is held on to."""
    for data in (b"data", bytearray(b"data"), memoryview(b"data")):
        received = bytearray(encode(appended(Entry(1, 1, EntryKind.NORMAL, data, 4))))
        (entry,) = decode(received).entries  # type: ignore[union-attr]
        assert entry.data == b"data"
        assert type(entry.data) is bytes
        received.clear()  # which a view of it would forbid


def test_entries_that_end_early_are_refused() -> None:
    with pytest.raises(CodecError, match="in front of a count"):
        decode_entries(b"\0\0", 1)
