"""Standing subscriptions between shards: one stream of marks per topic and pair of shards.

The lower shard, which has readers, subscribes once. The upper one, which leads partitions or is
nearer to the shards that do, announces a set of them and sends marks of it. Demand goes up as the
stamps that are waited for, and a mark comes down as soon as the whole set has got there. A mark is
of a set that never changes; a partition that is not in the next set keeps its last register below
(counterexample 4), and an offset comes with each register (counterexample 5).

A stream is silent if no mark comes while one is due. One that is silent for long is dead: what it
told stays, and its partitions are subscribed at another place. All of this is soft state. Its loss
costs time, never order (DESIGN §5 Aggregation).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

import msgspec

from weir.broker.api.events import TICK_MS
from weir.broker.barriers.topic_order import BarrierWaiter, Scope, TopicOrder
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.runtime.outbox import Caller, Outbox
from weir.errors import Refused, RemoteProtocolError, UnknownOpcode
from weir.order.barrier import NO_BARRIER
from weir.order.clock import STAMP_MAX, Time
from weir.protocol.client.codec import decode_reply, encode_reply
from weir.protocol.client.messages import Refusal
from weir.protocol.client.order import SetMark, SubscribeMarks
from weir.protocol.frame import ClientFrame

#: A mark comes so often while nobody waits for one.
IDLE_EVERY_MS = 1_000
#: A demand ends after so long, and is repeated so often while somebody waits.
DEMAND_MS = 1_000
_RENEW_MS = 500
#: So many demands of one stream at most; a lower shard has two at a time, and repeats them.
_DEMANDS_MAX = 16
#: Of a stream that is silent for so many intervals, and as many round trips, nothing is expected.
_SILENT_INTERVALS = 10
_SILENT_ROUND_TRIPS = 3
_SILENT_MS_MIN = 500
#: A place whose stream died is not subscribed for so long if another one may do.
_AVOID_MS = 2_000
#: One that never answers gets more time with each try, up to so many times as much.
_PATIENCE_MAX = 16
#: If ticks were so far apart, this shard stood still, and no stream was silent by that.
_STOOD_STILL_MS = 5 * TICK_MS


# -- the upper shard ---------------------------------------------------------------------------


class MarkStream(msgspec.Struct, eq=False):
    """A stream of marks to a lower shard: `caller` opened it."""

    topic: int
    scope: Scope
    caller: Caller
    #: The set that was announced last, and by partition the offset and the highest stamp below it
    #: that were sent with marks of it.
    number: int = 0
    partitions: tuple[int, ...] = ()
    told: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    #: How many that joined, and that ended, were told.
    roster: int = 0
    ends: int = 0
    marked_ms: int = 0
    #: By stamp, what is demanded; and since when something is, without a break.
    demands: dict[int, BarrierWaiter] = msgspec.field(default_factory=dict)
    since_ms: int = 0
    #: Those that hold the demand back for so long that they are left out of the set, and the stamp
    #: at which they belong to it again. They need not overtake the others: while nothing is
    #: published, no register passes what is demanded.
    behind: frozenset[int] = frozenset()
    behind_stamp: int = 0
    #: How many marks may still be sent before the next tick, or within as long: one a millisecond;
    #: and when the last of these times began.
    room: int = TICK_MS
    room_ms: int = 0
    is_due: bool = False

    def leave_out(self, order: TopicOrder, now_ms: int) -> None:
        """Leave out of the set those that are behind what is demanded for long, so that the others
        go on below: a reader in total order waits for them anyway.
        """
        if not self.demands or now_ms - self.since_ms < _SILENT_MS_MIN:
            return
        stamp, registers, ends = min(self.demands), order.registers, order.ends
        behind = [p for p in order.plan.partitions
                  if p not in ends and registers.get(p, NO_BARRIER).stamp < stamp]  # fmt: skip
        if len(behind) < len(order.plan.partitions):
            self.behind, self.behind_stamp = frozenset(behind), stamp

    def next_mark(self, order: TopicOrder) -> SetMark:
        """Return the mark as of what is known now, of a new set if the last one has changed."""
        registers, ends = order.registers, order.ends
        live = [p for p in order.plan.partitions if p not in ends]
        stamps = {p: registers.get(p, NO_BARRIER).stamp for p in live}
        self.behind = frozenset(p for p in self.behind if stamps.get(p, 0) < self.behind_stamp)
        partitions = tuple(p for p in live if p not in self.behind)
        stamp = min(map(stamps.__getitem__, partitions), default=0)
        announced: tuple[int, ...] = ()
        if partitions != self.partitions or not self.number:
            self.number += 1
            self.partitions = announced = partitions
            self.told = {}
        told, lasts = self.told, order.lasts
        throughs: list[tuple[int, int, int]] = []
        for partition in partitions:
            through = registers.get(partition, NO_BARRIER).through
            highest = lasts.get(partition, STAMP_MAX)
            if told.get(partition) != (through, highest):
                told[partition] = through, highest
                throughs.append((partition, through, highest))
        roster: tuple[tuple[int, int], ...] = ()
        if len(order.roster) != self.roster:
            self.roster, roster = len(order.roster), order.roster
        ended: tuple[tuple[int, int, int], ...] = ()
        if len(ends) != self.ends:
            self.ends, ended = len(ends), tuple((p, *end) for p, end in sorted(ends.items()))
        return SetMark(self.topic, self.number, stamp, throughs, announced, roster, ended)


class MarkStreams:
    """The streams that lower shards have opened here."""

    __slots__ = ("_outbox", "_streams", "_time", "due")

    def __init__(self, outbox: Outbox, time: Time) -> None:
        """Begin without subscribers."""
        self._outbox = outbox
        self._time = time
        #: By session and topic.
        self._streams: dict[int, dict[int, MarkStream]] = {}
        #: Those of which a mark goes out next.
        self.due: dict[MarkStream, None] = {}

    def all(self) -> list[MarkStream]:
        """Return all that are open."""
        return [one for by_topic in self._streams.values() for one in by_topic.values()]

    @property
    def has_late(self) -> bool:
        """Whether a mark is due, and was left to the next tick."""
        streams = (one for by_topic in self._streams.values() for one in by_topic.values())
        return any(one.is_due and one not in self.due for one in streams)

    def find(self, session: int, topic: int) -> MarkStream | None:
        """Return the stream of a topic to a lower shard; None if it is not open."""
        return self._streams.get(session, {}).get(topic)

    def open(self, caller: Caller, topic: int, scope: Scope) -> MarkStream:
        """Return the stream of a topic that a caller has, or begin one: then it has no set yet."""
        by_topic = self._streams.setdefault(caller.session, {})
        stream = by_topic.get(topic)
        if stream is None or stream.caller != caller:
            if stream is not None:
                self.due.pop(stream, None)
            stream = by_topic[topic] = MarkStream(topic, scope, caller)
        return stream

    def end(self, session: int, topic: int) -> None:
        """Send no more marks of a topic to a lower shard."""
        by_topic = self._streams.get(session, {})
        stream = by_topic.pop(topic, None)
        if stream is not None:
            self.due.pop(stream, None)
            if not by_topic:
                del self._streams[session]

    def session_closed(self, session: int) -> None:
        """A lower shard is gone."""
        for topic in list(self._streams.get(session, ())):
            self.end(session, topic)

    def demand(self, stream: MarkStream, stamp: int) -> BarrierWaiter | None:
        """Return a new waiter for a demanded stamp; None if there are too many."""
        now = self._time.monotonic_ms()
        if stamp not in stream.demands and len(stream.demands) >= _DEMANDS_MAX:
            return None
        if not stream.demands:
            stream.since_ms = now
        waiter = stream.demands[stamp] = BarrierWaiter(
            stream.topic, stream.scope, stamp, now + DEMAND_MS, stream.caller, is_demand=True
        )
        return waiter

    def told(self, waiter: BarrierWaiter, reached: bool) -> None:
        """A demand is over: send a mark if it was reached."""
        stream = self.find(waiter.caller.session, waiter.topic)
        if stream is None or stream.demands.get(waiter.stamp) is not waiter:
            return
        del stream.demands[waiter.stamp]
        if reached:
            stream.is_due = True
            self.due[stream] = None

    def tick(self, stream: MarkStream) -> bool:
        """Return whether a mark is due by time."""
        now = self._time.monotonic_ms()
        stream.room, stream.room_ms = TICK_MS, now
        if stream.demands or stream.is_due:
            return True
        return now - stream.marked_ms >= IDLE_EVERY_MS

    def send(self, stream: MarkStream, order: TopicOrder) -> None:
        """Send a mark of what is known, or leave it to the next tick if there were too many."""
        self.due.pop(stream, None)
        now = self._time.monotonic_ms()
        if now - stream.room_ms >= TICK_MS:  # a shard at rest ticks rarely
            stream.room, stream.room_ms = TICK_MS, now
        if not stream.room:
            stream.is_due = True
            return
        stream.room -= 1
        stream.is_due = False
        stream.marked_ms = now
        caller = stream.caller
        mark = stream.next_mark(order)
        # One request has many answers, so they are not counted as such.
        self._outbox.send(caller.session, *encode_reply(mark, caller.opcode, caller.correlation))


# -- the lower shard ---------------------------------------------------------------------------


class Subscription(msgspec.Struct, eq=False):
    """A stream of marks from an upper shard, at `place`."""

    topic: int
    place: int
    number: int
    opened_ms: int
    #: When something came last, and how long the first mark took.
    heard_ms: int = 0
    round_trip_ms: int = 0
    #: The set of the last mark, its stamp, and by partition offset and highest stamp below it.
    set_number: int = 0
    stamp: int = 0
    throughs: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    #: By stamp that is demanded, when it was sent, and since when it is.
    pending: dict[int, int] = msgspec.field(default_factory=dict)
    since_ms: int = 0

    def take(self, mark: SetMark) -> None:
        """Keep what a mark says. Raises `RemoteProtocolError` for one that makes no sense."""
        if mark.topic != self.topic:
            raise RemoteProtocolError(f"a mark of topic {mark.topic} in a stream of {self.topic}")
        if mark.number != self.set_number:
            if mark.number < self.set_number:
                raise RemoteProtocolError(f"a mark of set {mark.number}, which is over")
            self.set_number, self.stamp = mark.number, 0
            # Nothing that an earlier set was told holds for this one.
            self.throughs = dict.fromkeys(mark.partitions, _UNTOLD)
        elif mark.partitions:
            raise RemoteProtocolError(f"set {mark.number} was announced before")
        if mark.stamp < self.stamp:
            raise RemoteProtocolError(
                f"a mark of set {mark.number} at {mark.stamp} behind one at {self.stamp}"
            )
        throughs = self.throughs
        for partition, through, highest in mark.throughs:
            if partition not in throughs:
                raise RemoteProtocolError(f"partition {partition} is not in set {mark.number}")
            throughs[partition] = through, highest
        if mark.partitions and _UNTOLD in throughs.values():
            raise RemoteProtocolError(f"set {mark.number} came without all of its offsets")
        self.stamp = mark.stamp
        for stamp in [one for one in self.pending if one <= mark.stamp]:
            del self.pending[stamp]

    def silent_after_ms(self, patience: int) -> int:
        """Return after how many ms without a mark it is dead."""
        interval = TICK_MS if self.pending else IDLE_EVERY_MS
        least = max(_SILENT_MS_MIN, _SILENT_ROUND_TRIPS * self.round_trip_ms)
        return max(_SILENT_INTERVALS * interval, least) * (1 if self.heard_ms else patience)


_UNTOLD = (-1, -1)


class Subscriptions:
    """The streams that this shard has opened at upper ones: one for each topic and place, whatever
    reads here.
    """

    __slots__ = ("_forwarder", "_newest", "_numbered", "_patience", "_plain", "_streams",
                 "_ticked_ms", "_time", "avoided")  # fmt: skip

    def __init__(self, forwarder: Forwarder, time: Time) -> None:
        """Subscribe to nothing yet."""
        self._forwarder = forwarder
        self._time = time
        self._newest = 0
        self._streams: dict[tuple[int, int], Subscription] = {}
        self._numbered: dict[int, Subscription] = {}
        #: Places of an earlier release, which know no streams.
        self._plain: set[int] = set()
        #: By place whose stream died, until when it is avoided, and how patient one is next time.
        self.avoided: dict[int, int] = {}
        self._patience: dict[int, int] = {}
        self._ticked_ms = time.monotonic_ms()

    def __len__(self) -> int:
        return len(self._streams)

    def demand(self, topic: int, place: int, stamps: Collection[int]) -> bool:
        """Demand marks at these stamps of what a place leads; False if it knows no streams."""
        if place in self._plain:
            return False
        now = self._time.monotonic_ms()
        one = self._streams.get((topic, place))
        if one is None:
            self._newest += 1
            one = Subscription(topic, place, self._newest, now)
        for stamp in stamps:
            if now - one.pending.get(stamp, -_RENEW_MS) < _RENEW_MS:
                continue
            try:
                self._forwarder.ask_own(place, SubscribeMarks(topic, stamp), one.number)
            except Refused:  # it is demanded again with the next tick
                return True
            if not one.pending:
                one.since_ms = now
            one.pending[stamp] = now
            self._streams[topic, place] = self._numbered[one.number] = one
        return True

    def take(self, frame: ClientFrame) -> tuple[Subscription, SetMark] | None:
        """Take what an upper shard sent; None if it is no mark of a stream that is still open.

        Raises `RemoteProtocolError` for a mark that makes no sense.
        """
        one, reply = self._numbered.get(frame.correlation), decode_reply(frame)
        if one is None:
            return None
        if isinstance(reply, Refusal):
            if reply.code == UnknownOpcode.code:
                self._plain.add(one.place)
            self._forget(one)
            return None
        if not isinstance(reply, SetMark):
            return None
        one.take(reply)
        now = self._time.monotonic_ms()
        if not one.heard_ms:
            one.round_trip_ms = now - one.opened_ms
        one.heard_ms = now
        self.avoided.pop(one.place, None)
        self._patience.pop(one.place, None)
        return one, reply

    def end(self, topic: int) -> None:
        """Close the streams of a topic that has no readers here any more."""
        for one in [one for one in self._numbered.values() if one.topic == topic]:
            self._close(one)

    def trunk_closed(self, place: int) -> None:
        """The trunk to a place broke, and all streams with it."""
        self._plain.discard(place)
        for one in [one for one in self._numbered.values() if one.place == place]:
            self._forget(one)

    def tick(self) -> None:
        """Give up streams that are dead: their registers stay, and others are asked."""
        now = self._time.monotonic_ms()
        stood_still, self._ticked_ms = now - self._ticked_ms >= _STOOD_STILL_MS, now
        for place in [place for place, until in self.avoided.items() if until <= now]:
            del self.avoided[place]
        for one in list(self._numbered.values()):
            if stood_still:
                one.heard_ms = one.heard_ms and now
                one.opened_ms = one.since_ms = now
            for stamp in [s for s, sent in one.pending.items() if now - sent >= DEMAND_MS]:
                del one.pending[stamp]  # nobody here waits for it any more
            heard = max(one.heard_ms or one.opened_ms, one.since_ms if one.pending else 0)
            patience = self._patience.get(one.place, 1)
            if now - heard >= one.silent_after_ms(patience):
                self._patience[one.place] = min(2 * patience, _PATIENCE_MAX)
                self.avoided[one.place] = now + _AVOID_MS
                self._close(one)

    def _close(self, one: Subscription) -> None:
        self._forget(one)
        with suppress(Refused):  # it ends with the trunk
            request = SubscribeMarks(one.topic, is_over=True)
            self._forwarder.ask_own(one.place, request, one.number)

    def _forget(self, one: Subscription) -> None:
        del self._numbered[one.number]
        if self._streams.get((one.topic, one.place)) is one:
            del self._streams[one.topic, one.place]
