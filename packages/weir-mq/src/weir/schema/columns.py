"""Values of a schema as Arrow columns: what Spark's typed columns and checks of values are made of.

A decoder takes a column of values and returns a struct column of the same length, with null where
a value does not fit and the reason beside it. No value ends the work on its neighbours. Types that
Spark does not have become wider ones: unsigned 64-bit integers decimals, times of day microseconds
since midnight, unions of several types JSON text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from weir.schema import Schema
from weir.schema.fields import ARRAY, MAP, RECORD, UNION, BadSchema, Field, join

#: The name of the column if the schema is no record.
VALUE = "value"
#: A reason is at most so long; values may be in it.
REASON_MAX = 300


class Columns(NamedTuple):
    """A column of structs and, for each row, why its value does not fit; None if it does."""

    rows: pa.StructArray
    reasons: list[str | None]


class Decoder(Protocol):
    """Decodes values of one schema."""

    #: The type of the struct column.
    type: pa.StructType

    def decode(self, values: Iterable[bytes | None]) -> Columns:
        """Return a row for each value; a null value is a null row with a reason."""


def decoder(schema: Schema, written: Schema | None = None) -> Decoder:
    """Return what decodes values of a schema.

    Avro and Protobuf values are bare bodies; a JSON value is its text; an Arrow value is a record
    batch of one row as an IPC message (`batch.serialize()`). Values that were `written` with
    another version are read as `schema` has them, by the rules of their format.

    Raises `BadSchema` and `MissingLibrary`.
    """
    root = schema.parse()
    match schema.format:
        case "avro":
            return _Rows(root, AVRO, _avro(schema, root, written or schema))
        case "json":
            return _Rows(root, JSON, _json(schema, root))
        case "protobuf":
            return _Rows(root, PROTOBUF, _protobuf(schema))
        case "arrow":
            return _ArrowRows(schema, written or schema)


class VersionedDecoder:
    """Decodes values that were written with several versions of a schema as the newest has them."""

    def __init__(self, versions: Mapping[int, Schema]) -> None:
        """Take versions by number: at least one. Raises `BadSchema` and `MissingLibrary`."""
        self._newest = max(versions)
        self._versions = versions
        newest = decoder(versions[self._newest])
        self.type = newest.type
        # What names no version is taken for the newest.
        self._decoders: dict[int, Decoder] = {0: newest, self._newest: newest}

    def decode(self, values: Sequence[bytes | None], numbers: Sequence[int | None]) -> Columns:
        """Return a row for each value, which was written with the version of that number."""
        places: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(number or 0, []).append(place)
        if len(places) == 1:
            return self._decode(values, next(iter(places)))
        reasons: list[str | None] = [None] * len(values)
        parts: list[pa.StructArray] = []
        order: list[int] = []
        for number, of in places.items():
            rows, told = self._decode([values[place] for place in of], number)
            for place, reason in zip(of, told, strict=True):
                reasons[place] = reason
            parts.append(rows)
            order += of
        back = pa.array(order, pa.int64())
        rows = pa.concat_arrays(parts or [pa.nulls(0, self.type)])
        return Columns(rows.take(pc.array_sort_indices(back)), reasons)

    def _decode(self, values: Sequence[bytes | None], number: int) -> Columns:
        known = self._decoders.get(number)
        if known is None:
            written = self._versions.get(number)
            if written is None:
                reason = (
                    f"it has version {number} of the schema, and {self._newest} is the newest that "
                    "is known here: look the versions up again"
                )
                return Columns(pa.nulls(len(values), self.type), [reason] * len(values))
            known = decoder(self._versions[self._newest], written)
            self._decoders[number] = known
        return known.decode(values)


class NotFit(ValueError):
    """A value does not fit its schema; the text says where and why."""


def reason_of(error: Exception) -> str:
    """Return an error as one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:REASON_MAX]


