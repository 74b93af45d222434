"""A shard's part in scatterings: who may ask for them, and how their parts are reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from weir.broker.api.settings import Authorize
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.metadata.registry import Registry
from weir.broker.partition.context import Surroundings
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.broker.scattering.coordinator import Coordinator
from weir.broker.scattering.participant import Tell
from weir.broker.scattering.parts import BarrierQuery, Ways
from weir.errors import BadRequest, Fenced, Refused, TooLarge, UnknownProducer, UnknownTopic
from weir.model.ids import partition_of, topic_of
from weir.model.limits import SCATTER_BYTES_MAX
from weir.model.scattering import acks_part, batch_part, is_acks
from weir.model.topic import Topic, check_together
from weir.protocol.client import messages as m
from weir.protocol.client.messages import Opcode
from weir.protocol.client.scattering import Part, PartState


class Scatterings:
    """Answers clients that scatter, and shards that coordinate."""

    __slots__ = ("_authorize", "_registry", "_shared", "_topics", "coordinator")

    def __init__(
        self, topics: Topics, registry: Registry, passing: Forwarder, shared: Surroundings,
        authorize: Authorize,
    ) -> None:  # fmt: skip
        """Begin with none; partitions of `shared` can have theirs finished from now on."""
        self._topics = topics
        self._registry = registry
        self._shared = shared
        self._authorize = authorize
        ways = Ways(
            passing.shard, passing.routes.toward, passing.ask_own, self._local, self._is_gone
        )
        self.coordinator = Coordinator(
            ways, shared.highest, shared.time, shared.outbox, shared.budget
        )
        shared.recover = self.coordinator.recover
        for opcode in (Opcode.PREPARE, Opcode.DECIDE):
            passing.listen(self.coordinator.answered, opcode)

    def handlers(self) -> Mapping[type[Any], Callable[[Session, Caller, Any], None]]:
        """Return what to answer requests with."""
        return {m.Scatter: self._scatter, m.Prepare: self._part, m.Decide: self._part}

    def _scatter(self, session: Session, caller: Caller, request: m.Scatter) -> None:
        self._shared.admit(0)
        parts = _parts_of(request)
        topics: dict[int, Topic] = {}
        for part, content in parts.items():
            topic = self._topic(content.address.group)
            verb = "consume" if is_acks(part) else "publish"
            self._authorize(session.principal, verb, topic.full_name)
            if verb == "publish":
                topics[topic.id] = topic
        if not topics:
            raise BadRequest("a scattering publishes at least one message: acks alone need none")
        check_together([*topics.values()])
        self._own(session, request)
        self.coordinator.scatter(caller, request, parts)

    def _topic(self, group: int) -> Topic:
        topic = self._topics.catalog.by_id(topic_of(group))
        if topic is None or partition_of(group) >= topic.partitions:
            raise UnknownTopic(
                "no topic has this partition: ask where it is served", topic_of(group)
            )
        return topic

    def _is_gone(self, group: int) -> bool:
        return self._topics.catalog.was_deleted(topic_of(group))

    def _own(self, session: Session, request: m.Scatter) -> None:
        granted = self._registry.epoch_of(request.producer, session.principal)
        if request.epoch < granted:
            raise Fenced(f"producer {request.producer} goes on in epoch {granted}", granted)
        if request.epoch > granted:
            raise UnknownProducer(f"epoch {request.epoch} of a producer was not granted")

    def _part(self, session: Session, caller: Caller, request: BarrierQuery) -> None:
        self._local(request, partial(self._tell, caller))

    def _tell(self, caller: Caller, outcome: PartState | Refused) -> None:
        outbox = self._shared.outbox
        if isinstance(outcome, Refused):
            outbox.refuse(caller, outcome)
        else:
            outbox.reply(caller, outcome)

    def _local(self, request: BarrierQuery, tell: Tell) -> None:
        _, partition = self._topics.partition(request.address.group)
        if isinstance(request, m.Prepare):
            self._shared.admit(request.address.group)
        partition.part(request, tell)


def _parts_of(request: m.Scatter) -> dict[int, Part]:
    parts: dict[int, Part] = {}
    for content in request.parts:
        group = content.address.group
        if not 0 < group < 1 << 62 or bool(content.batch) == bool(content.acks):
            raise BadRequest("each part of a scattering is a batch of a partition, or acks there")
        part = batch_part(group) if content.batch else acks_part(group)
        if part in parts:
            raise BadRequest(f"two parts of a scattering are for group {group}: make them one")
        parts[part] = content
    size = sum(len(part.batch) for part in parts.values())
    if size > SCATTER_BYTES_MAX:
        raise TooLarge(
            f"a scattering of {size:,} bytes; {SCATTER_BYTES_MAX:,} are allowed: publish less at "
            "once",
            SCATTER_BYTES_MAX,
        )
    return parts
