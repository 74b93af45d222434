"""Schemas through the client, on a node in memory: versions, and what producers send by them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from weir import sync, testing
from weir.errors import (
    BadRequest,
    BadValue,
    IncompatibleSchema,
    MissingLibrary,
    UnknownSchema,
    UnknownTopic,
)
from weir.schema import Schema
from weir.schema.fields import SCHEMA_BYTES_MAX, BadSchema


@pytest.fixture
def w() -> Iterator[sync.Client]:
    with testing.node() as node, sync.connect(node.url) as client:
        client.create_topic("t", partitions=2)
        yield client


def json_schema(required: str, **fields: str) -> Schema:
    properties = {name: {"type": kind} for name, kind in fields.items()}
    text = {"type": "object", "properties": properties, "required": [required]}
    return Schema("json", json.dumps(text).encode())


HUB = json_schema("hub", hub="integer")
MORE = json_schema("hub", hub="integer", level="number")


def sent(w: sync.Client) -> list[tuple[bytes, int]]:
    return sorted((m.value, m.schema) for m in w.reader("t", follow=False))


def test_versions_are_added_and_looked_up(w: sync.Client) -> None:
    with pytest.raises(UnknownSchema, match="weir schema add t FILE"):
        w.schemas.get("t")
    one = w.schemas.add("t", HUB)
    two = w.schemas.add("t", MORE)
    assert [(one.number, one.schema), (two.number, two.schema)] == [(1, HUB), (2, MORE)]
    assert w.schemas.add("t", MORE) == two, "it is the newest already"
    assert [w.schemas.get("t", number) for number in (0, 1, 2)] == [two, one, two]
    with pytest.raises(UnknownSchema, match="no version 3"):
        w.schemas.get("t", 3)
    found = w.schemas.versions("t")
    assert (found.versions, found.rule, found.checked) == ((one, two), "backward", False)
    assert w.describe("t").schema == 2
    for call in (w.schemas.get, w.schemas.versions):
        with pytest.raises(UnknownTopic):
            call("no")


def test_the_rule_refuses_a_version_by_its_field(w: sync.Client) -> None:
    w.schemas.add("t", HUB)
    with pytest.raises(IncompatibleSchema, match="hub"):
        w.schemas.add("t", json_schema("hub", hub="string"))
    with pytest.raises(BadSchema):
        w.schemas.add("t", Schema("json", b"{"))
    w.schemas.set_rule("t", "none")
    assert w.schemas.add("t", json_schema("hub", hub="string")).number == 2


def test_batches_name_the_version_of_their_producer(w: sync.Client) -> None:
    w.schemas.add("t", HUB)
    w.schemas.add("t", MORE)
    with w.producer("t", schema=1) as old, w.producer("t", schema="newest") as new:
        old.send(b"old")
        new.send_many([b"new", b"newer"], keys=[b"a", b"b"])
        new.publish_arrow(pa.table({"value": [b"rows"]}))
    w.publish("t", b"bare")
    w.publish("t", b"lone", schema=2)
    assert sent(w) == [
        (b"bare", 0), (b"lone", 2), (b"new", 2), (b"newer", 2), (b"old", 1), (b"rows", 2)
    ]  # fmt: skip
    taken: dict[bytes, int] = {}
    with w.consumer("t", cluster="c") as consumer:
        for message in islice(consumer, 6):
            with message:
                taken[message.value] = message.schema
    assert taken == dict(sent(w))


def test_a_large_value_names_its_version(w: sync.Client) -> None:
    w.schemas.add("t", HUB)
    value = b"x" * (9 << 20)
    with w.producer("t", schema=1, compression="none") as producer:
        producer.publish(value)
    (message,) = w.reader("t", follow=False)
    assert (message.schema, message.size) == (1, len(value))


@pytest.mark.parametrize("schema", [1, "newest"])
def test_a_version_that_is_not_there_ends_no_publish_later(w: sync.Client, schema: Any) -> None:
    with pytest.raises(UnknownSchema, match="weir schema add t FILE"):
        w.producer("t", schema=schema).open()
    with pytest.raises(UnknownSchema):
        w.publish("t", b"x", schema=schema)
    assert sent(w) == []


@pytest.mark.parametrize("schema", [0, -1, "latest", True, 1.5])
def test_what_is_no_version_is_told(w: sync.Client, schema: Any) -> None:
    with pytest.raises((BadRequest, TypeError), match="schema"):
        w.producer("t", schema=schema)


def test_checked_values_are_sent_only_if_they_fit(w: sync.Client) -> None:
    w.schemas.add("t", HUB)
    with w.producer("t", schema=1, check=True) as producer:
        for send in (producer.publish, producer.send):
            with pytest.raises(BadValue, match=r"version 1 of the schema of topic t.*hub"):
                send({"hub": "42"})
        with pytest.raises(BadValue, match="value 1 of 3") as found:
            producer.send_many([b'{"hub":1}', b"nonsense", b"{}"])
        assert found.value.place == 1
        with pytest.raises(BadValue, match="value 1 of 2"):
            producer.publish_arrow(pa.table({"value": [b'{"hub":1}', b"7"]}))
        with pytest.raises(BadValue):
            producer.publish(b"x" * (9 << 20))
        with pytest.raises(BadRequest, match="check=False"):
            producer.publish_from(iter([b"x" * (9 << 20)]))
        producer.publish({"hub": 1})
    assert sent(w) == [(b'{"hub":1}', 1)]


def test_a_checked_topic_asks_it_of_all_producers(w: sync.Client) -> None:
    w.schemas.set_rule("t", checked=True)
    w.publish("t", b"there is no schema yet")
    w.schemas.add("t", HUB)
    w.schemas.add("t", MORE)
    with w.producer("t") as producer:
        with pytest.raises(BadValue, match="version 2"):
            producer.publish({"hub": 1, "level": "low"})
        producer.publish({"hub": 2})
    with w.producer("t", check=False) as producer:
        producer.publish(b"anything")
    assert sent(w) == [
        (b"anything", 0), (b"there is no schema yet", 0), (b'{"hub":2}', 2)
    ]  # fmt: skip


def test_schemas_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "lock.avsc"
    file.write_bytes(b'"long"')
    assert Schema.read(file) == Schema("avro", b'"long"')
    assert Schema.read(file, format="json").format == "json"
    with pytest.raises(BadRequest, match="say that it is json"):
        Schema.read(tmp_path / "lock.txt")
    with pytest.raises(BadRequest, match="format='xml'"):
        Schema.read(file, format="xml")
    file.write_bytes(b" " * (SCHEMA_BYTES_MAX + 1))
    with pytest.raises(BadSchema, match="more than"):
        Schema.read(file)


def refused_within(send: Callable[[], object], error: type[Exception], seconds: float = 10) -> None:
    """Return once `send` raises `error`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            send()
        except error:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.client.connection.metadata.ASK_EVERY", 0.02)


