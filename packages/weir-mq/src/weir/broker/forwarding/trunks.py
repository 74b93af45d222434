"""The other shards as this one sees them, and whether its registry is as new as what anybody was
told.

The shard that has the registry's log holds a replica of its group. Where that leads, one ReadIndex
round says that it still does; else its leader is asked how far it is, and the replica is current
once it has applied so much. Rounds are shared: a request that comes while one is under way waits
for the next.

The other shards of its node have copies (see `registry_feed`). A request there for a topic or
producer that is not in the copy *parks* until the shard has asked the leader for news. While the
leader cannot be asked, or does not answer, what is not in the copy is not known to exist or not:
`in_sync` says which it is.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

import msgspec

from weir.broker.api.events import PassedBack, TrunkClosed, TrunkOpened
from weir.broker.forwarding.forwarder import Forwarder, Routes
from weir.broker.forwarding.registry_feed import HeldReplies, RegistryFeed, ShardTopics
from weir.broker.metadata.registry import Registry
from weir.broker.metadata.security.cutoff import Cutoff
from weir.broker.records.entries import ControlRecord, read_back
from weir.broker.records.registry import ProducerOpened
from weir.broker.replica.requests import no_registry
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import NotLeader, Refused, Unavailable
from weir.model.ids import REGISTRY_GROUP
from weir.order.clock import Time
from weir.protocol.client import messages as m
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import ClientFrame
from weir.storage.format.frame import Kind

#: Nobody waits longer for the replica to be current.
CURRENT_WITHIN_MS = 5_000
#: A parked session waits no longer for news.
NEWS_WITHIN_MS = 5_000
#: How long to wait before asking again for what was refused.
_AGAIN_AFTER_MS = 1_000

#: What waits until the replica is current: a session that is parked, or a shard that asks how far
#: the registry is.
RoundWaiter = int | Caller
_FOLLOW, _REACH = opcode_of(m.Follow), opcode_of(m.ReachRegistry)
_unpack = msgspec.msgpack.Decoder().decode


class _Round:
    """One question how far the registry is: where it was asked, and what was answered."""

    __slots__ = ("begun_ms", "index", "number", "place", "until_ms", "waiters")

    def __init__(self, number: int, place: int, waiters: list[RoundWaiter], now_ms: int) -> None:
        self.number = number
        self.place = place
        self.waiters = waiters
        self.begun_ms = now_ms
        self.until_ms = now_ms + CURRENT_WITHIN_MS
        self.index: int | None = None


class ShardProducer(Protocol):
    """The producer that a shard writes its devices' messages as."""

    def granted(self, id: int, /) -> None:
        """Write with this id from now on."""


class ShardProducerId:
    """The id that a shard writes its devices' messages with: asked for until it is granted."""

    __slots__ = ("_again_ms", "_forwarder", "_producer", "_registry", "_time", "asked_of",
                 "is_granted")  # fmt: skip

    def __init__(
        self, producer: ShardProducer, registry: Registry, forwarder: Forwarder, time: Time
    ) -> None:
        """Get `producer` its id from the leader of `registry`; nothing was asked yet."""
        self._producer = producer
        self._registry = registry
        self._forwarder = forwarder
        self._time = time
        self.is_granted = False
        #: The place that was asked and has not answered; -1 for none.
        self.asked_of = -1
        self._again_ms = 0

    @property
    def is_due(self) -> bool:
        """Whether it is missing, and was not refused just now."""
        missing = not self.is_granted and self.asked_of < 0
        return missing and self._time.monotonic_ms() >= self._again_ms

    def ask(self, place: int) -> None:
        """Ask the leader at `place`, unless somebody was asked already."""
        if self.is_granted or self.asked_of >= 0:
            return
        self.asked_of = place
        try:
            if place != self._forwarder.shard:
                self._forwarder.ask_own(place, m.OpenProducer())
            else:
                self._registry.grant(self._forwarder.principal, 0, self)
        except Refused:
            self.refused()

    def producer_granted(self, outcome: ProducerOpened | Refused) -> None:
        """See `ProducerWaiter`."""
        if isinstance(outcome, Refused):
            self.refused()
        else:
            self.granted(outcome.producer)

    def granted(self, producer: int) -> None:
        """The registry's leader gave one."""
        if not self.is_granted:
            self.is_granted = True
            self._producer.granted(producer)

    def refused(self) -> None:
        """It gave none, or there is no answer any more: it is asked again, after a pause."""
        self.asked_of = -1
        self._again_ms = self._time.monotonic_ms() + _AGAIN_AFTER_MS