class _Rows:
    """Decodes value by value, by a function from bytes to a row."""

    def __init__(self, root: Field, types: _Types, read: Callable[[bytes], dict[str, Any]]) -> None:
        self.type = types.struct(root)
        self._read = read

    def decode(self, values: Iterable[bytes | None]) -> Columns:
        rows: list[dict[str, Any] | None] = []
        reasons: list[str | None] = []
        for value in values:
            row, reason = None, None
            try:
                if value is None:
                    raise NotFit("the value is null")
                row = self._read(value)
            except Exception as error:  # A library meets bytes of strangers: any error is a reason.
                reason = reason_of(error)
            rows.append(row)
            reasons.append(reason)
        return _column(rows, reasons, self.type)


def _column(
    rows: Sequence[dict[str, Any] | None], reasons: list[str | None], type: pa.StructType
) -> Columns:
    """Return rows as a column; a row with a number that its type cannot hold gets a reason."""
    try:
        return Columns(pa.array(rows, type), reasons)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        pass
    parts: list[pa.StructArray] = []
    told = list(reasons)
    for at, row in enumerate(rows):
        try:
            parts.append(pa.array([row], type))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            parts.append(pa.nulls(1, type))
            told[at] = reason_of(error)
    return Columns(pa.concat_arrays(parts), told)


class _Types:
    """The Arrow types of a format's kinds."""

    def __init__(self, kinds: dict[str, pa.DataType]) -> None:
        self._kinds = kinds

    def struct(self, root: Field) -> pa.StructType:
        if root.kind == RECORD:
            return self.of(root)
        return pa.struct([pa.field(VALUE, self.of(root))])

    def of(self, field: Field) -> pa.DataType:
        if field.kind == RECORD:
            if not field.fields:
                raise BadSchema(f"{field.name or 'the value'}: a column needs a field")
            return pa.struct([pa.field(one.name, self.of(one)) for one in field.fields])
        if field.kind == ARRAY:
            return pa.list_(self.of(field.fields[0]))
        if field.kind == MAP:
            return pa.map_(pa.string(), self.of(field.fields[0]))
        if field.kind == UNION:
            branch = only_branch(field)
            return pa.string() if branch is None else self.of(branch)
        if field.detail.startswith("decimal("):
            precision, scale = map(int, field.detail[8:-1].split(","))
            if precision > 38:
                raise BadSchema(f"{field.name}: a decimal has at most 38 digits in a column")
            return pa.decimal128(precision, scale)
        return self._kinds.get(field.detail) or self._kinds.get(field.kind, pa.string())


def only_branch(union: Field) -> Field | None:
    """Return the one branch of a union beside null; None if there are several."""
    branches = [one for one in union.fields if one.kind != "null"]
    return branches[0] if len(branches) == 1 else None


TIME = pa.timestamp("us", tz="UTC")
LOCAL_TIME = pa.timestamp("us")
AVRO = _Types(
    {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "fixed": pa.binary(),
        "date": pa.date32(),
        "time-millis": pa.int64(),
        "time-micros": pa.int64(),
        "timestamp-millis": TIME,
        "timestamp-micros": TIME,
        "local-timestamp-millis": LOCAL_TIME,
        "local-timestamp-micros": LOCAL_TIME,
        "uuid": pa.string(),
    }
)
JSON = _Types({"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64()})
PROTOBUF = _Types(
    {
        **dict.fromkeys(("int32", "sint32", "sfixed32"), pa.int32()),
        **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), pa.int64()),
        **dict.fromkeys(("uint64", "fixed64"), pa.decimal128(20, 0)),
        "double": pa.float64(),
        "float": pa.float32(),
        "bool": pa.bool_(),
        "bytes": pa.binary(),
    }
)

Convert = Callable[[Any], Any]


def _plain(value: Any) -> Any:
    return value


def _microseconds(value: Any) -> int | None:
    """Return a time of day as microseconds since midnight."""
    if value is None:
        return None
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return int(seconds * 10**6 + value.microsecond)


