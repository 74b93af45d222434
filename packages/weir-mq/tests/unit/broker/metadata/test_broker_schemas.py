"""Schemas of topics: which version may follow, what outlives a restart, which batches are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import catalog_of
from weir.broker.metadata import schemas as room
from weir.broker.metadata.catalog import Catalog
from weir.broker.records.registry import SchemaVersionAdded
from weir.broker.records.snapshots import pack
from weir.errors import (
    BadRequest,
    IncompatibleSchema,
    LevelTooLow,
    TooLarge,
    Unavailable,
    UnknownSchema,
    UnknownTopic,
)
from weir.model.batch import split
from weir.model.limits import FORMAT_LEVEL, FORMAT_LEVEL_FIRST
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client import nodes as n
from weir.protocol.client import schemas as s
from weir.schema.fields import RECORD, Field, encode


def record(*fields: Field) -> bytes:
    return encode(Field("", RECORD, fields=fields))


HUB = Field("hub", "int")
WIDE = Field("hub", "long")
TEXT = Field("hub", "string")


def added(*fields: Field, text: bytes = b"", topic: str = "t", format: str = "avro") -> Any:
    return s.AddSchema(topic, format, text or record(*fields), record(*fields))


def restart(rig: Any) -> None:
    rig.disk.crash()
    rig.boot()
    rig.connect()


def code_of(rig: Any, request: Any) -> int:
    reply = rig.answer(1, request)
    assert isinstance(reply, m.Refusal), reply
    return reply.code


@pytest.mark.parametrize("checkpoint_bytes", [1, 1 << 30])
def test_versions_are_numbered_listed_and_last(
    make_rig: Callable[..., Any], checkpoint_bytes: int
) -> None:
    rig = make_rig(checkpoint_bytes=checkpoint_bytes)
    info = rig.topic(rig.connect())
    assert (info.schema, info.checked) == (0, False)
    empty = s.SchemaList(info.id, 0, "backward", False, [])
    assert rig.answer(1, s.ListSchemas("t")) == empty
    one = rig.answer(1, added(HUB, text=b"1"))
    assert one == s.SchemaChanged(info.id, 1, True, "backward", False)
    now = rig.time.wall_ms()
    rig.time.pass_ms(1_000)
    assert rig.answer(1, added(WIDE, text=b"2")).number == 2
    assert rig.answer(1, added(WIDE, text=b"2")) == s.SchemaChanged(
        info.id, 2, False, "backward", False
    ), "it is a version already"
    assert rig.answer(1, added(HUB, text=b"1")).number == 1
    rig.answer(1, s.SetSchemaRule("t", "full", True))
    for _ in range(3):
        listed = rig.answer(1, s.ListSchemas("t"))
        assert listed == s.SchemaList(
            info.id, 2, "full", True,
            [s.SchemaRow(1, "avro", "", b"1", now), s.SchemaRow(2, "avro", "", b"2", now + 1_000)],
        )  # fmt: skip
        assert rig.answer(1, s.ListSchemas("t", 2)).versions == listed.versions[1:]
        assert rig.answer(1, s.ListSchemas("t", 1, 1)).versions == listed.versions[:1]
        assert not rig.answer(1, s.ListSchemas("t", 1, 1)).more
        topic = rig.answer(1, m.DescribeTopic("t"))
        assert (topic.schema, topic.checked) == (2, True)
        rig.tick()
        rig.settle()
        restart(rig)


def test_the_rule_decides_what_may_follow_and_names_the_field(rig: Any) -> None:
    rig.topic(rig.connect())
    rig.answer(1, added(HUB))
    refused = rig.answer(1, added(TEXT))
    assert refused.code == IncompatibleSchema.code
    assert refused.detail == 1
    assert "hub: int cannot be read as string (backward)" in refused.message
    rig.answer(1, s.SetSchemaRule("t", "full"))
    assert "forward" in rig.answer(1, added(WIDE)).message
    assert "cannot be compared" in rig.answer(1, added(WIDE, format="arrow")).message
    rig.answer(1, s.SetSchemaRule("t", "none"))
    assert rig.answer(1, added(TEXT, format="arrow")).number == 2
    rig.answer(1, s.SetSchemaRule("t", checked=True))
    listed = rig.answer(1, s.ListSchemas("t"))
    assert (listed.rule, listed.checked) == ("none", True), "None leaves a setting as it is"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (s.ListSchemas("no"), UnknownTopic.code),
        (s.ListSchemas("t", 2), UnknownSchema.code),
        (s.SetSchemaRule("no", "none"), UnknownTopic.code),
        (s.SetSchemaRule("t", "sideways"), BadRequest.code),
        (added(HUB, topic="no"), UnknownTopic.code),
        (added(HUB, format="xml"), BadRequest.code),
        (s.AddSchema("t", "avro", b"", b"no fields"), BadRequest.code),
        (s.AddSchema("t", "avro", b" " * ((64 << 10) + 1), record(HUB)), BadRequest.code),
    ],
)
def test_what_cannot_be_is_refused(rig: Any, request_: Any, code: int) -> None:
    rig.topic(rig.connect())
    assert code_of(rig, request_) == code
    assert rig.answer(1, s.ListSchemas("t")).newest == 0


def test_of_two_that_were_compared_with_the_same_version_one_is_taken(rig: Any) -> None:
    rig.topic(rig.connect())
    numbers = [rig.ask(1, added(HUB, text=b"1")), rig.ask(1, added(TEXT, text=b"2"))]
    rig.settle()
    replies = dict(rig.replies[1])
    assert replies[numbers[0]].number == 1
    assert replies[numbers[1]].code == Unavailable.code, "it was compared with none"
    assert "meanwhile" in replies[numbers[1]].message
    assert rig.answer(1, s.ListSchemas("t")).newest == 1


def test_only_versions_that_are_there_may_be_named_by_a_batch(rig: Any) -> None:
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    refused = rig.answer(1, rig.batch(info, grant, 0, b"x", schema=1))
    assert refused.code == UnknownSchema.code
    assert "it has none" in refused.message
    rig.answer(1, added(HUB))
    assert rig.answer(1, rig.batch(info, grant, 0, b"x", schema=1)).offset == 0
    refused = rig.answer(1, rig.batch(info, grant, 1, b"y", schema=2))
    assert (refused.code, refused.detail) == (UnknownSchema.code, 1)
    assert rig.answer(1, rig.batch(info, grant, 1, b"y")).offset == 1
    address = info.addresses[0]
    batches = rig.answer(1, m.Fetch(address, 0, 1_000)).batches
    (first, second) = split(b"".join(batches), address.group)
    assert (first.header.schema, second.header.schema) == (1, 0)


def test_schemas_go_with_their_topic(rig: Any) -> None:
    info = rig.topic(rig.connect())
    rig.answer(1, added(HUB))
    rig.answer(1, a.DeleteTopic("t", info.id))
    again = rig.topic(1)
    assert (again.schema, rig.answer(1, s.ListSchemas("t")).newest) == (0, 0)
    assert catalog_of(rig.shard).schemas.size == 0


def test_a_set_of_the_first_level_takes_no_schema_until_it_is_raised(rig: Any) -> None:
    rig.topic(rig.connect())
    nodes = catalog_of(rig.shard).nodes
    assert nodes.level == FORMAT_LEVEL, "no earlier release wrote any of it"
    nodes.level = FORMAT_LEVEL_FIRST
    assert code_of(rig, added(HUB)) == LevelTooLow.code
    assert code_of(rig, s.SetSchemaRule("t", "none")) == LevelTooLow.code
    rig.answer(1, n.RaiseLevel())
    assert rig.answer(1, added(HUB)).number == 1


def test_versions_and_bytes_have_an_end(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.topic(rig.connect())
    rig.topic(1, "u")
    monkeypatch.setattr(room, "SCHEMA_VERSIONS_MAX", 2)
    for number in (1, 2):
        rig.answer(1, added(HUB, text=b"%d" % number))
    refused = rig.answer(1, added(HUB, text=b"3"))
    assert (refused.code, refused.detail) == (TooLarge.code, 2)
    held = catalog_of(rig.shard).schemas.size
    monkeypatch.setattr(room, "SCHEMAS_BYTES_MAX", held + 100 + len(record(HUB)))
    assert "delete topics" in rig.answer(1, added(HUB, text=b" " * 100, topic="u")).message
    assert rig.answer(1, added(HUB, text=b" " * 10, topic="u")).number == 1


def test_a_long_list_comes_in_pages(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_PAGE_BYTES", 200)
    rig.topic(rig.connect())
    for number in range(5):
        rig.answer(1, added(HUB, text=b"%d" % number * 80))
    found: list[int] = []
    while True:
        page = rig.answer(1, s.ListSchemas("t", len(found) + 1))
        found += [row.number for row in page.versions]
        if not page.more:
            break
        assert len(page.versions) == 1
    assert found == [1, 2, 3, 4, 5]


def test_a_registry_without_schemas_is_written_as_earlier_releases_read_it() -> None:
    catalog = Catalog()
    before = catalog.encode()
    assert isinstance(before, tuple)
    assert before[0] == 5
    catalog.schemas.add(SchemaVersionAdded(1, 1, "avro", "", b"{}", record(HUB), 7))
    with_schemas = catalog.encode()
    assert isinstance(with_schemas, tuple)
    assert with_schemas[0] == 8
    assert pack(Catalog.decode(with_schemas).encode()) == pack(with_schemas)