class _LedRound(NamedTuple):
    """A round that asks no other shard, for the replica here leads."""

    view: RegistryReplica
    begun: _Round

    def readable(self, error: Refused | None) -> None:
        """It still leads, or does not."""
        self.view.led(self.begun, error)


class NewsAge:
    """How old the news are, and when the next ones are to be asked for though nobody waits."""

    __slots__ = ("_asked_ms", "_every_ms", "_time", "heard_ms")

    def __init__(self, time: Time, every_ms: int) -> None:
        """Ask each `every_ms`, and sooner where there was no answer. There was none yet."""
        self._time = time
        self._every_ms = every_ms
        self._asked_ms = -_AGAIN_AFTER_MS
        #: The monotonic time of which all changes are known here; below 0 for none yet.
        self.heard_ms = -1

    def ask(self) -> int:
        """News are asked for now: return the monotonic time."""
        self._asked_ms = self._time.monotonic_ms()
        return self._asked_ms

    @property
    def is_due(self) -> bool:
        """Whether news are to be asked for."""
        is_answered = self.heard_ms >= self._asked_ms
        pause_ms = self._every_ms if is_answered else _AGAIN_AFTER_MS
        return self._time.monotonic_ms() - self._asked_ms >= pause_ms


class RegistryReplica:
    """Holds requests back until the replica is current, and gets this shard the producer id with
    which it writes device messages.
    """

    __slots__ = ("_forwarder", "_in_sync", "_known", "_news", "_numbers", "_outbox", "_producer_id",
                 "_registry", "_resumed", "_round", "_routes", "_time", "_waiting",
                 "has_work")  # fmt: skip

    def __init__(
        self,
        registry: Registry,
        forwarder: Forwarder,
        producer: ShardProducer,
        resumed: deque[int],
        outbox: Outbox,
        time: Time,
        every_ms: int,
    ) -> None:
        """Get `producer` its id; each session that need not wait any more goes to `resumed`. A
        round is begun each `every_ms`, even if nobody asks.
        """
        self._registry = registry
        self._forwarder = forwarder
        self._routes: Routes = forwarder.routes
        self._producer_id = ShardProducerId(producer, registry, forwarder, time)
        self._resumed = resumed
        self._outbox = outbox
        self._time = time
        #: Whether `proceed` may find something to do.
        self.has_work = True
        self._known = self._in_sync = False
        self._waiting: list[RoundWaiter] = []
        self._round: _Round | None = None
        self._numbers = 0
        self._news = NewsAge(time, every_ms)
        forwarder.listen(self)

    @property
    def known(self) -> bool:
        """Whether the replica was current once since this shard started."""
        self._known = self._known or self._registry.ready
        return self._known

    @property
    def in_sync(self) -> bool:
        """Whether the last who asked was told that the replica is current; alone it always is."""
        return self._in_sync or self._is_alone

    @property
    def heard_ms(self) -> int:
        """The monotonic time of which all changes are known here; below 0 for none yet."""
        return self._time.monotonic_ms() if self._is_alone else self._news.heard_ms

    @property
    def _is_alone(self) -> bool:
        """Whether this node is the whole set, and leads its registry."""
        return self._registry.ready and not self._routes.several

    def ask(self, waiter: RoundWaiter) -> None:
        """Tell `waiter` when the replica has all that anybody was told before now."""
        self._waiting.append(waiter)
        if self._round is None:
            self._begin()

    def park(self, session: int) -> None:
        """Let a session wait until the replica is current, or it is clear that it cannot be."""
        self.ask(session)

    def closed(self, place: int) -> None:
        """The trunk to a place broke: what it was asked has no answer any more."""
        if self._round is not None and self._round.place == place:
            self._end(False)
        if self._producer_id.asked_of == place:
            self._producer_id.refused()

    def proceed(self) -> None:
        """Go on with what may be applied by now."""
        current = self._round
        if current is not None and current.index is not None:
            group = self._registry.group
            if group is None:
                self._end(False)
            elif group.node.log.applied >= current.index:
                self._end(True)
        if self.known and self._producer_id.is_due:
            self._producer_id.ask(self._routes.registry)
        current = self._round
        self.has_work = not self._producer_id.is_granted or (
            current is not None and current.index is not None
        )

    def check_deadlines(self) -> None:
        """Let nobody wait for a leader that is gone; ask until the replica is known."""
        current = self._round
        if current is not None:
            late = self._time.monotonic_ms() >= current.until_ms
            moved = current.index is None and current.place != self._routes.registry
            if late or moved:
                self._end(False)
        if self._round is None and (not self.known or (self._news.is_due and not self._is_alone)):
            self._begin()
        if self._producer_id.asked_of not in (-1, self._routes.registry):
            self._producer_id.refused()  # who was asked leads no more, and might never answer

    # -- rounds ------------------------------------------------------------------------------

    def _begin(self) -> None:
        waiters, self._waiting = self._waiting, []
        place, group = self._routes.registry, self._registry.group
        self._numbers += 1
        now_ms = self._news.ask()
        self._round = begun = _Round(self._numbers, place, waiters, now_ms)
        if group is None:
            self._end(False)
        elif place != self._forwarder.shard:
            try:
                self._forwarder.ask_own(place, m.ReachRegistry(), begun.number)
            except Refused:
                self._end(False)
        elif self._registry.ready:
            group.read(_LedRound(self, begun))
        else:
            self._end(False)

    def led(self, begun: _Round, error: Refused | None) -> None:
        """The replica here, which leads, is current; or an `error` says why that is unknown."""
        group = self._registry.group
        if self._round is not begun or group is None:
            return
        if error is not None:
            self._end(False)
        else:
            self._end(True)

    def _end(self, current: bool) -> None:
        ended, self._round = self._round, None
        assert ended is not None
        self._in_sync = current
        self._known = self._known or current
        if current:  # it has all that was told to anybody before it asked
            self._news.heard_ms = max(self._news.heard_ms, ended.begun_ms)
        for waiter in ended.waiters:
            if isinstance(waiter, Caller):
                self._tell(waiter, current)
            else:
                self._resumed.append(waiter)
        if self._waiting and self._round is None:
            self._begin()

    def _tell(self, caller: Caller, current: bool) -> None:
        """Tell a shard how far the registry is, if that is known."""
        if current and self._registry.group is not None:
            reached = m.RegistryReached(self._registry.group.node.log.applied)
            self._outbox.reply(caller, reached)
        else:
            self._outbox.refuse(caller, no_registry())

    # -- answers -----------------------------------------------------------------------------

    def answered(self, frame: ClientFrame) -> None:
        """Another shard replies to what nobody else here asks."""
        reply = decode_reply(frame)
        if isinstance(reply, m.ProducerGrant):
            self._producer_id.granted(reply.producer)
            return
        current = self._round
        if current is not None and frame.correlation == current.number:
            if isinstance(reply, m.RegistryReached):
                current.index, self.has_work = reply.index, True
                self.proceed()
            else:
                self._end(False)
        elif not frame.correlation and isinstance(reply, m.Refusal):
            self._producer_id.refused()