def _text(value: Any) -> str | None:
    """Return a value of a union of several types as JSON text."""
    if value is None:
        return None
    return json.dumps(value, default=_as_text, sort_keys=True)


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def converter(field: Field) -> Convert:
    """Return what turns a library's value into one that Arrow takes."""
    if field.kind == RECORD:
        below = [(one.name, converter(one)) for one in field.fields]
        return lambda value: (
            None if value is None else {name: make(value.get(name)) for name, make in below}
        )
    if field.kind in (ARRAY, MAP):
        item = converter(field.fields[0])
        if field.kind == ARRAY:
            return lambda value: None if value is None else [item(one) for one in value]
        return lambda value: None if value is None else [(k, item(v)) for k, v in value.items()]
    if field.kind == UNION:
        branch = only_branch(field)
        return _text if branch is None else converter(branch)
    if field.kind == "any":
        return _text
    if field.kind == "integer":
        return lambda value: None if value is None else int(value)
    if field.detail == "uuid":
        return lambda value: None if value is None else str(value)
    if field.detail in ("time-millis", "time-micros"):
        return _microseconds
    return _plain


def _row(root: Field) -> Callable[[Any], dict[str, Any]]:
    convert = converter(root)
    if root.kind == RECORD:
        return convert
    return lambda value: {VALUE: convert(value)}


def _avro(schema: Schema, root: Field, written: Schema) -> Callable[[bytes], dict[str, Any]]:
    from fastavro import parse_schema, schemaless_reader

    _check_items(written.parse(), [])
    writer, reader = parse_schema(json.loads(written.data)), None
    if written != schema:
        reader = parse_schema(json.loads(schema.data))
    row = _row(root)

    def read(value: bytes) -> dict[str, Any]:
        file = io.BytesIO(value)
        try:
            found = schemaless_reader(file, writer, reader)
        except EOFError:
            raise NotFit(f"the value ends after {len(value)} bytes, in a field") from None
        if file.tell() != len(value):
            raise NotFit(f"{len(value) - file.tell()} bytes follow the value")
        return row(found)

    return read


def _check_items(field: Field, path: list[str]) -> None:
    """Raise `BadSchema` for arrays whose items take no bytes: a value of nine bytes could claim so
    many of them that no memory holds them.
    """
    for child in field.fields:
        below = [*path, "[]" if field.kind == ARRAY else child.name]
        if field.kind == ARRAY and _takes_no_bytes(child):
            raise BadSchema(f"{join(below)}: an item takes no bytes, so no value bounds the array")
        _check_items(child, below)


def _takes_no_bytes(field: Field) -> bool:
    if field.kind == RECORD:
        return all(_takes_no_bytes(one) for one in field.fields)
    return field.kind == "null" or (field.kind == "fixed" and field.bounds == (("size", 0),))


def _json(schema: Schema, root: Field) -> Callable[[bytes], dict[str, Any]]:
    from jsonschema.exceptions import best_match

    from weir.schema.json_schema import validator_of

    text = json.loads(schema.data)
    validator = validator_of(text)(text)
    row = _row(root)

    def refuse(word: str) -> None:
        raise NotFit(f"{word} is not JSON")

    def read(value: bytes) -> dict[str, Any]:
        try:
            found = json.loads(value, parse_constant=refuse)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise NotFit(f"the value is not JSON: {error}") from None
        if (wrong := best_match(validator.iter_errors(found))) is not None:
            path = wrong.json_path.removeprefix("$").removeprefix(".") or "the value"
            raise NotFit(f"{path}: {wrong.message}")
        return row(found)

    return read


