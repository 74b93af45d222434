"""Lists of topics, and of their offsets: they hold what all shards know, so they are gathered from
those.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from weir.broker.access.authorizer import Authorizer
from weir.broker.forwarding.trunks import ShardTrunks
from weir.broker.metadata.registry import Registry
from weir.broker.partition.topics import Topics
from weir.broker.replica.requests import no_registry
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import Overloaded, Refused
from weir.model.limits import KIB, RETRY_AFTER_MS, WAIT_MS_MAX
from weir.order.clock import Time
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.messages import (
    ListOffsets,
    ListTopics,
    OffsetList,
    TopicInfo,
    TopicList,
)
from weir.protocol.frame import ClientFrame

#: A list of topics is cut where it gets about so long; a single topic is far below it.
_PAGE_BYTES = 512 * KIB
#: What a partition takes of a page: its address, and its offsets.
_ADDRESS_BYTES, _OFFSETS_BYTES = 16, 28
#: A shard that has not answered after so long is asked again: somebody else may lead by now.
_ASK_AGAIN_MS = 250
#: How long another shard of this node asks the other nodes before it tells what it knows.
_PART_MS = 200
#: So many lists with offsets are gathered at once.
_GATHERED_AT_ONCE = 64


class _Gathering(msgspec.Struct, eq=False):
    """A list that waits for offsets; `until_ms` is monotonic."""

    caller: Caller
    topics: list[TopicInfo]
    more: bool
    #: Whether another node asks: it wants only what this shard leads.
    foreign: bool
    until_ms: int
    missing: set[int]
    offsets: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    asked_ms: int = 0


class Listing:
    """Answers `ListTopics`, and `ListOffsets` from the leaders of all partitions.

    A leader tells what it has committed as it knows it, without a round to its voters.
    """

    __slots__ = ("_authorizer", "_count", "_gatherings", "_outbox", "_registry", "_time", "_topics",
                 "_trunks")  # fmt: skip

    def __init__(
        self, topics: Topics, registry: Registry, trunks: ShardTrunks, outbox: Outbox,
        time: Time, authorizer: Authorizer,
    ) -> None:  # fmt: skip
        """List what `registry` knows, and `authorizer` lets be described; ask `trunks` for offsets
        of what they lead.
        """
        self._authorizer = authorizer
        self._topics = topics
        self._registry = registry
        self._trunks = trunks
        self._outbox = outbox
        self._time = time
        #: By the number that its questions have.
        self._gatherings: dict[int, _Gathering] = {}
        self._count = 0
        trunks.forwarder.listen(self, ListOffsets)

    def handlers(self) -> dict[type[Any], Callable[..., None]]:
        """Return what answers each request for a list."""
        return {ListTopics: self._list, ListOffsets: self._list_offsets}

    def check_deadlines(self) -> None:
        """Ask again for what is missing, and answer those whose time is up."""
        now = self._time.monotonic_ms()
        for number, gathering in list(self._gatherings.items()):
            if now >= gathering.until_ms:
                self._tell(number)
            elif now - gathering.asked_ms >= _ASK_AGAIN_MS:
                self._gather(number)

    def _list(self, session: Session, caller: Caller, request: ListTopics) -> None:
        found, more = self._page(session, request, _ADDRESS_BYTES)
        self._outbox.reply(caller, TopicList(found, more))

    def _list_offsets(self, session: Session, caller: Caller, request: ListOffsets) -> None:
        if len(self._gatherings) >= _GATHERED_AT_ONCE:
            raise Overloaded("too many lists are asked for: try again shortly", RETRY_AFTER_MS)
        topics: list[TopicInfo] = []
        more, missing = False, set(request.groups)
        if not session.is_shard:
            topics, more = self._page(session, request, _ADDRESS_BYTES + _OFFSETS_BYTES)
            missing = {address.group for info in topics for address in info.addresses}
        until_ms = self._time.monotonic_ms() + min(request.wait_ms, WAIT_MS_MAX)
        gathering = _Gathering(caller, topics, more, session.foreign, until_ms, missing)
        self._count += 1
        self._gatherings[self._count] = gathering
        self._gather(self._count)

    def _page(
        self, session: Session, request: ListTopics | ListOffsets, partition_bytes: int
    ) -> tuple[list[TopicInfo], bool]:
        """Return the topics behind `request.after` that fit a reply, and if there are more."""
        if not self._trunks.in_sync:
            raise no_registry()
        namespace, _, name = request.after.rpartition("/")
        found: list[TopicInfo] = []
        size = 0
        for topic in self._registry.catalog.topics(request.namespace):
            if request.after and (topic.namespace, topic.name) <= (namespace, name):
                continue
            if not self._authorizer.may_describe(session, topic):
                continue
            if size > _PAGE_BYTES:
                return found, True
            found.append(self._registry.describe(topic))
            size += len(topic.namespace) + len(topic.name)
            size += partition_bytes * (topic.partitions + 4)
        return found, False

    def _gather(self, number: int) -> None:
        """Look at what is led here, and ask others for the rest; answer if nothing is missing."""
        gathering = self._gatherings[number]
        gathering.asked_ms = self._time.monotonic_ms()
        places: dict[int, list[int]] = {}
        forwarder = self._trunks.forwarder
        for group in sorted(gathering.missing):
            partition = self._topics.find(group)
            if partition is not None and partition.leads:
                state = partition.state
                gathering.offsets.append((group, state.log_start, state.decided_offset))
                gathering.missing.discard(group)
            elif (
                not gathering.foreign
                and (place := forwarder.routes.toward(group)) != forwarder.shard
            ):
                places.setdefault(place, []).append(group)
        for place, groups in places.items():
            with suppress(Refused):  # it is asked again
                request = ListOffsets(wait_ms=_PART_MS, groups=groups)
                forwarder.ask_own(place, request, number)
        if not gathering.missing:
            self._tell(number)

    def answered(self, frame: ClientFrame) -> None:
        """Another shard tells offsets."""
        gathering, reply = self._gatherings.get(frame.correlation), decode_reply(frame)
        if gathering is None or not isinstance(reply, OffsetList):
            return
        for group, start, end in reply.offsets:
            if group in gathering.missing:
                gathering.offsets.append((group, start, end))
                gathering.missing.discard(group)
        if not gathering.missing:
            self._tell(frame.correlation)

    def _tell(self, number: int) -> None:
        gathering = self._gatherings.pop(number)
        reply = OffsetList(gathering.topics, gathering.offsets, gathering.more)
        self._outbox.reply(gathering.caller, reply)
