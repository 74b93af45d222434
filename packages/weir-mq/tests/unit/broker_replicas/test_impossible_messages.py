"""A peer that passed the handshake and says what cannot be true: only its link ends."""

from __future__ import annotations

import os
import random
import struct
from itertools import pairwise
from typing import Any

import pytest

import weir_raft as raft
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.records import entries
from weir.broker.records import partition as part
from weir.broker.records import registry as reg
from weir.broker.records.entries import NOOP, Payload
from weir.broker.replica.frames import (
    ClockTold,
    FrameKind,
    FullTold,
    framed,
    pack,
    pack_give,
    pack_link,
)
from weir.model.batch_builder import encode
from weir.model.ids import place_of, voter_of
from weir.order.clock import stamp_at
from weir.protocol.link import LinkStream
from weir.storage.format.frame import Kind
from weir_raft import messages as r

DAY_MS = 24 * 3_600 * 1_000
TO, SENDER = voter_of(1), voter_of(2)


def told(trio: Any, data: bytes) -> list[str]:
    """Give node 1 a frame as node 2's; return why it ended the link, if it did."""
    frames = LinkStream().receive(data)
    effects = trio[1].shard.step(ev.PeerSent(place_of(2, 0), frames))
    ended = [one.reason for one in effects if isinstance(one, ef.EndLink)]
    trio[1].do([one for one in effects if not isinstance(one, ef.EndLink)])
    return ended


def state(trio: Any) -> tuple[int, int, int]:
    group, peers = trio[1].group(0), trio[1].shard
    return group.node.term, group.node.log.last_index, peers.counts.bad_frames


def snapshot(index: int, base: int, position: int = 0) -> r.InstallSnapshot:
    meta = r.SnapshotMeta(index, 1, raft.Configuration((TO, SENDER)), base, 1, 10)
    return r.InstallSnapshot(TO, SENDER, 1, meta, position, b"x", True, False)


NEAR_END = (1 << 63) - 1
FAR_TERM = 1 << 40
IMPOSSIBLE = {
    "heartbeat, term": r.Heartbeat(TO, SENDER, (1 << 64) - 1, 0, 0),
    "heartbeat, term near the end": r.Heartbeat(TO, SENDER, NEAR_END, 0, 0),
    "heartbeat, term far ahead": r.Heartbeat(TO, SENDER, FAR_TERM, 0, 0),
    "heartbeat, last term of a lineage": r.Heartbeat(TO, SENDER, (1 << 48) - 1, 0, 0),
    "heartbeat, term far ahead in the next lineage": r.Heartbeat(
        TO, SENDER, (1 << 48) + FAR_TERM, 0, 0
    ),
    "heartbeat reply, term": r.HeartbeatReply(TO, SENDER, FAR_TERM, 0),
    "vote request, term": r.VoteRequest(TO, SENDER, FAR_TERM, 0, 0, pre=False, forced=True),
    "vote request, log": r.VoteRequest(TO, SENDER, 1, 5, 9, pre=True, forced=False),
    "vote request, index": r.VoteRequest(TO, SENDER, 1, 1 << 50, 1, pre=True, forced=False),
    "vote reply, term": r.VoteReply(TO, SENDER, FAR_TERM, granted=False, pre=False),
    "vote reply, fence": r.VoteReply(TO, SENDER, 1, granted=True, pre=False, fence=1 << 63),
    "vote reply, far fence": r.VoteReply(TO, SENDER, 1, granted=True, pre=False, fence=1 << 62),
    "append, term": r.Append(TO, SENDER, FAR_TERM, 0, 0, (), 0),
    "append, commit": r.Append(TO, SENDER, 1, 0, 0, (), 1 << 50),
    "append, end": r.Append(TO, SENDER, 1, (1 << 64) - 1, 1, (), 0),
    "append, earlier term": r.Append(TO, SENDER, 1, 1, 7, (), 0),
    "append reply, term": r.AppendReply(TO, SENDER, FAR_TERM, 0),
    "snapshot, index": snapshot(1 << 50, 0),
    "snapshot, base": snapshot(5, 6),
    "snapshot, position": snapshot(5, 5, 11),
    "snapshot reply, term": r.SnapshotReply(TO, SENDER, FAR_TERM, 0, False),
    "timeout now, term": r.TimeoutNow(TO, SENDER, FAR_TERM),
}  # fmt: skip


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_message_that_cannot_be_true_ends_its_link_and_is_not_adopted(
    trio: Any, what: str
) -> None:
    trio.leader()
    before = state(trio)
    data = b"".join(pack(0, IMPOSSIBLE[what]))
    assert told(trio, data), "the link goes on"
    assert state(trio) == (*before[:2], before[2] + 1)
    leader = trio.leader()
    assert leader.group(0).node.term < FAR_TERM


