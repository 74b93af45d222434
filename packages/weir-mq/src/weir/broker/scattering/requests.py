"""What clients that scatter, sinks that publish, and shards that coordinate ask of a shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from weir.broker.metadata.registry import Registry
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.broker.scattering.coordinator import Coordinator
from weir.broker.scattering.rounds import LocalParts, PartContent, PartRequest
from weir.errors import BadBatch, BadRequest, TooLarge
from weir.model.batch import Batch, Columns, parse
from weir.model.ids import acks_part, batch_part, group_of, is_acks, part_group
from weir.model.limits import PUBLICATION_BYTES_MAX, SCATTER_BYTES_MAX
from weir.model.topic import Topic, check_together
from weir.protocol.client import messages as m
from weir.protocol.client.sinks import Publish


class ServedParts(LocalParts, Protocol):
    """The partitions of this shard, and the topics of all."""

    def topic_with(self, group: int) -> Topic:
        """Return the topic of a group, wherever that is served. Raises `UnknownTopic`."""

    def check_staging(self, group: int, schema: int) -> None:
        """Raise `LevelTooLow` where nothing is staged yet."""


class Admission(Protocol):
    """Whether this shard takes publishes."""

    def check(self, group: int, /) -> None:
        """Raise `Unavailable` or `Overloaded` unless it does; 0 stands for no group."""


class ScatteringRequests:
    """Answers clients that scatter, and shards that coordinate."""

    __slots__ = ("_admission", "_coordinator", "_parts", "_registry")

    def __init__(
        self, coordinator: Coordinator, parts: ServedParts, registry: Registry,
        admission: Admission,
    ) -> None:  # fmt: skip
        """Hand whole scatterings to the `coordinator`, and what is asked of a part to that."""
        self._coordinator = coordinator
        self._parts = parts
        self._registry = registry
        self._admission = admission

    def handlers(self) -> Mapping[type[Any], Callable[[Session, Caller, Any], None]]:
        """Return what to answer requests with."""
        return {
            m.Scatter: self._scatter,
            Publish: self._publish,
            m.Prepare: self._ask_part,
            m.Decide: self._ask_part,
        }

    def _scatter(self, session: Session, caller: Caller, request: m.Scatter) -> None:
        self._admission.check(0)
        parts = _parts_of(request)
        topics: dict[int, Topic] = {}
        for part, content in parts.items():
            topic = self._parts.topic_with(part_group(part))
            if not is_acks(part):
                topics[topic.id] = topic
                self._check_schema(topic, content.batch)
        if not topics:
            raise BadRequest("a scattering publishes at least one message: acks alone need none")
        check_together([*topics.values()])
        self._registry.check_epoch(request.producer, request.epoch, session.principal)
        self._coordinator.scatter(caller, request, parts)

    def _check_schema(self, topic: Topic, batch: bytes) -> None:
        """Raise `UnknownSchema` for a batch of a version that is not known, and `BadRequest` for a
        publication. Its partition's leader opens the batch, and says what else is wrong with it.
        """
        with suppress(BadBatch):
            header = parse(batch)
            if header.columns & Columns.PUBLICATION:
                raise BadRequest("staged rows are published by PUBLISH")
            if header.schema:
                self._registry.catalog.schemas.check_known(topic, header.schema)

    def _publish(self, session: Session, caller: Caller, request: Publish) -> None:
        self._admission.check(0)
        parts: dict[int, PartContent] = {}
        topics: dict[int, Topic] = {}
        for one in request.parts:
            group = one.address.group
            topic = self._parts.topic_with(group)
            self._parts.check_staging(group, 0)
            topics[topic.id] = topic
            if batch_part(group) in parts:
                raise BadRequest(f"two parts of a publication are for group {group}: make them one")
            _check_publication(one.batch, request)
            parts[batch_part(group)] = PartContent(one.batch)
        _check_size(parts, PUBLICATION_BYTES_MAX)
        check_together([*topics.values()])
        self._registry.check_epoch(request.producer, request.epoch, session.principal)
        for topic in topics.values():
            sink = request.query, request.batch_id
            parts[acks_part(group_of(topic.id, 0))] = PartContent(sink=sink)
        self._coordinator.scatter(caller, request, parts)

    def _ask_part(self, session: Session, caller: Caller, request: PartRequest) -> None:
        self._parts.ask_part(request, caller)


def _parts_of(request: m.Scatter) -> dict[int, PartContent]:
    parts: dict[int, PartContent] = {}
    for content in request.parts:
        group = content.address.group
        if not 0 < group < 1 << 62 or bool(content.batch) == bool(content.acks):
            raise BadRequest("each part of a scattering is a batch of a partition, or acks there")
        part = batch_part(group) if content.batch else acks_part(group)
        if part in parts:
            raise BadRequest(f"two parts of a scattering are for group {group}: make them one")
        parts[part] = PartContent(content.batch, content.acks)
    _check_size(parts, SCATTER_BYTES_MAX)
    return parts


def _check_size(parts: Mapping[int, PartContent], limit: int) -> None:
    size = sum(len(part.batch) for part in parts.values())
    if size > limit:
        raise TooLarge(
            f"a scattering of {size:,} bytes; {limit:,} are allowed: publish less at once", limit
        )


def _check_publication(batch: bytes, request: Publish) -> None:
    """Raise `BadRequest` for a batch that does not publish what the request says."""
    try:
        publication = Batch(batch).publication
    except BadBatch as error:
        raise BadRequest(f"a part of a publication: {error}") from None
    named = request.query, request.batch_id
    if publication is None or (publication.query, publication.batch) != named:
        raise BadRequest(f"a part does not publish batch {named[1]} of query {named[0]!r}")
