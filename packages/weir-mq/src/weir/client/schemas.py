"""Schemas of topics: add versions, look them up, and check values by them before they are sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, cast

import msgspec

from weir.client.connection.network_client import NetworkClient
from weir.errors import BadValue, MissingLibrary, UnknownSchema
from weir.protocol.client import schemas as s
from weir.schema import Schema
from weir.schema.fields import encode

if TYPE_CHECKING:
    from weir.schema.columns import Decoder
    from weir.schema.compatibility import Rule
    from weir.schema.fields import Format

#: Which version of a topic's schema a producer's values have: the newest one, or a number.
SchemaVersion = int | Literal["newest"]


def number_of(version: SchemaVersion | None) -> int:
    """Return the number of a version, 0 for the newest."""
    return version if isinstance(version, int) else 0


class TopicSchema(msgspec.Struct, frozen=True):
    """Version `number` of a topic's schema; added at `added_ms`, in ms since 1970."""

    number: int
    schema: Schema
    added_ms: int


class TopicSchemas(msgspec.Struct, frozen=True):
    """All versions of a topic's schema, by number; the rule that new ones keep to; and whether
    clients check values before they send.
    """

    versions: tuple[TopicSchema, ...]
    rule: Rule
    checked: bool


class Schemas:
    """The schemas of a system's topics."""

    __slots__ = ("_network",)

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client, whose `schemas` this is."""
        self._network = network

    async def add(self, topic: str, schema: Schema) -> TopicSchema:
        """Add a version to a topic's schema, as `Schema.read` gives it from a file; return it. One
        that is a version already keeps its number.

        Raises `BadSchema` for what is no schema, `IncompatibleSchema` where the topic's rule does
        not let it follow the version before, `LevelTooLow`, `MissingLibrary` without the extra
        `schema`, and `UnknownTopic`.
        """
        fields = encode(schema.parse())
        request = s.AddSchema(topic, schema.format, schema.data, fields, schema.message)
        added = await self._network.request(request, s.SchemaChanged)
        return await self.get(topic, added.number)

    async def get(self, topic: str, number: int = 0) -> TopicSchema:
        """Return a version of a topic's schema; 0: the newest. Raises `UnknownSchema`."""
        found = await self._list(topic, number or 1, 1)
        if not number and found.newest > 1:
            found = await self._list(topic, found.newest, 1)
        if not found.versions:
            raise UnknownSchema(
                f"topic {topic} has no schema: add one by `weir schema add {topic} FILE`"
            )
        return _version(found.versions[0])

    async def versions(self, topic: str) -> TopicSchemas:
        """Return all versions of a topic's schema, and its rule."""
        found = await self._list(topic, 1, 0)
        rows = [*found.versions]
        while found.more:
            found = await self._list(topic, rows[-1].number + 1, 0)
            rows += found.versions
        return TopicSchemas(tuple(map(_version, rows)), cast("Rule", found.rule), found.checked)

    async def set_rule(
        self, topic: str, rule: Rule | None = None, *, checked: bool | None = None
    ) -> None:
        """Set the rule for new versions: "backward" (consumers with the new version read values of
        the one before; the default), "forward" (the other way round), "full" (both) or "none".

        `checked`: producers check each value by its schema before they send it, and those that name
        no version use the newest. None leaves a setting as it is. Raises `LevelTooLow`,
        `UnknownTopic`.
        """
        await self._network.request(s.SetSchemaRule(topic, rule, checked), s.SchemaChanged)

    async def _list(self, topic: str, first: int, count: int) -> s.SchemaList:
        return await self._network.request(s.ListSchemas(topic, first, count), s.SchemaList)


def _version(row: s.SchemaRow) -> TopicSchema:
    schema = Schema(cast("Format", row.format), row.data, row.message)
    return TopicSchema(row.number, schema, row.added_ms)


class ValueChecker:
    """Checks the values of one topic by a version of its schema."""

    __slots__ = ("_decoder", "_number", "_topic")

    def __init__(self, topic: str, number: int, decoder: Decoder) -> None:
        """Check by a `decoder` of version `number`."""
        self._topic = topic
        self._number = number
        self._decoder = decoder

    @classmethod
    async def find(cls, network: NetworkClient, topic: str, number: int) -> ValueChecker:
        """Ask for a version, and get ready to check by it. Raises `UnknownSchema`, and
        `MissingLibrary` without the extra `schema`.
        """
        found = await Schemas(network).get(topic, number)
        return cls(topic, number, _decoder(found.schema))

    def check(self, values: Iterable[bytes | None]) -> None:
        """Raise `BadValue` for the first value that does not fit; nothing is sent then."""
        reasons = self._decoder.decode(values).reasons
        for place, reason in enumerate(reasons):
            if reason is not None:
                where = f"value {place} of {len(reasons):,}" if len(reasons) > 1 else "the value"
                raise BadValue(
                    f"{where} does not fit version {self._number} of the schema of topic "
                    f"{self._topic}, so nothing was sent: {reason}",
                    place,
                )


class Unable:
    """Stands where values are to be checked and cannot be: none is sent."""

    __slots__ = ("_error",)

    def __init__(self, error: MissingLibrary) -> None:
        """Take what is missing."""
        self._error = error

    def check(self, values: Iterable[bytes | None]) -> None:
        """Raise `MissingLibrary`: nothing is sent."""
        raise MissingLibrary(str(self._error)) from None


def _decoder(schema: Schema) -> Decoder:
    from weir.schema.columns import decoder  # imports pyarrow

    return decoder(schema)
