"""What replicas say to each other comes out as it went in, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weir_raft as raft
from weir.broker.records.entries import (
    NOOP,
    Payload,
    applied_by,
    entry_of,
    of_control,
    read_back,
    unread,
)
from weir.broker.records.partition import MessagesAcked
from weir.broker.replica.frames import (
    BadMessage,
    FrameKind,
    pack,
    pack_link,
    unpack,
    unpack_link,
)
from weir.codec import Buffer
from weir.model.batch_builder import encode
from weir.protocol.link import LinkFrame, LinkStream
from weir.storage.format.frame import Kind
from weir_raft import messages as m

GROUP = 65_536
NUMBERS = st.integers(0, (1 << 63) - 1)
HEAD = {"to": NUMBERS, "sender": NUMBERS, "term": NUMBERS}
CONFIGURATION = raft.Configuration((65_536, 131_072), (65_536,), (196_608,))


def fields(kind: type[Any], **more: Any) -> st.SearchStrategy[Any]:
    return st.builds(kind, **HEAD, **more)


SMALL = st.one_of(
    fields(
        m.VoteRequest, last_index=NUMBERS, last_term=NUMBERS, pre=st.booleans(),
        forced=st.booleans(),
    ),
    fields(m.VoteReply, granted=st.booleans(), pre=st.booleans(), fence=NUMBERS),
    fields(
        m.AppendReply, index=NUMBERS, rejected=st.booleans(), hint_index=NUMBERS,
        hint_term=NUMBERS, commit=NUMBERS,
    ),
    fields(m.Heartbeat, commit=NUMBERS, round=NUMBERS),
    fields(m.HeartbeatReply, round=NUMBERS),
    fields(m.SnapshotReply, position=NUMBERS, rejected=st.booleans()),
    fields(m.TimeoutNow),
    fields(
        m.InstallSnapshot,
        snapshot=st.builds(
            m.SnapshotMeta, index=NUMBERS, term=NUMBERS, configuration=st.just(CONFIGURATION),
            base_index=NUMBERS, base_term=NUMBERS, size=NUMBERS,
        ),
        position=NUMBERS, data=st.binary(max_size=99), done=st.booleans(),
        spared=st.booleans(),
    ),
)  # fmt: skip

LINKS = st.one_of(
    st.builds(
        m.Beat, NUMBERS, NUMBERS,
        st.none() | st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple), NUMBERS,
    ),
    st.builds(
        m.BeatReply, NUMBERS, NUMBERS,
        st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple), NUMBERS,
    ),
)  # fmt: skip


def one_batch(*values: bytes, sequence: int = 0) -> bytes:
    return bytes(encode(list(values), group=GROUP, producer=7, sequence=sequence))


def frame_of(buffers: Sequence[Buffer]) -> LinkFrame:
    (frame,) = LinkStream().receive(b"".join(buffers))
    return frame


def an_append(*payloads: Payload) -> m.Append:
    entries = tuple(entry_of(at, 3, payload) for at, payload in enumerate(payloads, 11))
    return m.Append(131_072, 65_536, 4, 10, 2, entries, 9)


def entries() -> m.Append:
    """An append with one entry of each kind."""
    two = one_batch(b"a", b"b") + one_batch(b"c", sequence=2)
    packed = CONFIGURATION.pack()
    return an_append(
        read_back(Kind.BATCHES, two),
        NOOP,
        of_control(MessagesAcked("crew", [(5, 0, 2)])),
        Payload(Kind.CONFIGURATION, (packed,), len(packed)),
    )


@given(SMALL)
def test_small_messages_come_out_as_they_went_in(message: Any) -> None:
    assert unpack(frame_of(pack(GROUP, message))) == message


@given(LINKS)
def test_beats_come_out_as_they_went_in(message: Any) -> None:
    assert unpack_link(frame_of(pack_link(message))) == message


def test_entries_come_out_with_all_that_applying_them_needs() -> None:
    sent = entries()
    found = unpack(frame_of(pack(GROUP, sent)))
    assert isinstance(found, m.Append)
    assert (found.to, found.sender, found.term, found.prev_index) == (131_072, 65_536, 4, 10)
    assert (found.prev_term, found.commit) == (2, 9)
    for before, after in zip(sent.entries, found.entries, strict=True):
        told = (before.index, before.term, before.kind, before.size)
        assert told == (after.index, after.term, after.kind, after.size)
    batches, _, control, configuration = found.entries
    assert [batch.messages for batch in applied_by(batches).batches] == [2, 1]
    assert applied_by(control).control == MessagesAcked("crew", [(5, 0, 2)])
    assert configuration.data == CONFIGURATION.pack()


def test_payloads_are_not_copied() -> None:
    data = one_batch(bytes(1_000))
    buffers = pack(GROUP, an_append(read_back(Kind.BATCHES, data)))
    assert buffers[1] is data


def test_entries_that_are_only_passed_on_are_the_same_bytes() -> None:
    data = one_batch(b"a")
    whole = pack(GROUP, an_append(read_back(Kind.BATCHES, data)))
    raw = pack(GROUP, an_append(unread(Kind.BATCHES, (data[:50], data[50:]), len(data))))
    assert b"".join(whole) == b"".join(raw)
    # One that is to be applied after all is read then.
    ((batch),) = applied_by(an_append(unread(Kind.BATCHES, (data,), len(data))).entries[0]).batches
    assert batch.messages == 1


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed_wherever_it_lies(at: int, bit: int) -> None:
    frame = frame_of(pack(GROUP, entries()))
    spoilt = bytearray(frame.body)
    spoilt[at % len(spoilt)] ^= 1 << bit
    with pytest.raises(BadMessage):
        unpack(LinkFrame(frame.kind, frame.group, memoryview(bytes(spoilt))))


@given(st.integers(0, 10_000))
def test_a_frame_that_was_cut_is_noticed(size: int) -> None:
    for message in (entries(), m.TimeoutNow(1, 2, 3)):
        frame = frame_of(pack(GROUP, message))
        cut = frame.body[: size % len(frame.body)]
        with pytest.raises(BadMessage):
            unpack(LinkFrame(frame.kind, frame.group, cut))


def test_what_was_sent_for_another_group_is_not_taken() -> None:
    frame = frame_of(pack(GROUP, entries()))
    with pytest.raises(BadMessage, match="hash"):
        unpack(LinkFrame(frame.kind, GROUP + 1, frame.body))


def test_kinds_that_are_not_known_are_not_taken() -> None:
    with pytest.raises(BadMessage, match="kind 99"):
        unpack(LinkFrame(99, GROUP, memoryview(b"")))
    sent = an_append(Payload(Kind.MARK, (b"?",), 1))
    with pytest.raises(BadMessage, match="kind 4 is not known"):
        unpack(frame_of(pack(GROUP, sent)))


@given(st.sampled_from([int(kind) for kind in FrameKind]), st.binary(max_size=200))
def test_any_bytes_are_a_message_or_bad(kind: int, body: bytes) -> None:
    read = unpack_link if kind >= FrameKind.BEAT else unpack
    with pytest.raises(BadMessage):
        read(LinkFrame(kind, GROUP, memoryview(body)))