class ParkedSessions:
    """Sessions that wait until a copy has what the leader has now: those that came before the ping
    under way was sent go on with its answer.
    """

    __slots__ = ("_pinged", "number", "pinged_ms", "waiting")

    def __init__(self) -> None:
        """Begin without waiters."""
        #: Those who came since the last ping.
        self.waiting: list[int] = []
        self._pinged: list[int] = []
        #: The number of the last ping, and when it was sent.
        self.number = 0
        self.pinged_ms = 0

    @property
    def is_pinging(self) -> bool:
        """Whether somebody waits for the ping under way."""
        return bool(self._pinged)

    def begin_ping(self, now_ms: int) -> None:
        """Those who wait go on with the answer to the next ping, which has `number`."""
        self._pinged, self.waiting = self.waiting, []
        self.number += 1
        self.pinged_ms = now_ms

    def take_pinged(self) -> list[int]:
        """Return who goes on, for the ping is answered."""
        sessions, self._pinged = self._pinged, []
        return sessions

    def take_all(self) -> list[int]:
        """Return everybody, for there will be no answer."""
        sessions, self.waiting = [*self._pinged, *self.waiting], []
        self._pinged = []
        return sessions


class RegistryCopy:
    """Keeps the copy, and gets this shard the producer id that it writes device messages with."""

    __slots__ = ("_doing", "_fed", "_forwarder", "_late", "_leader", "_news", "_owed", "_parked",
                 "_producer_id", "_registry", "_resumed", "_time", "_topics", "has_work",
                 "known")  # fmt: skip

    def __init__(
        self,
        leader: int,
        registry: Registry,
        forwarder: Forwarder,
        producer: ShardProducer,
        resumed: deque[int],
        topics: ShardTopics,
        time: Time,
        every_ms: int,
    ) -> None:
        """Follow shard `leader`. Get `producer` its id, and put into `resumed` each session that
        need not wait any more; `topics` say whether what a record means is done here. The leader is
        asked for news each `every_ms`, even if nobody waits.
        """
        self._news = NewsAge(time, every_ms)
        self._topics = topics
        #: Whether `proceed` may find something to do.
        self.has_work = False
        self._time = time
        #: Records that are applied and not done, None for a snapshot, and the entry to acknowledge
        #: when they are.
        self._doing: list[ControlRecord | None] = []
        self._owed = 0
        self._leader = leader
        self._registry = registry
        self._forwarder = forwarder
        self._producer_id = ShardProducerId(producer, registry, forwarder, time)
        self._resumed = resumed
        #: Whether the leader has sent all it has since the trunk was opened.
        self._fed = False
        #: Whether it was asked for news and has not answered in time.
        self._late = False
        #: Whether there is a copy.
        self.known = False
        self._parked = ParkedSessions()
        forwarder.listen(self)

    @property
    def in_sync(self) -> bool:
        """Whether the copy has all that the leader told anybody a moment ago."""
        return self._fed and not self._late

    @property
    def heard_ms(self) -> int:
        """The monotonic time of which all changes are known here; below 0 for none yet."""
        return self._news.heard_ms

    def opened(self, shard: int) -> None:
        """A trunk is open: if it is the leader's, ask for all it has."""
        if shard == self._leader:
            self._ask(m.Follow(0))

    def closed(self, shard: int) -> None:
        """A trunk broke: if it is the leader's, nothing new can be learnt until it is back."""
        if shard == self._leader:
            self._fed = self._late = False
            self._producer_id.asked_of = -1
            self._owed = 0
            self._resumed.extend(self._parked.take_all())

    def proceed(self) -> None:
        """Acknowledge what is applied, once all of it is done."""
        if self._owed:
            self._doing = [record for record in self._doing if not self._topics.is_settled(record)]
            if not self._doing:
                self._ask(m.Follow(self._owed))
                self._owed = 0
        self.has_work = self._owed > 0

    def check_deadlines(self) -> None:
        """Let nobody wait too long for news, and ask again for what was refused."""
        now = self._time.monotonic_ms()
        parked = self._parked
        if parked.is_pinging and now - parked.pinged_ms >= NEWS_WITHIN_MS:
            self._late = True
            self._resumed.extend(parked.take_all())
        quiet = not parked.is_pinging and now - parked.pinged_ms >= _AGAIN_AFTER_MS
        if self._fed and quiet and (self._late or self._news.is_due):
            self._ping()
        if self._fed and self._producer_id.is_due:
            self._producer_id.ask(self._leader)

    def park(self, session: int) -> None:
        """Let a session wait until the copy has what the leader has now."""
        self._parked.waiting.append(session)
        if not self._parked.is_pinging:
            self._ping()

    def _ping(self) -> None:
        self._parked.begin_ping(self._news.ask())
        self._ask(m.ReachRegistry(), self._parked.number)

    def _reached(self, frame: ClientFrame) -> None:
        if frame.correlation != self._parked.number:
            return
        self._resumed.extend(self._parked.take_pinged())
        if self._parked.waiting:
            self._ping()

    def answered(self, frame: ClientFrame) -> None:
        """Another shard replies to what nobody else here asks."""
        if frame.opcode == _FOLLOW:
            self._learn(*_unpack(frame.body))
            return
        match decode_reply(frame):
            case m.RegistryReached():
                self._late = False
                if frame.correlation == self._parked.number:
                    self._news.heard_ms = self._parked.pinged_ms
                self._reached(frame)
            case m.ProducerGrant(producer):
                self._producer_id.granted(producer)
            case m.Refusal() if frame.opcode == _REACH:
                self._late = True
                self._reached(frame)
            case m.Refusal():  # of the producer
                self._producer_id.refused()

    def _learn(self, index: int, news: Any) -> None:
        if isinstance(news, bytes):
            payload = read_back(Kind.CONTROL, news)
            self._registry.apply(index, payload)
            if payload.change is not None:
                self._doing.append(payload.change)
        else:
            self._registry.restore(self._registry.decode(news))
            # A shard whose trunk broke has things under way, which an epoch of meanwhile may end.
            self._doing = [None]
            self._fed = self.known = True
            if not self._parked.is_pinging:
                self._ping()
        self._owed = index
        self.proceed()
        self._producer_id.ask(self._leader)

    def _ask(self, request: m.Request, number: int = 0) -> None:
        self._forwarder.ask_own(self._leader, request, number)


