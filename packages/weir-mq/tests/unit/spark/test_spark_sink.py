"""The sink as Spark calls it, over a node in memory; no Spark runs."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from weir import sync, testing
from weir.client.connection.system import SYSTEM
from weir.errors import (
    BadOption,
    BadRequest,
    CheckpointMismatch,
    Disconnected,
    TooLarge,
    UnknownSchema,
)
from weir.model.batch import Batch
from weir.model.topic import partition_for
from weir.schema import Schema
from weir.spark import blocking_client
from weir.spark.rows import TIME_MAX, TIME_MIN
from weir.spark.sink import writer as sink_writer
from weir.spark.sink.columns import by_topic
from weir.spark.sink.options import SinkOptions
from weir.spark.sink.writer import (
    StagedTask,
    StreamWriter,
    TableWriter,
    client_of,
    forget_all,
    publish,
    stage,
)
from weir.spark.source import WeirDataSource
from weir.testing import Node

PAIRS = pa.map_(pa.string(), pa.binary())


@pytest.fixture
def node() -> Iterator[Node]:
    with testing.node() as one:
        yield one
        forget_all()
        blocking_client.forget_all()


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def writer(kind: StructType, overwrite: bool = False, **options: str) -> TableWriter:
    given = {"topic": "t"} | options
    made = WeirDataSource(given).writer(kind, overwrite)
    assert isinstance(made, TableWriter)
    return made


VALUE = schema(value=BinaryType())


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": BinaryType()}, r"no column 'value' among \['key'\]"),
        ({"value": DoubleType()}, "column 'value' is double: cast it to binary or string"),
        ({"value": BinaryType(), "key": LongType()}, "column 'key' is bigint"),
        ({"value": BinaryType(), "tag": BinaryType()}, "column 'tag' is binary"),
        ({"value": BinaryType(), "time": TimestampNTZType()}, "column 'time' is timestamp_ntz"),
        ({"value": BinaryType(), "partition": StringType()}, "column 'partition' is string"),
        ({"value": BinaryType(), "offset": LongType()}, r"columns \['offset'\] mean nothing"),
        ({"value": BinaryType(), "topic": StringType()}, "both say where to write"),
        (
            {"value": BinaryType(), "headers": MapType(StringType(), LongType())},
            "column 'headers' is map<string,bigint>: cast it to map<string,binary>",
        ),
        ({"value": BinaryType(), "Value": BinaryType()}, "two columns are called 'Value'"),
    ],
)
def test_columns_are_refused_by_name_before_a_row_is_written(
    columns: dict[str, DataType], why: str
) -> None:
    for kind in (WeirDataSource.writer, WeirDataSource.streamWriter):
        with pytest.raises(BadOption, match=why):
            kind(WeirDataSource({"topic": "t"}), schema(**columns), False)


def test_all_columns_are_taken() -> None:
    every = schema(
        value=StringType(), key=StringType(), tag=StringType(), time=TimestampType(),
        headers=MapType(StringType(), StringType()), partition=IntegerType(),
    )  # fmt: skip
    pickle.loads(pickle.dumps(writer(every)))
    made = WeirDataSource({}).streamWriter(schema(value=BinaryType(), topic=StringType()), False)
    assert isinstance(pickle.loads(pickle.dumps(made)), StreamWriter)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"id": ""}, "option id is ''"),
        ({"id": "x" * 129}, "give 1 to 128 characters"),
        ({"batch": "1"}, "give the option id, too"),
        ({"id": "q", "batch": "-1"}, "option batch is '-1': give a whole number"),
        ({"id": "q", "schema": "1001"}, "option schema is '1001': give a whole number"),
        ({"nullValues": "drop"}, "option nullValues is 'drop': give error or empty"),
        ({"topic": "a b"}, "option topic"),
        ({"id": "q", "startingOffsets": "latest"}, "no option 'startingoffsets' to write with"),
        ({"url": "http://x"}, "weir://"),
    ],
)
def test_options_are_refused_by_name(options: dict[str, str], why: str) -> None:
    with pytest.raises(BadOption, match=why):
        writer(VALUE, **options)


def test_where_to_write_must_be_said_and_nothing_is_overwritten() -> None:
    with pytest.raises(BadOption, match="nothing says where to write"):
        WeirDataSource({}).writer(VALUE, False)
    with pytest.raises(BadOption, match="a topic is never overwritten"):
        writer(VALUE, overwrite=True)


def test_what_reads_and_what_writes_each_has_its_own_options() -> None:
    source = WeirDataSource({"topic": "t", "id": "q"})
    with pytest.raises(BadOption, match="no option 'id'"):
        source.schema()
    assert WeirDataSource({"topic": "t", "STARTINGOFFSETS": "latest"}).schema().names[0] == "topic"
    with pytest.raises(BadOption, match="no option 'colour'"):
        WeirDataSource({"topic": "t", "colour": "red"})


OPTIONS = SinkOptions((), "t")


def table(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"a", b"b", b"c"], **columns})


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"value": [b"a", b"b", None]}, r"column 'value' of row 12 of a task is null; .option"),
        ({"partition": [0, -1, 1]}, "column 'partition' of row 11 of a task is below 0"),
        ({"topic": ["t", None, "t"]}, "column 'topic' of row 11 of a task is null"),
        (
            {"time": pa.array([0, None, 0], pa.timestamp("us", "UTC"))},
            "column 'time' of row 11 of a task is null",
        ),
        (
            {"time": pa.array([TIME_MIN, TIME_MAX, TIME_MAX + 1], pa.timestamp("us", "UTC"))},
            "column 'time' of row 12 of a task is before the year 1 or after the year 9999",
        ),
        (
            {"time": pa.array([TIME_MIN - 1, 0, 0], pa.timestamp("us", "UTC"))},
            "column 'time' of row 10 of a task is before the year 1",
        ),
    ],
)
def test_rows_are_refused_by_column_and_row(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        [*by_topic(table(**columns), OPTIONS, 10)]


def test_values_that_are_null_may_be_empty() -> None:
    options = SinkOptions((), "t", fills_values=True)
    for kind in (pa.binary(), pa.string(), pa.large_string(), pa.large_binary()):
        (found,) = by_topic(table(value=pa.array(["a", None, "c"], kind)), options, 0)
        values = found.messages.column("value").cast(pa.binary()).to_pylist()
        assert values == [b"a", b"", b"c"]


def test_rows_part_by_topic_in_their_order() -> None:
    data = table(topic=["x", "y", "x"], partition=[2, None, 0], tag=["p", "q", "r"])
    found = [
        (
            one.topic,
            one.messages.to_pydict(),
            one.partitions.to_pylist() if one.partitions is not None else None,
        )
        for one in by_topic(data, SinkOptions(()), 0)
    ]
    assert found == [
        ("x", {"value": [b"a", b"c"], "tag": ["p", "r"]}, [2, 0]),
        ("y", {"value": [b"b"], "tag": ["q"]}, [None]),
    ]


ROW = st.tuples(
    st.binary(max_size=20),
    st.none() | st.binary(max_size=3),
    st.none() | st.sampled_from(["", "late", "früh"]),
    st.integers(TIME_MIN, TIME_MAX),
    st.none() | st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=3),
    st.none() | st.integers(0, 2),
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=60), cut=st.integers(1, 60), size=st.integers(1, 900)
)
def test_any_table_becomes_batches_with_the_same_rows(
    rows: list[tuple[Any, ...]], cut: int, size: int
) -> None:
    from weir.model.arrow import Rows

    def record(some: list[tuple[Any, ...]]) -> pa.RecordBatch:
        values, keys, tags, times, headers, partitions = (
            list(one) for one in zip(*some, strict=True)
        )
        return pa.RecordBatch.from_pydict({
            "value": values, "key": pa.array(keys, pa.binary()), "tag": pa.array(tags, pa.string()),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "headers": pa.array([one and [*one.items()] for one in headers], PAIRS),
            "partition": pa.array(partitions, pa.int32()),
        })  # fmt: skip

    parts = []
    for first in range(0, len(rows), cut):
        (chosen,) = by_topic(record(rows[first : first + cut]), OPTIONS, first)
        parts.append(Rows.of(chosen.messages))
    whole = Rows.joined(parts)
    numbers = whole.partitions(3)
    expected: dict[int, list[tuple[Any, ...]]] = {}
    for value, key, tag, time, headers, _ in rows:
        at = -1 if key is None else partition_for(key, 3)
        row = value, key, tag or None, time, headers or {}
        expected.setdefault(at, []).append(row)
    found: dict[int, list[tuple[Any, ...]]] = {}
    for number, some in whole.parted(numbers):
        for first, behind, _ in some.cuts(size):
            batch = Batch(some.slice(first, behind).encode(group=7)).check(7)
            batch.check_columns()
            columns = batch.values(), batch.keys(), batch.tags(), batch.times(), batch.headers()
            found.setdefault(number, []).extend(zip(*columns, strict=True))
    assert found == expected
    assert [*found] == sorted(found)


def data(*values: bytes, **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [*values], **columns})


def read(node: Node, topic: str = "t") -> list[tuple[int, bytes]]:
    with sync.connect(node.url) as w:
        return [(one.partition, one.value) for one in w.reader(topic, follow=False)]


def create(node: Node, partitions: int = 1) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", partitions)


def test_tables_are_written_each_time_or_once_an_id(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    create(node)
    with caplog.at_level(logging.WARNING, "weir.spark"):
        for _ in range(2):
            one = writer(VALUE, url=node.url)
            one.commit([one.write(iter([data(b"a"), data(), data(b"b")]))])
        assert len([r for r in caplog.records if "there twice" in r.message]) == 2
        caplog.clear()
        for _ in range(2):
            one = writer(VALUE, url=node.url, id="nightly", batch="3")
            one.commit([one.write(iter([data(b"c")]))])
        (record,) = caplog.records
        assert "batch 3 of nightly was published before" in record.message
    assert [value for _, value in read(node)] == [b"a", b"b", b"a", b"b", b"c"]


def test_tasks_are_published_in_the_order_of_their_numbers(node: Node) -> None:
    create(node)
    options = SinkOptions.parse({"url": node.url, "topic": "t"})
    staged = [stage(iter([data(b"%d" % n)]), options, "q", 0) for n in range(3)]
    messages = [StagedTask("q", 0, 2 - n, one.parts) for n, one in enumerate(staged)]
    assert len(pickle.dumps(messages[0])) < 1_000
    publish([messages[1], None, messages[0], messages[2]], options, 0)
    assert [value for _, value in read(node)] == [b"2", b"1", b"0"]


def test_a_commit_of_another_batch_is_refused(node: Node) -> None:
    create(node)
    options = SinkOptions.parse({"url": node.url, "topic": "t"})
    one, other = StagedTask("q", 1, 0), StagedTask("other", 1, 1)
    for staged, batch in (([one], 2), ([one, other], 1)):
        with pytest.raises(CheckpointMismatch, match="start the query again"):
            publish(staged, options, batch)
    publish([one], options, 1)  # there are no rows
    assert read(node) == []


def test_a_row_that_is_too_large_is_named(node: Node) -> None:
    create(node)
    options = SinkOptions.parse({"url": node.url, "topic": "t"})
    batches = iter([data(b"a", b"b"), data(b"c", b"x" * (8 << 20))])
    with pytest.raises(TooLarge, match="row 3 for topic t"):
        stage(batches, options, "q", 0)


def test_rows_are_counted_over_the_batches_of_a_task(node: Node) -> None:
    create(node)
    options = SinkOptions.parse({"url": node.url, "topic": "t"})
    none = pa.RecordBatch.from_pydict({"value": pa.array([b"c", None], pa.binary())})
    with pytest.raises(BadRequest, match="column 'value' of row 3 of a task is null"):
        stage(iter([data(b"a", b"b"), none]), options, "q", 0)


def test_a_client_is_kept_for_its_process_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = SinkOptions.parse({"url": node.url}).hosts
    one = client_of(hosts)
    assert client_of(hosts) is one
    with monkeypatch.context() as patched:
        patched.setattr(type(SYSTEM.get()), "process", lambda _: 1)
        other = client_of(hosts)
        assert other is not one
        forget_all()


def test_a_sink_is_reached_by_tls_where_its_url_says_so(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(node)
    monkeypatch.setattr(sink_writer, "ask", lambda *_: None)  # it would find out sooner
    monkeypatch.setattr(sink_writer, "ANSWER_TIMEOUT", 0.5)
    options = SinkOptions.parse({"url": node.url.replace("weir://", "weirs://"), "topic": "t"})
    with pytest.raises(Disconnected):
        stage(iter([data(b"a")]), pickle.loads(pickle.dumps(options)), "q", 0)


def test_a_stream_must_know_its_micro_batch() -> None:
    with pytest.raises(BadOption, match="use foreachBatch"):
        StreamWriter(OPTIONS).write(iter([data(b"a")]))


def test_values_name_a_version_of_the_schema(node: Node) -> None:
    create(node)
    with sync.connect(node.url) as w:
        w.schemas.add("t", Schema("json", b'{"type": "object"}'))
    one = writer(VALUE, url=node.url, schema="1")
    one.commit([one.write(iter([data(b"{}")]))])
    with sync.connect(node.url) as w:
        (message,) = w.reader("t", follow=False)
    assert message.schema == 1
    with pytest.raises(UnknownSchema, match="2"):
        writer(VALUE, url=node.url, schema="2").write(iter([data(b"{}")]))


def test_a_host_without_an_address_is_told_of_soon() -> None:
    options = SinkOptions.parse({"url": "weir://no-such-host.invalid:1", "topic": "t"})
    with pytest.raises(Disconnected, match="no-such-host"):
        stage(iter([data(b"a")]), options, "q", 0)