@pytest.mark.parametrize(
    "beat",
    [
        r.Beat(1, 1, ((0, FAR_TERM, SENDER),)),
        r.Beat(1, 1, ((0, (1 << 64) - 1, SENDER),)),
        r.Beat(1 << 63, 1, ()),
        r.Beat(1, 1, None, (1 << 63) - 1),
        r.BeatReply(1, 1, ((0, FAR_TERM),)),
        r.BeatReply(1, 1, ((0, (1 << 64) - 1),)),
        r.BeatReply(1, 1, (), (1 << 63) - 1),
    ],
    ids=repr,
)
def test_a_beat_that_cannot_be_true_ends_its_link(trio: Any, beat: r.LinkMessage) -> None:
    trio.leader()
    before = state(trio)
    assert told(trio, b"".join(pack_link(beat)))
    assert state(trio)[:2] == before[:2]
    assert trio.leader().group(0).node.term < FAR_TERM


def test_a_promise_of_today_is_taken_and_one_of_next_week_is_not(trio: Any) -> None:
    now = trio[1].time.wall_ms()
    near, far = (r.Beat(1, 1, None, stamp_at(now + days * DAY_MS)) for days in (0, 7))
    assert told(trio, b"".join(pack_link(near))) == []
    (why,) = told(trio, b"".join(pack_link(far)))
    assert "see that the clocks of both nodes are right" in why


@pytest.mark.parametrize("wall_ms", [(1 << 63) - 1, 1 << 50])
def test_a_clock_that_makes_no_stamps_ends_its_link(trio: Any, wall_ms: int) -> None:
    trio.leader()
    before = trio[1].shard.clock_astray_ms
    assert told(trio, b"".join(pack_link(ClockTold(wall_ms))))
    assert told(trio, b"".join(pack_link(ClockTold(trio[1].time.wall_ms() + 365 * DAY_MS)))) == []
    assert trio[1].shard.clock_astray_ms == before


def test_a_disk_that_needs_more_than_there_can_be_ends_its_link(trio: Any) -> None:
    trio.leader()
    for needed in (-1, -(1 << 63)):
        assert told(trio, b"".join(pack_link(FullTold(needed))))
    assert told(trio, b"".join(pack_link(FullTold((1 << 63) - 1)))) == []


def appended(kind: Kind, data: bytes) -> r.Append:
    payload = Payload(kind, (data,), len(data))
    entry = raft.Entry(1, 1, raft.EntryKind.NORMAL, payload, payload.size)
    return r.Append(TO, SENDER, 1 << 20, 0, 0, (entry,), 1)


NOT_OF_THE_REGISTRY = {
    "a grant": appended(Kind.CONTROL, entries.encode_control(part.StampsRaised(7))),
    "batches": appended(Kind.BATCHES, bytes(encode([b"a"], group=0))),
    "a voter of no node": appended(
        Kind.CONFIGURATION, raft.Configuration((TO, SENDER, NEAR_END)).pack()
    ),
}


@pytest.mark.parametrize("what", NOT_OF_THE_REGISTRY)
def test_an_entry_that_its_group_never_has_is_not_appended(trio: Any, what: str) -> None:
    trio.leader()
    before = state(trio)
    assert told(trio, b"".join(pack(0, NOT_OF_THE_REGISTRY[what])))
    assert state(trio)[:2] == before[:2]


def test_a_record_of_the_registry_is_not_appended_to_a_partition(trio: Any) -> None:
    group = trio.topic().addresses[0].group
    data = entries.encode_control(reg.LevelRaised(1))
    assert told(trio, b"".join(pack(group, appended(Kind.CONTROL, data))))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Kind.CONTROL, b"\xc1"),
        (Kind.CONTROL, entries.encode_control(reg.ProducerOpened(1 << 63, 1, "a"))),
        (
            Kind.CONTROL,
            entries.encode_control(reg.TopicCreated("n", "t", 1 << 40, "total", 1)),
        ),
        (Kind.CONFIGURATION, b"no configuration"),
    ],
    ids=["garbage", "number", "partitions", "configuration"],
)
def test_an_entry_that_cannot_be_decoded_is_counted_and_not_appended(
    trio: Any, kind: Kind, data: bytes
) -> None:
    trio.leader()
    before = state(trio)
    told(trio, b"".join(pack(0, appended(kind, data))))
    assert state(trio) == (*before[:2], before[2] + 1)


