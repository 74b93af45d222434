"""What `weir_raft.codec` makes of messages is the bytes of the golden file, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from weir_raft import (
    Append,
    AppendReply,
    Beat,
    BeatReply,
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
from weir_raft.codec import decode, decode_link, encode

GOLDEN = json.loads(Path(__file__).with_name("raft_messages.json").read_text(encoding="utf-8"))
KNOWN = Configuration((1, 2), (1,), (3,))
PACKED = KNOWN.pack()
ENTRIES = (
    Entry(41, 6, EntryKind.NOOP, None, 0),
    Entry(42, 6, EntryKind.NORMAL, b"value", 5),
    Entry(43, 7, EntryKind.NORMAL, b"", 0),
    Entry(44, 7, EntryKind.CONFIGURATION, PACKED, len(PACKED)),
)
MESSAGES: dict[str, Message] = {
    "vote_request": VoteRequest(2, 1, 7, 40, 6, True, False),
    "vote_request_forced": VoteRequest(2, 1, 7, 40, 6, False, True),
    "vote_reply": VoteReply(2, 1, 7, True, False, 123),
    "append": Append(2, 1, 7, 40, 6, ENTRIES, 39, True),
    "append_nothing": Append(2, 1, 7, 40, 6, (), 39),
    "append_reply": AppendReply(2, 1, 7, 44, True, 40, 6, 39),
    "heartbeat": Heartbeat(2, 1, 7, 39, 8),
    "heartbeat_reply": HeartbeatReply(2, 1, 7, 8),
    "install_snapshot": InstallSnapshot(
        2, 1, 7, SnapshotMeta(40, 6, KNOWN, 12, 5, 300), 100, b"state", False, True
    ),
    "snapshot_reply": SnapshotReply(2, 1, 7, 105, True),
    "timeout_now": TimeoutNow(2, 1, 7),
}
LINK_MESSAGES: dict[str, LinkMessage] = {
    "beat": Beat(5, 2, ((0, 7, 1), (9, 8, 1)), 77),
    "beat_unchanged": Beat(6, 2, None, 77),
    "beat_of_no_group": Beat(7, 7, ()),
    "beat_reply": BeatReply(6, 2, ((9, 8),), 70),
}


def test_every_message_is_covered() -> None:
    assert {type(one) for one in MESSAGES.values()} == set(get_args(Message))
    assert {type(one) for one in LINK_MESSAGES.values()} == set(get_args(LinkMessage))
    assert GOLDEN.keys() == MESSAGES.keys() | LINK_MESSAGES.keys()


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_a_group_have_the_golden_bytes(name: str) -> None:
    data = bytes.fromhex(GOLDEN[name])
    assert encode(MESSAGES[name]) == data
    assert decode(data) == MESSAGES[name]
    assert type(decode(memoryview(data))) is type(MESSAGES[name])


@pytest.mark.parametrize("name", LINK_MESSAGES)
def test_messages_of_links_have_the_golden_bytes(name: str) -> None:
    data = bytes.fromhex(GOLDEN[name])
    assert encode(LINK_MESSAGES[name]) == data
    assert decode_link(data) == LINK_MESSAGES[name]
