"""The fields of a schema, in one form for all formats.

A client parses a schema with a library of its format and reduces it to a tree of `Field`. Brokers
store and compare that tree, so they need no schema library, and replicas of different releases
never disagree about a schema. `weir.schema.compatibility` compares trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import Struct

from weir.errors import BadRequest

#: The formats that a schema may have.
Format = Literal["json", "avro", "protobuf", "arrow"]

#: A schema's text, or its bytes.
SCHEMA_BYTES_MAX = 64 << 10
#: Types in types; the root is at depth 0.
DEPTH_MAX = 32
#: Fields of the whole tree. A named type counts wherever it is used.
FIELDS_MAX = 4_096
#: The encoded tree.
TREE_BYTES_MAX = 512 << 10

#: The kinds that hold other fields; every other kind is the name of a type of its format.
RECORD, ARRAY, MAP, UNION = "record", "array", "map", "union"


class BadSchema(BadRequest):
    """A schema that weir does not accept; the text names the field and what to change."""


class Field(Struct, frozen=True, array_like=True):
    """One field of a schema and what it holds.

    `name`: of the field in its record; empty for the root, an array's item, a map's value and a
    union's branch. `kind`: `RECORD`, `ARRAY`, `MAP`, `UNION`, or a type of the format. `optional`:
    a reader copes without the field (Avro: it has a default; Arrow: it may be null; Protobuf: it is
    not required; JSON: the object may lack it). `fields`: of a record; the one item of an array or
    value of a map; the branches of a union. `number`: of a Protobuf field. `type_name`: of a named
    type. `detail`: what the type says beside its kind, as a logical type or a size. `symbols`: of
    an enum. `aliases`: earlier names of an Avro field. `bounds`: limits of JSON values by keyword.
    `closed`: a JSON object admits no other fields; an enum admits no other symbols.
    """

    name: str
    kind: str
    optional: bool = False
    fields: tuple[Field, ...] = ()
    number: int = 0
    type_name: str = ""
    detail: str = ""
    symbols: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    bounds: tuple[tuple[str, float], ...] = ()
    closed: bool = False


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Field)


def encode(root: Field) -> bytes:
    """Return the tree as JSON: the same bytes for equal trees.

    Raises `BadSchema` if the tree is over a limit.
    """
    check_size(root)
    data = _ENCODER.encode(root)
    if len(data) > TREE_BYTES_MAX:
        raise BadSchema(f"the schema's fields take {len(data):,} bytes, at most {TREE_BYTES_MAX:,}")
    return data


def decode(data: bytes) -> Field:
    """Return the tree that `encode` wrote. Raises `BadSchema` for other bytes."""
    if len(data) > TREE_BYTES_MAX:
        raise BadSchema(f"the schema's fields take {len(data):,} bytes, at most {TREE_BYTES_MAX:,}")
    try:
        root = _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSchema(f"these are not the fields of a schema: {error}") from None
    check_size(root)
    return root


def check_size(root: Field) -> None:
    """Raise `BadSchema` if a tree is deeper than `DEPTH_MAX` or larger than `FIELDS_MAX`."""
    count = 0
    level: list[Field] = [root]
    for _depth in range(DEPTH_MAX + 1):
        count += len(level)
        if count > FIELDS_MAX:
            raise BadSchema(f"the schema has more than {FIELDS_MAX:,} fields: split it")
        level = [child for field in level for child in field.fields]
        if not level:
            return
    name = f'"{level[0].name}"' if level[0].name else f"a type of kind {level[0].kind}"
    raise BadSchema(f"{name} is nested deeper than {DEPTH_MAX} types: flatten the schema")


class Path:
    """Where a parser stands in a schema: it bounds depth and count while the tree grows.

    The bounds hold before memory is spent: named types that use each other grow exponentially.
    """

    def __init__(self) -> None:
        """Stand at the root."""
        self._names: list[str] = []
        self._count = 0

    def __str__(self) -> str:
        """Return the place as `order.items[].price`."""
        return join(self._names)

    def enter(self, name: str) -> None:
        """Go one field, item ("[]"), value ("{}") or branch ("|1") deeper. Raises `BadSchema`."""
        self._names.append(name)
        self._count += 1
        if len(self._names) > DEPTH_MAX:
            raise BadSchema(f"{self}: nested deeper than {DEPTH_MAX} types: flatten the schema")
        if self._count >= FIELDS_MAX:
            raise BadSchema(f"{self}: the schema has more than {FIELDS_MAX:,} fields: split it")

    def leave(self) -> None:
        """Go back to where the last `enter` was called."""
        self._names.pop()


def join(names: list[str]) -> str:
    """Return a path as text: names with dots between, "[]" and "{}" as suffixes."""
    text = "".join(_joined(names)).removeprefix(".")
    return text or "the value"


def _joined(names: list[str]) -> Iterator[str]:
    for name in names:
        if name in ("[]", "{}"):
            yield name
        elif name.startswith("|"):
            yield f"({name[1:]})"
        else:
            yield f".{name}"