def _protobuf(schema: Schema) -> Callable[[bytes], dict[str, Any]]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(schema.data).file:
        pool.Add(file)
    of = GetMessageClass(pool.FindMessageTypeByName(schema.parse().type_name))

    def read(value: bytes) -> dict[str, Any]:
        try:
            message = of.FromString(value)
        except DecodeError as error:
            raise NotFit(f"the value is no {of.DESCRIPTOR.full_name}: {error}") from None
        if missing := message.FindInitializationErrors():
            raise NotFit(f"{missing[0]}: it is required, and absent")
        return _message(message)

    return read


def _message(message: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            value = getattr(message, field.name)
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                of = field.message_type.fields_by_name["value"]
                row[field.name] = [{"key": k, "value": _scalar(of, value[k])} for k in value]
            else:
                row[field.name] = [_scalar(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = _scalar(field, getattr(message, field.name))
    return row


def _scalar(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _message(value)
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return str(value) if symbol is None else symbol.name
    if field.cpp_type == field.CPPTYPE_UINT64:
        return Decimal(value)
    return value


class _ArrowRows:
    """Decodes record batches of one row."""

    def __init__(self, schema: Schema, written: Schema) -> None:
        self._written = pa.ipc.read_schema(pa.BufferReader(written.data))
        for field in self._written:
            if has_dictionary(field.type):
                raise BadSchema(f"{field.name}: a value alone carries no dictionary: use a string")
        self._fields = pa.ipc.read_schema(pa.BufferReader(schema.data))
        self.type = pa.struct(
            [pa.field(one.name, wider(one.type, one.name)) for one in self._fields]
        )

    def decode(self, values: Iterable[bytes | None]) -> Columns:
        rows: list[pa.StructArray] = []
        reasons: list[str | None] = []
        for value in values:
            try:
                rows.append(self._read(value))
                reasons.append(None)
            except Exception as error:  # A library meets bytes of strangers: any error is a reason.
                rows.append(pa.nulls(1, self.type))
                reasons.append(reason_of(error))
        return Columns(pa.concat_arrays(rows) if rows else pa.nulls(0, self.type), reasons)

    def _read(self, value: bytes | None) -> pa.StructArray:
        if value is None:
            raise NotFit("the value is null")
        batch = pa.ipc.read_record_batch(pa.py_buffer(value), self._written)
        if batch.num_rows != 1:
            raise NotFit(f"the record batch has {batch.num_rows} rows, and a value is one")
        batch.validate(full=True)
        columns = []
        for field, to in zip(self._fields, self.type, strict=True):
            column = pa.nulls(1, to.type)
            if field.name in batch.schema.names:
                options = pc.CastOptions(to.type, allow_time_truncate=True)
                column = pc.cast(batch.column(field.name), options=options)
            if not field.nullable and column.null_count:
                raise NotFit(f"{field.name}: it is null, and may not be")
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(self.type))


def has_dictionary(type: pa.DataType) -> bool:
    """Return whether a type is a dictionary or has one in it."""
    if pa.types.is_dictionary(type):
        return True
    return any(has_dictionary(type.field(n).type) for n in range(type.num_fields))


def wider(type: pa.DataType, name: str) -> pa.DataType:
    """Return the type that Spark has for an Arrow type. Raises `BadSchema` if it has none."""
    if type in WIDER:
        return WIDER[type]
    if pa.types.is_struct(type):
        return pa.struct([pa.field(one.name, wider(one.type, one.name)) for one in type])
    if pa.types.is_map(type):
        return pa.map_(wider(type.key_type, name), wider(type.item_type, name))
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        return pa.list_(wider(type.value_type, name))
    if pa.types.is_fixed_size_binary(type):
        return pa.binary()
    if pa.types.is_timestamp(type):
        return pa.timestamp("us", tz=type.tz and "UTC")
    if pa.types.is_decimal(type) and type.precision <= 38:
        return pa.decimal128(type.precision, type.scale)
    raise BadSchema(f"{name}: Spark has no column for {type}")


WIDER = {
    **{
        one: one
        for one in (
            pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
            pa.string(), pa.binary(), pa.date32(),
        )
    },
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}  # fmt: skip
