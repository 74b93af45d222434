"""Schemas of topics, through the registry's group.

The leader compares the fields of a new version with those of the version before, by the topic's
rule. Replicas only apply what was decided, so releases that compare otherwise never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, cast, get_args

import msgspec
from msgspec.structs import replace

from weir.broker.records.registry import SchemaRecord, SchemaRuleSet, SchemaVersionAdded
from weir.broker.replica.requests import Proposals
from weir.broker.runtime.outbox import Caller
from weir.errors import (
    BadRequest,
    IncompatibleSchema,
    LevelTooLow,
    Refused,
    TooLarge,
    Unavailable,
    UnknownSchema,
    UnknownTopic,
)
from weir.model.limits import (
    FORMAT_LEVEL_SCHEMAS,
    KIB,
    SCHEMA_VERSIONS_MAX,
    SCHEMAS_BYTES_MAX,
)
from weir.model.topic import Topic
from weir.order.clock import Time
from weir.protocol.client.messages import Reply
from weir.protocol.client.schemas import (
    AddSchema,
    ListSchemas,
    SchemaChanged,
    SchemaList,
    SchemaRow,
    SetSchemaRule,
)
from weir.schema.compatibility import Rule, check
from weir.schema.fields import Format, decode

#: What new versions keep to where nobody said otherwise.
RULE_DEFAULT: Rule = "backward"
#: A list of versions is cut where it gets about so long; a single version is below it.
_PAGE_BYTES = 512 * KIB
#: What a version takes beside its text, about.
_ROW_BYTES = 64


class SchemaVersion(NamedTuple):
    """A version of a schema, as it was written, and when it was added, in ms since 1970."""

    format: str
    message: str
    data: bytes
    added_ms: int


class TopicSchemas(msgspec.Struct, frozen=True):
    """The versions of a topic's schema, numbered from 1, and the `fields` of the newest one."""

    rule: str = RULE_DEFAULT
    checked: bool = False
    versions: tuple[SchemaVersion, ...] = ()
    fields: bytes = b""

    @property
    def newest(self) -> int:
        """The number of the newest version; 0 if there is none."""
        return len(self.versions)

    def number_of(self, *written: str | bytes) -> int:
        """Return the number of the version that was `written` so: format, message and data; 0 if
        there is none.
        """
        for number, one in enumerate(self.versions, 1):
            if one[:3] == written:
                return number
        return 0

    @property
    def size(self) -> int:
        """The bytes of all versions, and of the fields of the newest one."""
        texts = sum(len(one.data) + len(one.message) + _ROW_BYTES for one in self.versions)
        return texts + len(self.fields)

    def encode(self) -> tuple[object, ...]:
        """Return it as MessagePack can hold it."""
        return self.rule, self.checked, self.fields, [tuple(one) for one in self.versions]

    @classmethod
    def decode(cls, row: Any) -> TopicSchemas:
        """Return what `encode` gave."""
        rule, checked, fields, versions = row
        return cls(rule, checked, tuple(SchemaVersion(*one) for one in versions), fields)


NO_SCHEMAS = TopicSchemas()


