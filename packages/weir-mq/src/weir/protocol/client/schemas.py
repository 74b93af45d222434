"""Requests and replies about the schemas of topics.

A topic's schema has versions, numbered from 1. The version that a batch's header names is that of
all values in the batch. Brokers never parse values.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from weir.errors import BadName, IncompatibleSchema, LevelTooLow, UnknownSchema, UnknownTopic
from weir.model.ids import Natural
from weir.model.limits import NAME_CHARACTERS_MAX
from weir.protocol.client.declaration import (
    Control,
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)
from weir.schema.fields import SCHEMA_BYTES_MAX, TREE_BYTES_MAX

Name = Annotated[str, Meta(max_length=4 * NAME_CHARACTERS_MAX)]
Text = Annotated[bytes, Meta(max_length=SCHEMA_BYTES_MAX)]


class SchemaChanged(ControlReply, frozen=True, array_like=True):
    """The number of the version that was added to the topic of this id, or that the schema has
    already, or of the newest one; whether it `is_new`; the rule of the topic, and whether clients
    check values before they send.
    """

    topic: Natural
    number: Natural
    is_new: bool
    rule: str
    checked: bool


class AddSchema(ControlRequest, frozen=True, array_like=True):
    """Add a version to a topic's schema. A schema that is a version already keeps its number.

    `format` is json, avro, protobuf or arrow; `data` the schema as it was written, and `message`
    the name of the message of a Protobuf schema. `fields` is the schema's tree of fields, encoded
    by `weir.schema.fields.encode`: the registry's leader compares it with that of the version
    before, by the topic's rule.
    """

    declaration = Declaration(
        40,
        Scope.REGISTRY,
        SchemaChanged,
        Retry.SAME,
        rights=(Right("alter", Resource.TOPIC),),
        refusals=(UnknownTopic, BadName, IncompatibleSchema, LevelTooLow),
        methods=("Schemas.add",),
    )

    name: str
    format: Name
    data: Text
    fields: Annotated[bytes, Meta(max_length=TREE_BYTES_MAX)]
    message: Name = ""


class SetSchemaRule(ControlRequest, frozen=True, array_like=True):
    """Set what new versions of a topic's schema must keep to: none, backward, forward or full; and
    whether clients check values before they send. None leaves a setting as it is.
    """

    declaration = Declaration(
        41,
        Scope.REGISTRY,
        SchemaChanged,
        Retry.SAME,
        rights=(Right("alter", Resource.TOPIC),),
        refusals=(UnknownTopic, BadName, LevelTooLow),
        methods=("Schemas.set_rule",),
    )

    name: str
    rule: Name | None = None
    checked: bool | None = None


class SchemaRow(Control, frozen=True, array_like=True):
    """A version of a topic's schema, as it was written; added at `added_ms`, in ms since 1970."""

    number: Natural
    format: str
    message: str
    data: bytes
    added_ms: Natural


class SchemaList(ControlReply, frozen=True, array_like=True):
    """Versions of a topic's schema, by number; if there are `more`, ask again after the last. The
    `newest` has that number; 0: there is none.
    """

    topic: Natural
    newest: Natural
    rule: str
    checked: bool
    versions: list[SchemaRow]
    more: bool = False


class ListSchemas(ControlRequest, frozen=True, array_like=True):
    """Ask for the versions of a topic's schema that are numbered `first` or higher, at most `count`
    (0: as many as one reply holds).
    """

    declaration = Declaration(
        43,
        Scope.COPY,
        SchemaList,
        Retry.READ,
        rights=(Right("describe", Resource.TOPIC),),
        refusals=(UnknownTopic, BadName, UnknownSchema),
        methods=("Schemas.get", "Schemas.versions"),
    )

    name: str
    first: Natural = 1
    count: Natural = 0


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (AddSchema, SetSchemaRule, ListSchemas)