class ShardTrunks:
    """The trunks of a shard, and its part in the registry: it has a replica of it, or a copy."""

    __slots__ = ("_registry", "cutoff", "feed", "forwarder", "replies", "routes", "view")

    def __init__(
        self,
        routes: Routes,
        forwarder: Forwarder,
        registry: Registry,
        replies: HeldReplies,
        feed: RegistryFeed,
        view: RegistryReplica | RegistryCopy,
        cutoff: Cutoff,
    ) -> None:
        """Reach the shards that `routes` lead to, by `forwarder`. The registry is followed by
        `view`, and `feed` lets others follow it; `cutoff` says what may go on without news.
        """
        self.cutoff = cutoff
        self.routes = routes
        self.forwarder = forwarder
        self._registry = registry
        #: What waits until this shard and all that follow have done what it speaks of.
        self.replies = replies
        self.feed = feed
        #: How this shard keeps up with the registry: by a replica of its group, or a copy of that.
        self.view = view

    @property
    def knows_topics(self) -> bool:
        """Whether this shard knows all topics that it serves: it asks, or reads its log, first."""
        return self.view.known

    @property
    def in_sync(self) -> bool:
        """Whether what is not in the registry here is not, or was not a moment ago."""
        return self.view.in_sync

    def handle(self, event: TrunkOpened | TrunkClosed | PassedBack) -> None:
        """Take an event of a trunk."""
        match event:
            case PassedBack(shard, frames):
                self.forwarder.received(shard, frames)
            case TrunkOpened(shard):
                self.forwarder.opened(shard)
                if isinstance(self.view, RegistryCopy):
                    self.view.opened(shard)
            case TrunkClosed(shard):
                self.forwarder.closed(shard)
                self.view.closed(shard)

    def proceed(self) -> None:
        """Tell what waited until this shard had done it: where `copy` has work, or `replies` are
        held.
        """
        self.view.proceed()
        if not self.feed.is_open and isinstance(self.view, RegistryReplica) and self.view.known:
            self.feed.opened()
        if self.replies.held:  # as only the shard that has the registry does
            self.replies.release()

    def check_deadlines(self) -> None:
        """Let nobody wait for ever."""
        self.view.check_deadlines()
        self.replies.refuse_late()

    def closed(self, session: Session) -> None:
        """A peer is gone, or another shard as one."""
        self.forwarder.left(session)
        self.feed.closed(session.id)

    def certain(self, error: Refused) -> Refused:
        """Return the answer to a request for something that this shard's registry does not have."""
        return error if self.in_sync else no_registry()

    def nodes(self) -> tuple[tuple[int, str, int], ...]:
        """Return the nodes of the set as (node, host, port); () if there is but this one."""
        return self.routes.nodes()

    def reach(self, caller: Caller, foreign: bool) -> None:
        """Answer a shard that asks how far the registry is at least: only its leader says so to
        another node. Raises `NotLeader`.
        """
        if foreign and not self._registry.ready:
            node = self.routes.leader(REGISTRY_GROUP)
            raise NotLeader("this node does not lead the registry", node)
        if not isinstance(self.view, RegistryReplica):
            raise Unavailable("another shard of this node has the registry")
        self.view.ask(caller)

    def may_be_news(self) -> bool:
        """Return whether what is not in the registry here may have come to be in it elsewhere."""
        if isinstance(self.view, RegistryReplica):
            return self.routes.several
        return self.view.in_sync