class Schemas:
    """The schemas of all topics, by the topics' ids. Those of deleted topics are forgotten."""

    __slots__ = ("_of", "size")

    def __init__(self) -> None:
        """Begin empty."""
        self._of: dict[int, TopicSchemas] = {}
        #: The bytes of all versions together.
        self.size = 0

    def __len__(self) -> int:
        return len(self._of)

    def of(self, topic: int) -> TopicSchemas:
        """Return the schemas of a topic; nothing is in them if there are none."""
        return self._of.get(topic, NO_SCHEMAS)

    def items(self) -> Iterator[tuple[int, TopicSchemas]]:
        """Return the topics' ids that have schemas or a rule, and these."""
        return iter(self._of.items())

    def put(self, topic: int, schemas: TopicSchemas) -> None:
        """Let these be the schemas of a topic."""
        self.forget(topic)
        self._of[topic] = schemas
        self.size += schemas.size

    def forget(self, topic: int) -> None:
        """A topic was deleted."""
        before = self._of.pop(topic, None)
        if before is not None:
            self.size -= before.size

    def add(self, record: SchemaVersionAdded) -> TopicSchemas:
        """Apply a new version. Raises `Unavailable` if another was added since it was compared."""
        before = self.of(record.topic)
        if record.number != before.newest + 1:
            raise Unavailable(
                f"another version, {before.newest}, was added meanwhile: add this one again"
            )
        version = SchemaVersion(record.format, record.message, record.data, record.added_ms)
        after = replace(before, versions=(*before.versions, version), fields=record.fields)
        self.put(record.topic, after)
        return after

    def set_rule(self, record: SchemaRuleSet) -> TopicSchemas:
        """Apply a rule."""
        before = self.of(record.topic)
        after = replace(
            before,
            rule=before.rule if record.rule is None else record.rule,
            checked=before.checked if record.checked is None else record.checked,
        )
        self.put(record.topic, after)
        return after

    def check_known(self, topic: Topic, number: int) -> None:
        """Raise `UnknownSchema` unless a topic's schema has a version of this number."""
        newest = self.of(topic.id).newest
        if number > newest:
            have = f"its newest is {newest}" if newest else "it has none"
            raise UnknownSchema(
                f"the schema of topic {topic.full_name} has no version {number}: {have}. Add it "
                f"first: weir schema add {topic.full_name} FILE",
                newest,
            )


class SchemaCatalog(Protocol):
    """What is known of topics."""

    schemas: Schemas

    def by_id(self, topic: int, /) -> Topic | None:
        """Return a topic by its id."""

    @property
    def level(self) -> int:
        """The format level that is written."""


class SchemaLog(Protocol):
    """The registry's log."""

    def propose(self, record: SchemaRecord, /) -> int:
        """Propose an entry; return its index. Raises `Unavailable` where it is not led here."""


class Replies(Protocol):
    """Where the registry's answers go."""

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request."""

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer with a refusal."""