def test_what_is_given_for_rotten_entries_belongs_to_its_group(trio: Any) -> None:
    trio.leader()
    data = entries.encode_control(part.StampsRaised(7))
    assert told(trio, b"".join(pack_give(0, [((1, 1), Kind.CONTROL, data)])))


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_snapshot_that_cannot_be_decoded_replaces_nothing(trio: Any, pieces: int) -> None:
    trio.leader()
    before = state(trio)
    data = b"no catalog at all"
    term = before[0] + 1
    meta = r.SnapshotMeta(10_000, 1, raft.Configuration((TO, SENDER)), 10_000, 1, len(data))
    ended: list[str] = []
    for start, end in pairwise([0, 5, len(data)] if pieces == 2 else [0, len(data)]):
        assert not ended
        done = end == len(data)
        piece = r.InstallSnapshot(TO, SENDER, term, meta, start, data[start:end], done, False)
        ended = told(trio, b"".join(pack(0, piece)))
    assert ended == ["a snapshot came that cannot be decoded"]
    assert state(trio)[1] == before[1]


NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    100,
    1 << 31,
    1 << 32,
    1 << 33,
    1 << 41,
    (1 << 48) - 1,
    1 << 48,
    (1 << 48) + 5,
    NEAR_END,
    NEAR_END + 1,
    (1 << 64) - 1,
)


def rolled(dice: random.Random) -> bytes:
    """Return a frame whose checksums are right and whose fields mean harm."""
    pick = lambda: dice.choice(NUMBERS)  # noqa: E731
    flag = lambda: bool(dice.getrandbits(1))  # noqa: E731
    entries = tuple(
        raft.Entry(0, pick(), raft.EntryKind.NOOP, NOOP, NOOP.size)
        for _ in range(dice.randrange(3))
    )
    meta = r.SnapshotMeta(pick(), pick(), raft.Configuration((TO, SENDER)), pick(), pick(), pick())
    data = b"x" * dice.randrange(9)
    message = dice.choice([
        lambda: r.VoteRequest(TO, SENDER, pick(), pick(), pick(), flag(), flag()),
        lambda: r.VoteReply(TO, SENDER, pick(), flag(), flag(), pick()),
        lambda: r.Append(TO, SENDER, pick(), pick(), pick(), entries, pick(), flag()),
        lambda: r.AppendReply(TO, SENDER, pick(), pick(), flag(), pick(), pick(), pick()),
        lambda: r.Heartbeat(TO, SENDER, pick(), pick(), pick()),
        lambda: r.HeartbeatReply(TO, SENDER, pick(), pick()),
        lambda: r.InstallSnapshot(TO, SENDER, pick(), meta, pick(), data, flag(), flag()),
        lambda: r.SnapshotReply(TO, SENDER, pick(), pick(), flag()),
        lambda: r.TimeoutNow(TO, SENDER, pick()),
        lambda: r.Beat(pick(), pick(), ((0, pick(), SENDER),) if flag() else None, pick()),
        lambda: r.BeatReply(pick(), pick(), ((0, pick()),) if flag() else (), pick()),
        lambda: ClockTold(min(pick(), NEAR_END)),
        lambda: FullTold(min(pick(), NEAR_END)),
    ])()  # fmt: skip
    if isinstance(message, r.Beat | r.BeatReply | ClockTold | FullTold):
        return b"".join(pack_link(message))
    return b"".join(pack(dice.choice((0, 0, 0, 65_536)), message))


def test_random_frames_of_a_peer_break_no_node(trio: Any) -> None:
    """WEIR_FUZZ gives more frames than the bounded run."""
    trio.leader()
    dice = random.Random(int(os.environ.get("WEIR_FUZZ_SEED", "1")))
    ended = 0
    for at in range(int(os.environ.get("WEIR_FUZZ", "3000"))):
        ended += bool(told(trio, rolled(dice)))
        if at % 50 == 0:
            trio.run(50)
    assert ended > 100
    assert trio[1].alive
    assert trio[1].group(0).node.term < 1 << 40


def test_names_of_entries_to_refill_are_bounded(trio: Any) -> None:
    trio.leader()
    head = struct.pack("<IQQ", 1, 1 << 63, 1)
    assert told(trio, b"".join(framed(FrameKind.REFILL_ASK, 0, head)))


def test_a_higher_term_that_can_be_true_is_adopted(trio: Any) -> None:
    trio.leader()
    term = trio[1].group(0).node.term + 1_000
    assert told(trio, b"".join(pack(0, r.Heartbeat(TO, SENDER, term, 0, 0)))) == []
    assert trio[1].group(0).node.term == term
