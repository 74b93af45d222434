"""Control records come back as they went; what is not known stops the group."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from rigs.access import VERIFIER
from rigs.topologies import row
from weir.access.devices import FLEET_KEY_BYTES
from weir.access.signatures import Algorithm, PublicKey
from weir.access.wrapping import WRAPPED_BYTES
from weir.broker.records import audit as u
from weir.broker.records import entries as c
from weir.broker.records import partition as part
from weir.broker.records import quotas as q
from weir.broker.records import registry as reg
from weir.broker.records import security as sec
from weir.broker.records.registry import TopologyApplied
from weir.errors import Halted
from weir.model.topic import Mode, SettingsChange, TopicSettings
from weir.topology.sets import Topology

SETTINGS = TopicSettings(5, 6)
TOKEN_KEY = PublicKey("k", Algorithm.ES256, bytes(65))
RECORDS: list[c.ControlRecord] = [
    reg.TopicCreated("ns", "t", 2, "partition", 70, SETTINGS, 3),
    reg.TopicCreatedWith("ns", "t", 2, "partition", 70, SETTINGS, 3, "device", "a:ns/t"),
    reg.TopicAltered(3, 4, SettingsChange(None, 6)),
    reg.TopicGrown(3, 4, 90),
    reg.TopicEnds(3, 4, 90, 12, True),
    reg.TopicDeleted(3),
    reg.NodeJoined(2, "host", 6800, 4, 1, 77),
    reg.NodeChanged(2, "draining"),
    reg.SetJoined(2, 7),
    reg.NodeExpected(2, bytes(32)),
    reg.GroupsPlaced([(65536, (65536, 131072))]),
    reg.GroupsFollowed([(65536, (65536, 131072)), (65537, ())]),
    reg.SetPromoted(2, 7, (4, 5), 9),
    reg.GroupsSettled([(65536, (65536, 131072))]),
    reg.LevelRaised(2),
    reg.SchemaVersionAdded(3, 2, "avro", "", b"text", b"fields", 5),
    reg.SchemaRuleSet(3, None, True),
    sec.AccessFounded(bytes(32)),
    sec.UserCreated("default/ann", VERIFIER, ("shop",)),
    sec.UserPasswordSet("default/ann", VERIFIER),
    sec.UserRolesChanged("default/ann", ("shop",), ("admin",)),
    sec.UserRevoked("default/ann"),
    sec.RoleChanged("shop", ((("publish", "read"), "topic", "shop/", True),), ()),
    sec.RoleDeleted("shop"),
    sec.AccessModeSet("closed"),
    sec.FleetPut(
        "locks", 40, 49, 1, (sec.FleetKey(1, bytes(WRAPPED_BYTES + FLEET_KEY_BYTES)),), "ny"
    ),
    sec.DeviceReplaced(42, 7),
    sec.DeviceUsed(42, 7),
    sec.TokenKeysAdded("i", "a", "", (sec.TokenKeyRow(TOKEN_KEY, b"wrapped"),), False),
    sec.TokenKeysRemoved("i", ""),
    sec.TokenRenewed("user:a/b#1", "i", "job", 9, 7),
    sec.FleetRemoved("locks"),
    sec.DeviceSet(42, 1, True),
    sec.SecretsRewrapped((sec.RewrappedRow("user", "default/ann", 0, bytes(16), bytes(151)),)),
    q.QuotaSet("namespace:shop", (("bytes_in", 5), ("topics", None))),
    q.QuotaRemoved("namespace:shop"),
    TopologyApplied(7, Topology(0, (row(0), row(1, "access", (0,), 1)))),
    u.AuditProducerOpened(90, 0),
    u.AuditPublished(90, 7),
    reg.Attributed("user:default/ann#3", "192.0.2.7", 70, reg.TopicDeleted(3)),
    reg.ProducerOpened(50, 1, "anonymous"),
    part.ClusterOpened("c", Mode.KEYED),
    part.FilteredClusterOpened("c", Mode.KEYED, ("", "a")),
    part.UnwantedSkipped("c", [(0, 4), (9, 12)]),
    part.MessagesGranted("c", 7, 0, 5, 100, 90),
    part.MessagesGranted("c", 7, 0, 5, 100, 90, [(0, 2), (4, 5)]),
    part.MessagesAcked("c", [(5, 0, 3), (5, 4, 5)]),
    part.MessagesReturned("c", 9, [(0, 3), (4, 5)], 100, 90, True),
    part.GrantsExtended("c", [9, 11], 200, 90),
    part.GrantsReleased(7),
    part.LogStartMoved(12, 34, 56),
    part.RelayHoldsStored((part.RelayHold(4, 8, 90, 5), part.RelayHold(4, 9, 91, 0))),
    part.StampsRaised(90),
    part.PartitionJoined(4, 90),
    part.PartitionSealed(90),
    part.PartitionEnded(4, 90, 12),
    part.CursorTaken("c", 7, 5, (0, 4), 200, 90),
    part.CursorMoved("c", 9, (1, 4), 200, 90, True, True),
    part.CursorSought("c", (0, 0)),
    part.AcksPrepared(5, 1, 2, 90, (131072, 131073), [("c", [(9, 0, 3)])]),
    part.SinkPrepared(5, 1, 2, 90, (131072, 131073), "query", 7),
    part.SinkForgotten("query"),
    part.ScatteringsDecided([(5, 1, 2, 90, True, 1)]),
    part.ScatteringsBarred(90),
    part.AttemptBarred(5, 1, 2, 90),
    part.ClusterSought("c", 9),
    part.ClusterPaused("c", True, 7),
    reg.TopicClusterPaused(1, "c", True),
    part.ClusterDeleted("c"),
    part.HubForgotten(0xA17),
    part.HubBuried(0xA17),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_come_back_as_they_went(record: c.ControlRecord) -> None:
    assert c.decode_control(c.encode_control(record)) == record


def test_every_record_is_covered() -> None:
    assert {type(record) for record in RECORDS} == set(get_args(c.ControlRecord))


def test_what_is_stored_of_devices_has_these_bytes() -> None:
    """Level 3, as above."""
    stored: dict[c.ControlRecord, str] = {
        TopologyApplied(7, Topology(0, (row(0),))): (
            "93a8746f706f6c6f6779079200919a00a473657430a4636f726500a0a0919301a5686f737430cd1a90c0"
            "9300ce000151800090"
        ),
        reg.TopicCreatedWith("ns", "t", 2, "partition", 70, SETTINGS, 3, "device", "a:ns/t"): (
            "9aaa746f7069632d77697468a26e73a17402a9706172746974696f6e46940506909003"
            "a6646576696365a6613a6e732f74"
        ),
        sec.DeviceSet(42, 1, True): "94a66465766963652a01c3",
        sec.DeviceReplaced(42, 7): "93af6465766963652d7265706c616365642a07",
        sec.DeviceUsed(42, 7): "93ab6465766963652d757365642a07",
        part.HubBuried(0xA17): "92ad6875622d746f6d6273746f6e65cd0a17",
    }
    for record, data in stored.items():
        assert c.encode_control(record).hex() == data
        assert c.decode_control(bytes.fromhex(data)) == record


def test_what_is_stored_of_clusters_with_tags_has_these_bytes() -> None:
    """Level 3, as above; of clusters without tags it is as in level 1."""
    filtered = part.FilteredClusterOpened("c", Mode.KEYED, ("", "a"))
    stored: list[tuple[c.ControlRecord, str]] = [
        (part.ClusterOpened("c", Mode.KEYED), "93a7636c7573746572a16301"),
        (filtered, "94ac636c75737465722d74616773a1630192a0a161"),
        (part.UnwantedSkipped("c", [(0, 4), (9, 12)]), "93a8756e77616e746564a1639292000492090c"),
    ]
    for record, data in stored:
        assert c.encode_control(record).hex() == data
        assert c.decode_control(bytes.fromhex(data)) == record


def test_what_is_stored_of_relays_has_these_bytes() -> None:
    """Level 3, as above."""
    record = part.RelayHoldsStored((part.RelayHold(4, 8, 90, 700),))
    data = "92ab72656c61792d686f6c6473919404085acd02bc"
    assert c.encode_control(record).hex() == data
    assert c.decode_control(bytes.fromhex(data)) == record


def test_what_is_stored_of_promotions_has_these_bytes() -> None:
    """Level 3, as above."""
    followed = reg.GroupsFollowed([(65536, (65536, 131072)), (65537, ())])
    stored: list[tuple[c.ControlRecord, str]] = [
        (reg.SetPromoted(2, 7, (3, 4), 5), "95a870726f6d6f746564020792030405"),
        (followed, "92a8666f6c6c6f7765649292ce0001000092ce00010000ce0002000092ce0001000190"),
    ]
    for record, data in stored:
        assert c.encode_control(record).hex() == data
        assert c.decode_control(bytes.fromhex(data)) == record


def test_what_is_stored_of_the_audit_has_these_bytes() -> None:
    """Level 3, as above."""
    stored: dict[c.ControlRecord, str] = {
        u.AuditProducerOpened(90, 7): "93ae61756469742d70726f64756365725a07",
        u.AuditPublished(90, 7): "93af61756469742d7075626c69736865645a07",
        reg.Attributed("user:a/b#3", "192.0.2.7", 70, reg.TopicDeleted(3)): (
            "95a26279aa757365723a612f622333a93139322e302e322e374692a764656c6574656403"
        ),
        reg.Attributed("", "", 0, sec.AccessModeSet("watch")): (
            "95a26279a0a00092ab6163636573732d6d6f6465a57761746368"
        ),
    }
    for record, data in stored.items():
        assert c.encode_control(record).hex() == data
        assert c.decode_control(bytes.fromhex(data)) == record


def test_a_message_of_the_audit_topic_has_these_bytes() -> None:
    """What anybody parses who reads the topic; fields are added at the end alone."""
    event = u.AuditEvent(
        "shard:2.1:90:7", 1_700_000_000_123, "user:shop/ann#3", "192.0.2.7", "publish", "topic",
        "shop/tür", "would-be-refused", 4, 9, "d", "weir acl allow ROLE publish topic shop/tür",
    )  # fmt: skip
    data = (
        '{"id":"shard:2.1:90:7","at":1700000000123,"who":"user:shop/ann#3","whence":"192.0.2.7",'
        '"verb":"publish","kind":"topic","resource":"shop/tür","outcome":"would-be-refused",'
        '"count":4,"access_version":9,"detail":"d",'
        '"missing":"weir acl allow ROLE publish topic shop/tür"}'
    )
    assert u.encode_event(event).decode() == data
    assert msgspec.json.decode(data, type=u.AuditEvent) == event
    old = data.rsplit(',"detail"', 1)[0] + "}"
    read = msgspec.json.decode(old, type=u.AuditEvent)
    assert read == msgspec.structs.replace(event, detail="", missing="")


def test_a_topic_without_settings_has_the_defaults() -> None:
    data = msgspec.msgpack.encode(["topic", "ns", "t", 2, "partition", 70])
    assert c.decode_control(data) == reg.TopicCreated(
        "ns", "t", 2, "partition", 70, TopicSettings()
    )


@pytest.mark.parametrize("data", [["later", 1], ["seek", "c"], ["seek", "c", "x"], []])
def test_what_is_not_known_is_never_skipped(data: list[object]) -> None:
    with pytest.raises(Halted, match="upgrade this node"):
        c.decode_control(msgspec.msgpack.encode(data))


def test_what_is_stored_of_access_has_these_bytes() -> None:
    """Level 3: other releases, and this one's checkpoints, read exactly this."""
    stored: dict[c.ControlRecord, str] = {
        sec.UserRevoked("default/ann"): "92ac757365722d7265766f6b6564ab64656661756c742f616e6e",
        sec.AccessModeSet("watch"): "92ab6163636573732d6d6f6465a57761746368",
        sec.RoleDeleted("shop"): "92ac726f6c652d64656c65746564a473686f70",
        sec.RoleChanged("shop", ((("read",), "topic", "a/b", False),), ()): (
            "94a4726f6c65a473686f70919491a472656164a5746f706963a3612f62c290"
        ),
        sec.UserRolesChanged("a/b", ("x",), ()): "94aa757365722d726f6c6573a3612f6291a17890",
    }
    key = sec.TokenKeyRow(PublicKey("k", Algorithm.EDDSA, bytes(32)))
    stored[sec.TokenKeysAdded("i", "a", "n", (key,), True)] = (
        "96aa746f6b656e2d6b657973a169a161a16e919293a16ba54564445341c420" + "00" * 32 + "c400c3"
    )
    stored[sec.TokenRenewed("u", "i", "j", 9, 7)] = "96ad746f6b656e2d72656e65776564a175a169a16a0907"
    stored[sec.TokenKeysRemoved("i", "k")] = "93b2746f6b656e2d6b6579732d72656d6f766564a169a16b"
    for record, data in stored.items():
        assert c.encode_control(record).hex() == data
        assert c.decode_control(bytes.fromhex(data)) == record
    verifier = msgspec.structs.replace(VERIFIER, iterations=4_096)
    created = c.encode_control(sec.UserCreated("a/b", verifier, ())).hex()
    assert created.startswith("94a475736572a3612f6294cd1000c410" + "00" * 16 + "c420")
    wrapped = c.encode_control(sec.UserCreated("a/b", b"w" * 130, ("x",))).hex()
    assert wrapped == "94a475736572a3612f62c482" + "77" * 130 + "91a178"
    row = sec.RewrappedRow("fleet", "locks", 2, b"d" * 16, b"w" * 65)
    rewrapped = "92a97265777261707065649195a5666c656574a56c6f636b7302c410" + "64" * 16
    assert c.encode_control(sec.SecretsRewrapped((row,))).hex() == rewrapped + "c441" + "77" * 65
    founded = c.encode_control(sec.AccessFounded(bytes(32))).hex()
    assert founded == "92a6616363657373c420" + "00" * 32
    changed = c.encode_control(sec.UserPasswordSet("a/b", verifier)).hex()
    assert changed.startswith("93ad757365722d70617373776f7264a3612f6294cd1000c410")