class SchemaRequests:
    """What is asked of the schemas of topics, and what becomes of it when it is committed."""

    __slots__ = ("_catalog", "_outbox", "_proposals", "_time")

    def __init__(self, catalog: SchemaCatalog, outbox: Replies, time: Time, log: SchemaLog) -> None:
        """Change `catalog` by entries of `log`."""
        self._catalog = catalog
        self._outbox = outbox
        self._time = time
        self._proposals: Proposals[SchemaRecord, Caller] = Proposals(log)

    def lose(self, error: Refused) -> None:
        """This node no longer leads: refuse callers that wait for a change."""
        for caller in self._proposals.lose():
            self._outbox.refuse(caller, error)

    def add(self, caller: Caller, topic: Topic, request: AddSchema) -> None:
        """Propose a new version, if the rule lets it follow the one before; answer at once if it is
        a version already. Raises `LevelTooLow`, `IncompatibleSchema`, `BadRequest` or `TooLarge`.
        """
        self._check_level()
        if request.format not in get_args(Format):
            raise BadRequest(f"format {request.format!r}: give json, avro, protobuf or arrow")
        known = self._catalog.schemas.of(topic.id)
        number = known.number_of(request.format, request.message, request.data)
        if number:
            # A client that lost the first answer asks again, perhaps after others have added more.
            self._outbox.reply(caller, _changed(topic.id, known, number, False))
            return
        self._check_room(topic, known, request)
        _check_rule(topic, known, request)
        record = SchemaVersionAdded(
            topic.id,
            known.newest + 1,
            request.format,
            request.message,
            request.data,
            request.fields,
            self._time.wall_ms(),
        )
        self._proposals.propose(record, caller)

    def set_rule(self, caller: Caller, topic: Topic, request: SetSchemaRule) -> None:
        """Propose a rule. Raises `LevelTooLow` or `BadRequest`."""
        self._check_level()
        if request.rule is not None and request.rule not in get_args(Rule):
            raise BadRequest(f"rule {request.rule!r}: give none, backward, forward or full")
        self._proposals.propose(SchemaRuleSet(topic.id, request.rule, request.checked), caller)

    def list(self, caller: Caller, topic: Topic, request: ListSchemas) -> None:
        """Answer with versions, as many as one reply holds. Raises `UnknownSchema`."""
        known, first = self._catalog.schemas.of(topic.id), max(request.first, 1)
        if first > 1:
            self._catalog.schemas.check_known(topic, first)
        last = min(first - 1 + request.count, known.newest) if request.count else known.newest
        rows = _page(first, known.versions[first - 1 : last])
        more = first - 1 + len(rows) < last
        self._outbox.reply(
            caller, SchemaList(topic.id, known.newest, known.rule, known.checked, rows, more)
        )

    def apply(self, index: int, record: SchemaRecord) -> None:
        """Apply a committed record; of a topic that was deleted meanwhile nothing is kept."""
        caller = self._proposals.applied(index)
        schemas = self._catalog.schemas
        try:
            if self._catalog.by_id(record.topic) is None:
                raise UnknownTopic("the topic was deleted")
            if isinstance(record, SchemaVersionAdded):
                known = schemas.add(record)
            else:
                known = schemas.set_rule(record)
        except Refused as error:
            if caller is not None:
                self._outbox.refuse(caller, error)
        else:
            if caller is not None:
                is_new = isinstance(record, SchemaVersionAdded)
                self._outbox.reply(caller, _changed(record.topic, known, known.newest, is_new))

    def _check_level(self) -> None:
        level = self._catalog.level
        if level < FORMAT_LEVEL_SCHEMAS:
            raise LevelTooLow(
                f"this set writes format level {level}, and schemas need "
                f"{FORMAT_LEVEL_SCHEMAS}: once all nodes run this release, raise it by `weir node "
                "raise-level`",
                level,
            )

    def _check_room(self, topic: Topic, known: TopicSchemas, request: AddSchema) -> None:
        if known.newest >= SCHEMA_VERSIONS_MAX:
            raise TooLarge(
                f"the schema of topic {topic.full_name} has {known.newest:,} versions, the most "
                "there can be: publish to another topic",
                SCHEMA_VERSIONS_MAX,
            )
        size = self._catalog.schemas.size - len(known.fields)
        size += len(request.data) + len(request.fields) + len(request.message) + _ROW_BYTES
        if size > SCHEMAS_BYTES_MAX:
            raise TooLarge(
                f"the schemas of all topics would take {size:,} bytes, at most "
                f"{SCHEMAS_BYTES_MAX:,}: delete topics that are not used",
                SCHEMAS_BYTES_MAX,
            )


def _check_rule(topic: Topic, known: TopicSchemas, request: AddSchema) -> None:
    """Raise `IncompatibleSchema` unless the rule lets a version follow the newest one."""
    fields = decode(request.fields)
    if not known.versions or known.rule == "none":
        return
    before, number = known.versions[-1].format, known.newest
    if before != request.format:
        raise IncompatibleSchema(
            f"version {number} of topic {topic.full_name} is {before}, and this is "
            f"{request.format}: they cannot be compared. To change the format, set the rule to "
            f"none: weir schema rule {topic.full_name} none",
            number,
        )
    format, rule = cast(Format, request.format), cast(Rule, known.rule)
    problems = check(rule, format, fields, decode(known.fields))
    if problems:
        raise IncompatibleSchema(
            f"it may not follow version {number} of topic {topic.full_name} by the rule {rule}: "
            + "; ".join(map(str, problems)),
            number,
        )


def _changed(topic: int, known: TopicSchemas, number: int, is_new: bool) -> SchemaChanged:
    return SchemaChanged(topic, number, is_new, known.rule, known.checked)


def _page(first: int, versions: Iterable[SchemaVersion]) -> list[SchemaRow]:
    """Return rows of versions that are numbered from `first` on, as many as one reply holds."""
    rows: list[SchemaRow] = []
    size = 0
    for number, one in enumerate(versions, first):
        size += len(one.data) + len(one.message) + _ROW_BYTES
        if rows and size > _PAGE_BYTES:
            break
        rows.append(SchemaRow(number, one.format, one.message, one.data, one.added_ms))
    return rows
