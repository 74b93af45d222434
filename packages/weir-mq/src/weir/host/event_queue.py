"""When a shard takes events, and when it does what is deferred."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weir.broker.api import events as ev
from weir.broker.api.effects import Effect
from weir.broker.shard import Shard
from weir.host.flush_schedule import FlushSchedule
from weir.protocol.device.codec import DeviceHello, DevicePublishes, DeviceRequest
from weir.protocol.frame import ClientFrame
from weir.protocol.trunk import Arrival

_PUBLISHING = frozenset[type]((DeviceHello, DevicePublishes))
_NOTHING: list[Effect] = []


class EventQueue:
    """The events of a shard that it has not taken yet.

        queue.put(event)
        while not queue.waits and queue.events:
            do(queue.take())
            do(queue.follow())       # or `run_deferred` behind this turn, if that returns None

    A host does all that is returned, in order, before it calls the next method. An exception of the
    shard's, or of what it asks for, is a bug, and may have left an entry half applied: nothing that
    the shard says is to be believed from there on, and the host calls `close`.
    """

    __slots__ = (
        "_defers", "_flushes", "_gathers", "_shard", "events", "held", "is_closed", "put", "taken",
        "waits",
    )  # fmt: skip

    def __init__(self, shard: Shard, flushes: FlushSchedule) -> None:
        """Feed `shard`, whose flushes run as `flushes` says, which counts what peers ask for."""
        self._shard = shard
        self._flushes = flushes
        self._gathers = self._defers = False
        #: What the shard has taken, until `follow`.
        self.taken: Sequence[ev.Event] = ()
        #: What has happened since, in order.
        self.events: list[ev.Event] = []
        #: Add an event.
        self.put: Callable[[ev.Event], None] = self.events.append
        #: Whether events wait: they are gathered, or the effects of others are being done.
        self.waits = False
        #: Whether the shard has said that reading is held. The host sets it with each `HoldReads`.
        self.held = False
        #: Whether events are dropped.
        self.is_closed = False

    def receive(self, session: int, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        """Add what a peer said. What a device says first, a hello and publishes, becomes one event
        with that of others, if it was `Opened` just now and the shard has not taken that yet.
        """
        self._flushes.asked += len(frames)
        events = self.events
        if events and len(frames) == 2:
            hello, publishes = frames
            opened = events[-1]
            if (
                type(hello) is DeviceHello
                and type(publishes) is DevicePublishes
                and type(opened) is ev.Opened
                and opened.session == session
            ):
                events.pop()
                arrival = Arrival(session, hello, publishes)
                before = events[-1] if events else None
                whence = opened.principal, opened.place
                if type(before) is ev.Arrived and (before.principal, before.place) == whence:
                    before.arrivals.append(arrival)
                else:
                    self.put(ev.Arrived([arrival], *whence))
                return
        self.put(ev.Received(session, frames))

    def arrive(self, event: ev.Arrived) -> None:
        """Add devices that another shard let in."""
        self._flushes.asked += 2 * len(event.arrivals)  # a hello and publishes each
        self.put(event)

    def gather(self) -> None:
        """Let events wait until `release`: the shard takes them as one, for the price of one."""
        self._gathers = self.waits = True

    def release(self) -> None:
        """Let events wait no longer."""
        self._gathers = False
        self.waits = self.is_closed or bool(self.taken)

    def take(self) -> list[Effect]:
        """Let the shard take all events there are, of which there must be one; return what is to be
        done about them at once.
        """
        self.waits = True
        taken = self.taken = tuple(self.events)
        self.events.clear()
        return self._shard.step(*taken)

    def follow(self) -> list[Effect] | None:
        """Return what is to be done behind that. None: the host calls `run_deferred`, once, behind
        this turn and behind the flushes that run inline then. What they confirm goes out before.
        """
        taken, self.taken = self.taken, ()
        self.waits = self._gathers or self.is_closed
        shard = self._shard
        if type(taken[0]) is not ev.Flushed:
            if shard.budget.is_news(self.held):
                return shard.run_deferred()
            if not self._flushes.inline:
                return _NOTHING if _only_publish(taken) else shard.run_deferred()
        if self._defers:
            return _NOTHING
        self._defers = True
        return None

    def run_deferred(self) -> list[Effect]:
        """Return what any event may have made possible."""
        self._defers = False
        return _NOTHING if self.is_closed else self._shard.run_deferred()

    def close(self) -> None:
        """Drop all events from now on: the shard broke, or has ended."""
        self.events.clear()
        self.is_closed = self.waits = True
        self.put = _drop


def _only_publish(events: Sequence[ev.Event]) -> bool:
    """Whether events make nothing possible but a flush: nothing else can be done behind them."""
    for event in events:
        if isinstance(event, ev.Received):
            for frame in event.frames:
                if type(frame) not in _PUBLISHING:
                    return False
        elif not isinstance(event, ev.Opened | ev.Arrived):  # who has said nothing yet, or that
            return False
    return True


def _drop(event: ev.Event) -> None:
    """Nobody believes the shard any more."""