@pytest.mark.usefixtures("quick")
def test_an_open_producer_finds_out_that_values_are_checked_now(w: sync.Client) -> None:
    with ExitStack() as opened:
        own = opened.enter_context(w.producer("t"))
        own.publish(b"bare")
        w.publish("t", b"shared")
        w.schemas.add("t", HUB)
        fixed = opened.enter_context(w.producer("t", schema=1, check=False))
        fixed.publish(b"fixed")
        w.schemas.set_rule("t", checked=True)
        refused_within(lambda: own.publish(b"more"), BadValue)
        refused_within(lambda: w.publish("t", b"more"), BadValue)
        own.publish({"hub": 1})
        w.publish("t", {"hub": 2})
        fixed.publish(b"fixed")
        found = {(value, number) for value, number in sent(w) if value != b"more"}
        assert found == {
            (b"bare", 0), (b"shared", 0), (b"fixed", 1), (b'{"hub":1}', 1), (b'{"hub":2}', 1)
        }  # fmt: skip
        assert {number for value, number in sent(w) if value == b"more"} <= {0}
        # The newest version is the one they go by, and none once none is asked for.
        w.schemas.add("t", MORE)
        refused_within(lambda: own.publish({"hub": 3, "level": "high"}), BadValue)
        own.publish({"hub": 4, "level": 0.5})
        assert (b'{"hub":4,"level":0.5}', 2) in sent(w)
        w.schemas.set_rule("t", checked=False)
        deadline = time.monotonic() + 10
        while (b"free", 0) not in sent(w):
            assert time.monotonic() < deadline
            with suppress(BadValue):
                own.publish(b"free")


@pytest.mark.usefixtures("quick")
def test_what_waits_to_be_sent_keeps_the_version_it_was_taken_under() -> None:
    text = "nonsense, and so long that a batch holds but one of it, whatever else is on its way"
    numbers: dict[int, set[bytes]] = {}

    async def scenario(url: str) -> None:
        async with weir.connect(url) as client:
            await client.create_topic("t")
            await client.schemas.add("t", HUB)
            async with client.producer("t", window=1, batch_bytes=128, linger=0) as producer:
                rule = asyncio.create_task(client.schemas.set_rule("t", checked=True))
                with suppress(BadValue):
                    while True:
                        for _ in range(5):
                            producer.send(text)
                        await asyncio.sleep(0)
                await rule
                producer.send({"hub": 1})
                await producer.flush()
            async with client.reader("t", follow=False) as reader:
                async for message in reader:
                    numbers.setdefault(message.schema, set()).add(message.value[:8])

    with testing.node() as node:
        asyncio.run(scenario(node.url))
    assert numbers == {0: {b"nonsense"}, 1: {b'{"hub":1'}}


@pytest.mark.usefixtures("quick")
def test_values_that_cannot_be_checked_any_more_are_not_sent(
    w: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(schema: Schema) -> None:
        raise MissingLibrary("pip install 'weir-mq[schema]'")

    w.schemas.add("t", HUB)
    w.publish("t", b"bare")
    monkeypatch.setattr("weir.client.schemas._decoder", missing)
    w.schemas.set_rule("t", checked=True)
    refused_within(lambda: w.publish("t", b"bare"), MissingLibrary)
    assert {number for _, number in sent(w)} == {0}
