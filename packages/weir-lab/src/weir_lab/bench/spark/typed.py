"""Values of a schema in four formats, for queries over typed columns."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from weir.client.client import Client
from weir.schema import Schema
from weir.schema.fields import Format

FORMATS: tuple[Format, ...] = ("json", "avro", "protobuf", "arrow")
#: So many values are encoded, each another one; messages repeat them.
_DISTINCT = 10_000
_CHUNK = 1_000
_FIELDS = (("hub", "int64"), ("sequence", "int64"), ("open", "bool"), ("battery", "double"),
           ("site", "string"))  # fmt: skip


def topic_of(format: Format) -> str:
    """Return the topic that holds values of a format."""
    return f"typed-{format}"


def schema_of(format: Format) -> Schema:
    """Return the schema of five fields that all values have."""
    match format:
        case "json":
            kinds = {"int64": "integer", "bool": "boolean", "double": "number", "string": "string"}
            fields: Any = {name: {"type": kinds[kind]} for name, kind in _FIELDS}
            text = {"type": "object", "properties": fields, "required": [*fields]}
            return Schema("json", json.dumps(text).encode())
        case "avro":
            kinds = {"int64": "long", "bool": "boolean"}
            fields = [{"name": name, "type": kinds.get(kind, kind)} for name, kind in _FIELDS]
            return Schema("avro", json.dumps(_record(fields)).encode())
        case "protobuf":
            return Schema("protobuf", _descriptors().SerializeToString())
        case "arrow":
            return Schema("arrow", _columns().serialize().to_pybytes())


async def fill(client: Client, format: Format, messages: int, partitions: int) -> None:
    """Publish values of a format to a topic of its own."""
    await client.create_topic(topic_of(format), partitions)
    encode = _encoder(format)
    values = [encode(row) for row in _rows(min(messages, _DISTINCT))]
    async with client.producer(topic_of(format)) as producer:
        for first in range(0, messages, _CHUNK):
            count = min(_CHUNK, messages - first)
            at = first % len(values)
            some = (values * 2)[at : at + count] if len(values) >= count else values[:count]
            await producer.ready()
            await producer.send_many(some, partition=first // _CHUNK % partitions)


def _rows(count: int) -> Iterator[dict[str, Any]]:
    for n in range(count):
        yield {
            "hub": 1_000_000 + n,
            "sequence": n * 7,
            "open": n % 3 == 0,
            "battery": 3.3 + n % 100 / 1_000,
            "site": f"building {n % 50}, floor {n % 9}",
        }


def _encoder(format: Format) -> Callable[[dict[str, Any]], bytes]:
    match format:
        case "json":
            return lambda row: json.dumps(row, separators=(",", ":")).encode()
        case "avro":
            return _avro()
        case "protobuf":
            return _protobuf()
        case "arrow":
            columns = _columns()

            def one_row(row: dict[str, Any]) -> bytes:
                batch = pa.RecordBatch.from_pylist([row], columns)
                return bytes(batch.serialize().to_pybytes())

            return one_row


def _record(fields: list[dict[str, str]]) -> dict[str, Any]:
    return {"type": "record", "name": "Lock", "fields": fields}


def _avro() -> Callable[[dict[str, Any]], bytes]:
    from fastavro import parse_schema, schemaless_writer

    parsed = parse_schema(json.loads(schema_of("avro").data))

    def encode(row: dict[str, Any]) -> bytes:
        file = io.BytesIO()
        schemaless_writer(file, parsed, row)
        return file.getvalue()

    return encode


def _descriptors() -> Any:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    found = FileDescriptorSet()
    file = found.file.add(name="lock.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="Lock")
    for number, (name, kind) in enumerate(_FIELDS, 1):
        type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
        message.field.add(name=name, number=number, type=type, label=1)
    return found


def _protobuf() -> Callable[[dict[str, Any]], bytes]:
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for file in _descriptors().file:
        pool.Add(file)
    kind = GetMessageClass(pool.FindMessageTypeByName("bench.Lock"))
    return lambda row: bytes(kind(**row).SerializeToString())


def _columns() -> pa.Schema:
    kinds = {"int64": pa.int64(), "bool": pa.bool_(), "double": pa.float64(),
             "string": pa.string()}  # fmt: skip
    return pa.schema([(name, kinds[kind]) for name, kind in _FIELDS])
