"""Schemas of a topic's values, parsed into the one form that brokers compare.

Each format needs its library, which `weir-mq[schema]` installs; a library is imported when its
format is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

import msgspec

from weir.errors import BadRequest, MissingLibrary
from weir.schema.fields import SCHEMA_BYTES_MAX, BadSchema, Field, Format, check_size

#: By the suffix of a file, the format of the schema in it.
SUFFIXES: dict[str, Format] = {
    ".json": "json",
    ".avsc": "avro",
    ".pb": "protobuf",
    ".desc": "protobuf",
    ".arrow": "arrow",
}


class Schema(msgspec.Struct, frozen=True):
    """A schema as it was written: its format, its bytes, and the message if it is Protobuf."""

    format: Format
    data: bytes
    message: str = ""

    @classmethod
    def read(cls, path: Path, message: str = "", format: str = "") -> Schema:
        """Read a file. Without a `format`, the suffix names it (`SUFFIXES`).

        Raises `BadRequest` for another suffix or format, `BadSchema` for a file of more than
        `SCHEMA_BYTES_MAX` bytes, and `OSError`.
        """
        format = format or SUFFIXES.get(path.suffix, "")
        if not format:
            raise BadRequest(f"{path}: say that it is json, avro, protobuf or arrow")
        if format not in get_args(Format):
            raise BadRequest(f"format={format!r}: give json, avro, protobuf or arrow")
        with path.open("rb") as file:
            data = file.read(SCHEMA_BYTES_MAX + 1)
        if len(data) > SCHEMA_BYTES_MAX:
            raise BadSchema(f"{path} has more than {SCHEMA_BYTES_MAX:,} bytes")
        return cls(cast(Format, format), data, message)

    def parse(self) -> Field:
        """Return its fields. Raises `BadSchema` and `MissingLibrary`."""
        return parse(self.format, self.data, self.message)


def parse(format: Format, data: bytes, message: str = "") -> Field:
    """Return the fields of a schema of at most `SCHEMA_BYTES_MAX` bytes.

    `data` is the JSON text of a JSON Schema or an Avro schema, a Protobuf FileDescriptorSet
    (`protoc --include_imports --descriptor_set_out`), or an Arrow schema as an IPC message.
    `message` is the full name of the Protobuf message; it may be left out if the last file has
    only one.

    Raises `BadSchema`, which names the field, for what is not a schema or not supported, and
    `MissingLibrary`.
    """
    if format not in get_args(Format):
        raise BadRequest(f"format={format!r}: give json, avro, protobuf or arrow")
    if message and format != "protobuf":
        raise BadRequest(f"message={message!r}: only a Protobuf schema has several messages")
    if len(data) > SCHEMA_BYTES_MAX:
        raise BadSchema(f"the schema has {len(data):,} bytes, at most {SCHEMA_BYTES_MAX:,}")
    try:
        root = _parser(format)(data, message)
    except RecursionError:
        raise BadSchema("the schema is nested too deeply to read: flatten it") from None
    check_size(root)
    return root


def _parser(format: Format) -> Callable[[bytes, str], Field]:
    try:
        match format:
            case "json":
                from weir.schema.json_schema import parse as found
            case "avro":
                from weir.schema.avro import parse as found
            case "protobuf":
                from weir.schema.protobuf import parse as found
            case "arrow":
                from weir.schema.arrow import parse as found
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"{error.name} is not installed: pip install 'weir-mq[schema]'"
        ) from None
    return found
