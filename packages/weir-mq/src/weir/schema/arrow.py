"""Parses an Arrow schema, an IPC message, into fields."""

from __future__ import annotations

import pyarrow as pa

from weir.schema.fields import ARRAY, RECORD, BadSchema, Field, Path


def parse(data: bytes, message: str = "") -> Field:
    """Return the fields of an Arrow schema (`schema.serialize()`). Raises `BadSchema`."""
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise BadSchema(f"this is not an Arrow schema as an IPC message: {error}") from None
    if len(set(schema.names)) != len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise BadSchema(f"{twice}: two columns have this name: rename one")
    path = Path()
    return Field("", RECORD, fields=tuple(_field(one, one.name, path) for one in schema))


def _field(field: pa.Field, name: str, path: Path) -> Field:
    path.enter(name or "[]")
    found = _typed(field.type, name, field.nullable, path)
    path.leave()
    return found


def _typed(kind: pa.DataType, name: str, optional: bool, path: Path) -> Field:
    if pa.types.is_dictionary(kind):
        return _typed(kind.value_type, name, optional, path)
    if pa.types.is_struct(kind):
        fields = tuple(_field(one, one.name, path) for one in kind)
        names = [one.name for one in fields]
        if len(set(names)) != len(names):
            raise BadSchema(f"{path}: two fields of the struct have one name: rename one")
        return Field(name, RECORD, optional, fields)
    if pa.types.is_map(kind):
        pair = (_field(kind.key_field, "key", path), _field(kind.item_field, "value", path))
        return Field(name, ARRAY, optional, (Field("", RECORD, fields=pair),))
    if pa.types.is_fixed_size_list(kind):
        item = _field(kind.value_field, "", path)
        return Field(name, ARRAY, optional, (item,), detail=f"of {kind.list_size}")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return Field(name, ARRAY, optional, (_field(kind.value_field, "", path),))
    if pa.types.is_nested(kind):
        raise BadSchema(f"{path}: {kind} is not supported: use a struct")
    word, _, detail = str(kind).partition("[")
    word, _, rest = word.partition("(")
    return Field(name, word, optional, detail=detail.removesuffix("]") or rest.removesuffix(")"))
