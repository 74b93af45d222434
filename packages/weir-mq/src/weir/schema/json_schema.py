"""Parses a JSON Schema into fields.

What describes the shape of a value is supported: types, properties, items, lists of values, bounds,
local references. What describes conditions between values is refused by its keyword.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from weir.schema.compatibility import LEAST, MOST
from weir.schema.fields import ARRAY, MAP, RECORD, UNION, BadSchema, Field, Path

NEWEST = "https://json-schema.org/draft/2020-12/schema"
NOTES = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"}
    | {"examples", "deprecated", "readOnly", "writeOnly"}
)
BOUNDS = LEAST | MOST | {"multipleOf", "uniqueItems"}
SHAPES = frozenset(
    {"$ref", "type", "properties", "required", "additionalProperties", "items", "enum", "const"}
    | {"anyOf", "oneOf", "format"}
)
#: What an untyped schema's keywords say about its type.
IMPLIED = {"properties": "object", "additionalProperties": "object", "items": "array"}


def parse(data: bytes, message: str = "") -> Field:
    """Return the fields of a JSON Schema's text. Raises `BadSchema`."""
    try:
        text = json.loads(data)
    except ValueError as error:
        raise BadSchema(f"the JSON schema is not JSON: {error}") from None
    if not isinstance(text, dict):
        raise BadSchema('a JSON schema is an object, as {"type": "object"}')
    if "$schema" in text and validator_for(text, default=None) is None:
        raise BadSchema(f"$schema {text['$schema']!r} is not a known draft: use {NEWEST}")
    try:
        validator_of(text).check_schema(text)
    except SchemaError as error:
        place = "/".join(map(str, error.absolute_path)) or "the schema"
        raise BadSchema(f"{place}: {error.message[:200]}") from None
    return _Parser(text).field(text, "")


def validator_of(schema: Mapping[str, Any]) -> Any:
    """Return the library's validator class of the draft that a schema names, or of the newest."""
    return validator_for(schema, default=validator_for({"$schema": NEWEST}))


class _Parser:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._path = Path()
        #: References that are being followed, to find one that leads to itself.
        self._open: list[str] = []

    def field(self, schema: Any, name: str, optional: bool = False) -> Field:
        if schema is True:
            return Field(name, "any", optional)
        if schema is False:
            raise BadSchema(f"{self._path}: false admits no value: leave the field out")
        if "$ref" in schema:
            return self._reference(schema, name, optional)
        self._check_keywords(schema)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._branches(word, schema, name, optional)
        kinds = schema.get("type") or self._implied(schema)
        if isinstance(kinds, list):
            if len(kinds) == 1:
                return self._typed(schema, kinds[0], name, optional)
            branches = tuple(self._branch(n, {**schema, "type": k}) for n, k in enumerate(kinds, 1))
            return Field(name, UNION, optional, branches)
        return self._typed(schema, kinds, name, optional)

    def _implied(self, schema: Mapping[str, Any]) -> str:
        for word, kind in IMPLIED.items():
            if word in schema:
                raise BadSchema(f'{self._path}: add "type": "{kind}": without it any value fits')
        return "any"

    def _typed(self, schema: Mapping[str, Any], kind: str, name: str, optional: bool) -> Field:
        bounds = tuple(sorted((word, float(schema[word])) for word in BOUNDS & schema.keys()))
        symbols = self._symbols(schema)
        if kind == "object":
            return self._object(schema, name, optional, bounds)
        if kind == "array":
            item = self._below("[]", schema.get("items", True), optional=False)
            return Field(name, ARRAY, optional, (item,), bounds=bounds, symbols=symbols)
        detail = schema.get("format", "")
        return Field(name, kind, optional, bounds=bounds, symbols=symbols, detail=detail)

    def _object(
        self,
        schema: Mapping[str, Any],
        name: str,
        optional: bool,
        bounds: tuple[tuple[str, float], ...],
    ) -> Field:
        others = schema.get("additionalProperties", True)
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if isinstance(others, dict):
            if properties:
                raise BadSchema(
                    f"{self._path}: give properties or a schema as additionalProperties, not both"
                )
            value = self._below("{}", others, optional=False)
            return Field(name, MAP, optional, (value,), bounds=bounds)
        for one in required:
            if one not in properties:
                raise BadSchema(f"{self._path}: {one!r} is required and is no property")
        fields = tuple(
            self._below(key, value, optional=key not in required)
            for key, value in properties.items()
        )
        return Field(name, RECORD, optional, fields, bounds=bounds, closed=others is False)

    def _symbols(self, schema: Mapping[str, Any]) -> tuple[str, ...]:
        values = [schema["const"]] if "const" in schema else schema.get("enum", [])
        return tuple(sorted(json.dumps(one, sort_keys=True) for one in values))

    def _branches(self, word: str, schema: Mapping[str, Any], name: str, optional: bool) -> Field:
        beside = schema.keys() - NOTES - {word}
        if beside:
            raise BadSchema(f"{self._path}: {min(beside)} beside {word}: put it into each branch")
        branches = tuple(self._branch(n, one) for n, one in enumerate(schema[word], 1))
        return Field(name, UNION, optional, branches)

    def _branch(self, number: int, schema: Any) -> Field:
        return self._below(f"|{number}", schema, optional=False)

    def _reference(self, schema: Mapping[str, Any], name: str, optional: bool) -> Field:
        target = schema["$ref"]
        if beside := schema.keys() - NOTES - {"$ref"}:
            raise BadSchema(f"{self._path}: {min(beside)} beside $ref: put it into the definition")
        if not target.startswith("#"):
            raise BadSchema(
                f"{self._path}: $ref {target!r} is not in this schema: copy it to $defs"
            )
        if target in self._open:
            raise BadSchema(f"{self._path}: {target} contains itself: a value needs an end")
        found: Any = self._root
        for step in target.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                raise BadSchema(f"{self._path}: $ref {target!r} leads nowhere")
            found = found[step]
        if not isinstance(found, dict | bool):
            raise BadSchema(f"{self._path}: $ref {target!r} leads to what is no schema")
        self._open.append(target)
        field = self.field(found, name, optional)
        self._open.pop()
        return field

    def _below(self, name: str, schema: Any, optional: bool) -> Field:
        self._path.enter(name)
        own = "" if name in ("[]", "{}") or name[:1] == "|" else name
        field = self.field(schema, own, optional)
        self._path.leave()
        return field

    def _check_keywords(self, schema: Mapping[str, Any]) -> None:
        if others := schema.keys() - NOTES - BOUNDS - SHAPES:
            raise BadSchema(f"{self._path}: {min(others)} is not supported: leave it out")
