"""Which shards of the set keep to a change of access: who asked for it is told once all do that can
be reached, and of the others by name.

A shard answers once its own copy has the change and the sessions that lost something by it have
ended: it serves nothing more that the change forbids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.security.users import Committed
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import Overloaded, Refused
from weir.model.ids import place_node, place_of, place_shard
from weir.model.limits import RETRY_AFTER_MS
from weir.order.clock import Time
from weir.protocol.client.access import AccessChanged, AccessReached, ReachAccess
from weir.protocol.client.codec import decode_reply
from weir.protocol.frame import ClientFrame

#: A shard that has not answered by then counts as not reached.
REACHED_WITHIN_MS = 3_000
#: One that could not be asked is asked again so often.
_AGAIN_AFTER_MS = 100
#: How much later than that a shard may end what it let in: it looks once a tick, by its own clock.
_CUTOFF_MARGIN_MS = 5_000
#: So many shards may wait here for a version.
_WAITING_MAX = 4_096


class _Change(msgspec.Struct, eq=False):
    """A change that is committed; `until_ms` is monotonic."""

    number: int
    committed: Committed
    until_ms: int
    #: Shards that have not said that they keep to it, and those that were asked.
    missing: set[int]
    asked: set[int] = msgspec.field(default_factory=set)
    asked_ms: int = 0


class Confirmations:
    """Asks all shards whether they keep to what was changed here, and tells others the same."""

    __slots__ = ("_catalog", "_changes", "_count", "_cutoff_ms", "_forwarder", "_node", "_outbox",
                 "_shards", "_time", "committed", "waiting")  # fmt: skip

    def __init__(
        self, catalog: Catalog, committed: deque[Committed], forwarder: Forwarder, outbox: Outbox,
        time: Time, node: int, shards: int, cutoff_ms: int,
    ) -> None:  # fmt: skip
        """Be on a node with so many `shards`. Changes are taken from `committed`. A shard that does
        not hear of one ends what it let in after `cutoff_ms`.
        """
        self._cutoff_ms = cutoff_ms
        self._catalog = catalog
        self.committed = committed
        self._forwarder = forwarder
        self._outbox = outbox
        self._time = time
        self._node = node
        self._shards = shards
        self._count = 0
        #: By the number that its questions have.
        self._changes: dict[int, _Change] = {}
        #: Shards that wait for a version to be reached here, and until when.
        self.waiting: list[tuple[Caller, int, int]] = []
        forwarder.listen(self, ReachAccess)

    def handlers(self) -> dict[type[Any], Callable[..., None]]:
        """Return what answers each request."""
        return {ReachAccess: self._reach}

    def proceed(self) -> None:
        """Begin to ask about new changes, and tell those who wait for what is reached now."""
        while self.committed:
            one = self.committed.popleft()
            self._count += 1
            until_ms = self._time.monotonic_ms() + REACHED_WITHIN_MS
            change = _Change(self._count, one, until_ms, self._others())
            self._changes[change.number] = change
            self._ask(change)
        if self.waiting:
            version = self._catalog.access.version
            for caller, wanted, _ in self.waiting:
                if wanted <= version:
                    self._outbox.reply(caller, AccessReached(version))
            self.waiting = [one for one in self.waiting if one[1] > version]

    def check_deadlines(self) -> None:
        """Ask again who could not be asked, and wait no longer than was said."""
        if not (self._changes or self.waiting):
            return
        now = self._time.monotonic_ms()
        for change in list(self._changes.values()):
            if now >= change.until_ms:
                self._tell(change)
            elif now - change.asked_ms >= _AGAIN_AFTER_MS:
                self._ask(change)
        version = self._catalog.access.version
        for caller, _, until_ms in self.waiting:
            if until_ms <= now:
                self._outbox.reply(caller, AccessReached(version))
        self.waiting = [one for one in self.waiting if one[2] > now]

    def answered(self, frame: ClientFrame) -> None:
        """Another shard says which version it keeps to, or that it cannot say."""
        change, reply = self._changes.get(frame.correlation >> 32), decode_reply(frame)
        if change is None:
            return
        place = frame.correlation & 0xFFFFFFFF
        if isinstance(reply, AccessReached) and reply.version >= change.committed.version:
            change.missing.discard(place)
        else:
            change.asked.discard(place)  # it is asked again
        if not change.missing:
            self._tell(change)

    def trunk_closed(self, place: int) -> None:
        """What was asked of a shard has no answer any more."""
        for change in self._changes.values():
            change.asked.discard(place)

    def _reach(self, session: Session, caller: Caller, request: ReachAccess) -> None:
        version = self._catalog.access.version
        if request.version <= version:
            self._outbox.reply(caller, AccessReached(version))
            return
        if len(self.waiting) >= _WAITING_MAX:
            raise Overloaded("too many shards wait for news of access", RETRY_AFTER_MS)
        until_ms = self._time.monotonic_ms() + REACHED_WITHIN_MS
        self.waiting.append((caller, request.version, until_ms))

    def _others(self) -> set[int]:
        """Return the places of all other shards of the set, those of this node by number."""
        here = self._forwarder.shard
        found = {shard for shard in range(self._shards) if shard != here}
        for node in self._catalog.nodes.all():
            if node.id != self._node:
                shards = self._forwarder.routes.shards_of(node.id)
                found.update(place_of(node.id, shard) for shard in range(shards))
        return found

    def _ask(self, change: _Change) -> None:
        change.asked_ms = self._time.monotonic_ms()
        for place in sorted(change.missing - change.asked):
            with suppress(Refused):  # it is asked again, or named as not reached
                number = change.number << 32 | place
                self._forwarder.ask_own(place, ReachAccess(change.committed.version), number)
                change.asked.add(place)
        if not change.missing:
            self._tell(change)

    def _tell(self, change: _Change) -> None:
        del self._changes[change.number]
        unreached = [(place_node(one) or self._node, place_shard(one)) for one in change.missing]
        caller, version, is_bounded = change.committed
        stops_by_ms = 0
        if unreached and is_bounded:
            # A shard without the change heard its last news before this was committed.
            stops_by_ms = self._time.wall_ms() + self._cutoff_ms + _CUTOFF_MARGIN_MS
        self._outbox.reply(caller, AccessChanged(version, sorted(unreached), stops_by_ms))
