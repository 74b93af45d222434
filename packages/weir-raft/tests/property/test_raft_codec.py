"""Any message comes back from its bytes; any other bytes are refused with one error, or are those
of some message.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir_raft import (
    Append,
    AppendReply,
    Beat,
    BeatReply,
    CodecError,
    Configuration,
    Entry,
    EntryKind,
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
from weir_raft.codec import (
    NUMBER_MAX,
    decode,
    decode_entries,
    decode_link,
    encode,
    encode_entries,
)

IDS = st.integers(1, NUMBER_MAX)
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, NUMBER_MAX))
FLAGS = st.booleans()
DATA = st.binary(max_size=40)


@st.composite
def configurations(draw: Callable[..., Any]) -> Configuration:
    ids = draw(st.lists(IDS, unique=True, max_size=6))
    cut = draw(st.integers(0, len(ids)))
    outgoing = draw(st.lists(IDS, unique=True, max_size=3))
    return Configuration(tuple(ids[:cut]), tuple(outgoing), tuple(ids[cut:]))


@st.composite
def entry_lists(draw: Callable[..., Any], first: int) -> tuple[Entry, ...]:
    found = []
    for index in range(first, first + draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(EntryKind))
        data = draw(st.one_of(st.none(), DATA))
        if kind is EntryKind.CONFIGURATION:
            data = draw(configurations()).pack()
        found.append(Entry(index, draw(NUMBERS), kind, data, len(data or b"")))
    return tuple(found)


@st.composite
def appends(draw: Callable[..., Any]) -> Append:
    prev_index = draw(st.integers(0, NUMBER_MAX - 10))
    entries = draw(entry_lists(prev_index + 1))
    return Append(draw(IDS), draw(IDS), draw(NUMBERS), prev_index, draw(NUMBERS), entries,
                  draw(NUMBERS), draw(FLAGS))  # fmt: skip


METAS = st.builds(SnapshotMeta, NUMBERS, NUMBERS, configurations(), NUMBERS, NUMBERS, NUMBERS)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    appends(),
    st.builds(VoteRequest, IDS, IDS, NUMBERS, NUMBERS, NUMBERS, FLAGS, FLAGS),
    st.builds(VoteReply, IDS, IDS, NUMBERS, FLAGS, FLAGS, NUMBERS),
    st.builds(AppendReply, IDS, IDS, NUMBERS, NUMBERS, FLAGS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(Heartbeat, IDS, IDS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(HeartbeatReply, IDS, IDS, NUMBERS, NUMBERS),
    st.builds(InstallSnapshot, IDS, IDS, NUMBERS, METAS, NUMBERS, DATA, FLAGS, FLAGS),
    st.builds(SnapshotReply, IDS, IDS, NUMBERS, NUMBERS, FLAGS),
    st.builds(TimeoutNow, IDS, IDS, NUMBERS),
)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4).map(tuple)
TRIPLES = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=4).map(tuple)
LINK_MESSAGES: st.SearchStrategy[LinkMessage] = st.one_of(
    st.builds(Beat, NUMBERS, NUMBERS, st.one_of(st.none(), TRIPLES), NUMBERS),
    st.builds(BeatReply, NUMBERS, NUMBERS, PAIRS, NUMBERS),
)


def refused(read: Callable[[bytes], Message | LinkMessage], data: bytes) -> bool:
    """Whether bytes are refused; what is taken must be the one encoding of what it says."""
    try:
        found = read(data)
    except CodecError:
        return True
    assert encode(found) == data
    return False


@given(MESSAGES)
def test_messages_come_back_from_their_bytes(message: Message) -> None:
    data = encode(message)
    found = decode(data)
    assert found == message
    assert type(found) is type(message)
    assert refused(decode_link, data)


@given(LINK_MESSAGES)
def test_messages_of_links_come_back_from_their_bytes(message: LinkMessage) -> None:
    data = encode(message)
    found = decode_link(data)
    assert found == message
    assert type(found) is type(message)
    assert refused(decode, data)


@given(st.one_of(MESSAGES, LINK_MESSAGES))
def test_a_message_that_is_cut_off_or_goes_on_is_refused(message: Message | LinkMessage) -> None:
    data = encode(message)
    read = decode_link if isinstance(message, Beat | BeatReply) else decode
    for end in range(len(data)):
        # But for a piece of a snapshot, which ends where its message does.
        assert refused(read, data[:end]) or isinstance(message, InstallSnapshot)
    assert refused(read, data + b"\0") or isinstance(message, InstallSnapshot)


@given(st.one_of(MESSAGES, LINK_MESSAGES), st.data())
@settings(max_examples=300)
def test_altered_messages_are_refused_or_are_others(
    message: Message | LinkMessage, data: st.DataObject
) -> None:
    altered = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    refused(decode, bytes(altered))
    refused(decode_link, bytes(altered))


@given(st.binary(max_size=200), st.sampled_from([*range(1, 10), 16, 17]))
@settings(max_examples=300)
def test_garbage_is_refused_or_is_a_message(garbage: bytes, kind: int) -> None:
    for data in (garbage, bytes((1, kind, 0, 0)) + garbage):
        refused(decode, data)
        refused(decode_link, data)


@given(entry_lists(7))
def test_entries_come_back_from_their_bytes(entries: tuple[Entry, ...]) -> None:
    data = encode_entries(entries, 7)
    assert decode_entries(data, 7) == entries
    for end in range(len(data)):
        with pytest.raises(CodecError):
            decode_entries(data[:end], 7)


def test_counts_and_lengths_cost_nothing_before_they_are_checked() -> None:
    head = encode(Append(2, 1, 7, 40, 6, (), 39))[:-4]
    many = head + b"\xff\xff\xff\xff" + bytes(16)
    long = bytearray(encode(Append(2, 1, 7, 0, 0, (Entry(1, 1, EntryKind.NORMAL, b"x", 1),), 0)))
    long[-9:-5] = b"\xff\xff\xff\xff"
    beat = encode(Beat(1, 1, ()))[:-4] + b"\xff\xff\xff\x7f"
    meta = SnapshotMeta(40, 6, Configuration((1,)), 12, 5, 300)
    piece = bytearray(encode(InstallSnapshot(2, 1, 7, meta, 0, b"", True)))
    piece[-20:-16] = b"\xff\xff\xff\xff"
    tracemalloc.start()
    try:
        for read, data in ((decode, many), (decode, long), (decode_link, beat), (decode, piece)):
            with pytest.raises(CodecError, match=r"are (told|there)"):
                read(bytes(data))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
