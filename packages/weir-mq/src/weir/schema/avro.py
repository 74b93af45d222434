"""Parses an Avro schema (Avro 1.12) into fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from weir.schema.fields import ARRAY, MAP, RECORD, UNION, BadSchema, Field, Path

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def parse(data: bytes, message: str = "") -> Field:
    """Return the fields of an Avro schema's JSON text. Raises `BadSchema`."""
    try:
        text = json.loads(data)
    except ValueError as error:
        raise BadSchema(f"the Avro schema is not JSON: {error}") from None
    named: dict[str, Any] = {}
    try:
        # A bare name parses to itself; the parser wants to see what is no string as an object.
        parsed = parse_schema(text, named)
    except (
        SchemaParseException,
        UnknownType,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
    ) as e:
        raise BadSchema(f"the Avro schema is not valid: {e or type(e).__name__}") from None
    return _Parser(named).field(parsed, "")


class _Parser:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._path = Path()
        #: Named types that are being read, to find one that contains itself.
        self._open: list[str] = []

    def field(
        self, schema: Any, name: str, optional: bool = False, aliases: tuple[str, ...] = ()
    ) -> Field:
        if isinstance(schema, list):
            if not schema:
                raise BadSchema(f"{self._path}: a union needs a branch")
            fields = tuple(self._below(f"|{n}", one) for n, one in enumerate(schema, 1))
            return Field(name, UNION, optional, fields, aliases=aliases)
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return Field(name, schema, optional, aliases=aliases)
            schema = self._named[schema]
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.field(kind, name, optional, aliases)
        if kind in ("record", "error"):
            return self._record(schema, name, optional, aliases)
        detail = _logical(schema)
        if kind == "array":
            return Field(
                name, ARRAY, optional, (self._below("[]", schema["items"]),), aliases=aliases
            )
        if kind == "map":
            return Field(
                name, MAP, optional, (self._below("{}", schema["values"]),), aliases=aliases
            )
        if kind == "enum":
            return Field(
                name,
                "enum",
                optional,
                type_name=schema["name"],
                symbols=tuple(schema["symbols"]),
                aliases=aliases,
                closed="default" not in schema,
            )
        if kind == "fixed":
            bounds = (("size", schema["size"]),)
            named = schema["name"]
            return Field(
                name,
                "fixed",
                optional,
                type_name=named,
                detail=detail,
                bounds=bounds,
                aliases=aliases,
            )
        if kind in PRIMITIVES:
            return Field(name, kind, optional, detail=detail, aliases=aliases)
        return self.field(kind, name, optional, aliases)

    def _record(
        self, schema: Mapping[str, Any], name: str, optional: bool, aliases: tuple[str, ...]
    ) -> Field:
        type_name = schema["name"]
        if type_name in self._open:
            raise BadSchema(f"{self._path}: {type_name} contains itself: a value needs an end")
        self._open.append(type_name)
        fields = tuple(
            self._below(one["name"], one["type"], "default" in one, tuple(one.get("aliases", ())))
            for one in schema["fields"]
        )
        self._open.pop()
        return Field(name, RECORD, optional, fields, type_name=type_name, aliases=aliases)

    def _below(
        self, name: str, schema: Any, optional: bool = False, aliases: tuple[str, ...] = ()
    ) -> Field:
        self._path.enter(name)
        found = self.field(schema, "" if name[0] in "[{|" else name, optional, aliases)
        self._path.leave()
        return found


def _logical(schema: Mapping[str, Any]) -> str:
    name = schema.get("logicalType", "")
    if name == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    return str(name)
