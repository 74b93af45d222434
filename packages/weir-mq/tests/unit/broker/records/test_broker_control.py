"""Control records come back as they went; what is not known stops the group."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from weir.broker.records import entries as c
from weir.errors import Halted
from weir.model.topic import Mode, SettingsChange, TopicSettings

SETTINGS = TopicSettings(5, 6)
RECORDS: list[c.ControlRecord] = [
    c.TopicCreated("ns", "t", 2, "partition", 70, SETTINGS, 3),
    c.TopicAltered(3, 4, SettingsChange(None, 6)),
    c.TopicGrown(3, 4, 90),
    c.TopicEnds(3, 4, 90, 12, True),
    c.TopicDeleted(3),
    c.NodeJoined(2, "host", 6800, 4, 1, 77),
    c.NodeChanged(2, "draining"),
    c.GroupsPlaced([(65536, (65536, 131072))]),
    c.GroupsSettled([(65536, (65536, 131072))]),
    c.LevelRaised(2),
    c.SchemaVersionAdded(3, 2, "avro", "", b"text", b"fields", 5),
    c.SchemaRuleSet(3, None, True),
    c.ProducerOpened(50, 1, "anonymous"),
    c.ClusterOpened("c", Mode.KEYED),
    c.MessagesGranted("c", 7, 0, 5, 100, 90),
    c.MessagesGranted("c", 7, 0, 5, 100, 90, [(0, 2), (4, 5)]),
    c.MessagesAcked("c", [(5, 0, 3), (5, 4, 5)]),
    c.MessagesReturned("c", 9, [(0, 3), (4, 5)], 100, 90, True),
    c.GrantsExtended("c", [9, 11], 200, 90),
    c.GrantsReleased(7),
    c.LogStartMoved(12, 34, 56),
    c.StampsRaised(90),
    c.PartitionJoined(4, 90),
    c.PartitionSealed(90),
    c.PartitionEnded(4, 90, 12),
    c.CursorTaken("c", 7, 5, (0, 4), 200, 90),
    c.CursorMoved("c", 9, (1, 4), 200, 90, True, True),
    c.CursorSought("c", (0, 0)),
    c.AcksPrepared(5, 1, 2, 90, (131072, 131073), [("c", [(9, 0, 3)])]),
    c.SinkPrepared(5, 1, 2, 90, (131072, 131073), "query", 7),
    c.SinkForgotten("query"),
    c.ScatteringsDecided([(5, 1, 2, 90, True, 1)]),
    c.ScatteringsBarred(90),
    c.AttemptBarred(5, 1, 2, 90),
    c.ClusterSought("c", 9),
    c.ClusterPaused("c", True, 7),
    c.TopicClusterPaused(1, "c", True),
    c.ClusterDeleted("c"),
    c.HubForgotten(0xA17),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_come_back_as_they_went(record: c.ControlRecord) -> None:
    assert c.decode_control(c.encode_control(record)) == record


def test_every_record_is_covered() -> None:
    assert {type(record) for record in RECORDS} == set(get_args(c.ControlRecord))


def test_a_topic_without_settings_has_the_defaults() -> None:
    data = msgspec.msgpack.encode(["topic", "ns", "t", 2, "partition", 70])
    assert c.decode_control(data) == c.TopicCreated("ns", "t", 2, "partition", 70, TopicSettings())


@pytest.mark.parametrize("data", [["later", 1], ["seek", "c"], ["seek", "c", "x"], []])
def test_what_is_not_known_is_never_skipped(data: list[object]) -> None:
    with pytest.raises(Halted, match="upgrade this node"):
        c.decode_control(msgspec.msgpack.encode(data))
