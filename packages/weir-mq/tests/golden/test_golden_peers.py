"""What replicas say to each other is the bytes of the golden file, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import weir_raft as raft
from weir.broker.records.entries import NOOP, Payload, entry_of, of_control, read_back
from weir.broker.records.partition import MessagesAcked
from weir.broker.replica.frames import (
    ClockTold,
    FullTold,
    pack,
    pack_link,
    unpack,
    unpack_link,
)
from weir.model.batch_builder import encode
from weir.protocol.link import LinkStream
from weir.storage.format.frame import Kind
from weir_raft import messages as m

GOLDEN = json.loads(Path(__file__).with_name("peer_frames.json").read_text(encoding="utf-8"))
GROUP, TO, SENDER, TERM = 65_536, 131_072, 65_536, 7
#: The second term of lineage 1, which a promotion began.
PROMOTED = (1 << 48) + 2
KNOWN = raft.Configuration((65_536, 131_072), (65_536,), (196_608,))
META = m.SnapshotMeta(40, 6, KNOWN, 12, 5, 300)


def appended() -> m.Append:
    batch = bytes(encode([b"value"], group=GROUP, producer=9, sequence=4, base_time=1))
    packed = KNOWN.pack()
    payloads = (
        read_back(Kind.BATCHES, batch),
        NOOP,
        of_control(MessagesAcked("crew", [(5, 0, 2)])),
        Payload(Kind.CONFIGURATION, (packed,), len(packed)),
    )
    entries = tuple(entry_of(at, 6, payload) for at, payload in enumerate(payloads, 41))
    return m.Append(TO, SENDER, TERM, 40, 6, entries, 39, True)


MESSAGES: dict[str, Any] = {
    "vote_request": m.VoteRequest(TO, SENDER, TERM, 40, 6, True, False),
    "vote_reply": m.VoteReply(TO, SENDER, TERM, True, False, 123),
    "append": appended(),
    "append_reply": m.AppendReply(TO, SENDER, TERM, 44, True, 40, 6, 39),
    "heartbeat": m.Heartbeat(TO, SENDER, TERM, 39, 8),
    "heartbeat_reply": m.HeartbeatReply(TO, SENDER, TERM, 8),
    "snapshot": m.InstallSnapshot(TO, SENDER, TERM, META, 100, b"state", False, True),
    "snapshot_reply": m.SnapshotReply(TO, SENDER, TERM, 105, False),
    "timeout_now": m.TimeoutNow(TO, SENDER, TERM),
    "vote_request_in_lineage_1": m.VoteRequest(TO, SENDER, PROMOTED, 40, 6, False, False),
    "heartbeat_in_lineage_1": m.Heartbeat(TO, SENDER, PROMOTED, 39, 8),
}
LINK_MESSAGES: dict[str, Any] = {
    "beat": m.Beat(5, 2, ((GROUP, TERM, SENDER),), 77),
    "beat_unchanged": m.Beat(6, 2, None, 77),
    "beat_reply": m.BeatReply(6, 2, ((GROUP, 8),), 70),
    "clock": ClockTold(1_700_000_000_000),
    "full": FullTold(),
    "full_for_publishes": FullTold(64 << 20),
}


def test_every_message_is_covered() -> None:
    assert {type(one) for one in MESSAGES.values()} == set(m.Message.__args__)
    assert GOLDEN.keys() == MESSAGES.keys() | LINK_MESSAGES.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_a_group_are_the_golden_bytes(name: str) -> None:
    data = bytes.fromhex(GOLDEN[name])
    assert b"".join(pack(GROUP, MESSAGES[name])) == data
    (frame,) = LinkStream().receive(data)
    found = unpack(frame)
    assert b"".join(pack(frame.group, found)) == data
    assert isinstance(found, m.Append) or found == MESSAGES[name]


@pytest.mark.parametrize("name", LINK_MESSAGES)
def test_messages_of_a_link_are_the_golden_bytes(name: str) -> None:
    data = bytes.fromhex(GOLDEN[name])
    assert b"".join(pack_link(LINK_MESSAGES[name])) == data
    (frame,) = LinkStream().receive(data)
    assert unpack_link(frame) == LINK_MESSAGES[name]
