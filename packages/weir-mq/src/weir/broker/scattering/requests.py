"""Who may ask for a scattering, and for a part of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from weir.broker.api.settings import AccessControl
from weir.broker.metadata.registry import Registry
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.broker.scattering.coordinator import Coordinator
from weir.broker.scattering.rounds import LocalParts, PartRequest
from weir.errors import BadRequest, TooLarge
from weir.model.limits import SCATTER_BYTES_MAX
from weir.model.scattering import acks_part, batch_part, is_acks
from weir.model.topic import Topic, check_together
from weir.protocol.client import messages as m
from weir.protocol.client.declaration import Verb
from weir.protocol.client.scattering import Part


class ServedParts(LocalParts, Protocol):
    """The partitions of this shard, and the topics of all."""

    def topic_with(self, group: int) -> Topic:
        """Return the topic of a group, wherever that is served. Raises `UnknownTopic`."""


class Admission(Protocol):
    """Whether this shard takes publishes."""

    def check(self, group: int, /) -> None:
        """Raise `Unavailable` or `Overloaded` unless it does; 0 stands for no group."""


class ScatteringRequests:
    """Answers clients that scatter, and shards that coordinate."""

    __slots__ = ("_access", "_admission", "_coordinator", "_parts", "_registry")

    def __init__(
        self, coordinator: Coordinator, parts: ServedParts, registry: Registry,
        admission: Admission, access: AccessControl,
    ) -> None:  # fmt: skip
        """Hand whole scatterings to the `coordinator`, and what is asked of a part to that."""
        self._coordinator = coordinator
        self._parts = parts
        self._registry = registry
        self._admission = admission
        self._access = access

    def handlers(self) -> Mapping[type[Any], Callable[[Session, Caller, Any], None]]:
        """Return what to answer requests with."""
        return {m.Scatter: self._scatter, m.Prepare: self._ask_part, m.Decide: self._ask_part}

    def _scatter(self, session: Session, caller: Caller, request: m.Scatter) -> None:
        self._admission.check(0)
        parts = _parts_of(request)
        topics: dict[int, Topic] = {}
        for part, content in parts.items():
            topic = self._parts.topic_with(content.address.group)
            verb: Verb = "consume" if is_acks(part) else "publish"
            self._access.check(session.principal, verb, topic.full_name)
            if verb == "publish":
                topics[topic.id] = topic
        if not topics:
            raise BadRequest("a scattering publishes at least one message: acks alone need none")
        check_together([*topics.values()])
        self._registry.check_epoch(request.producer, request.epoch, session.principal)
        self._coordinator.scatter(caller, request, parts)

    def _ask_part(self, session: Session, caller: Caller, request: PartRequest) -> None:
        self._parts.ask_part(request, caller)


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
