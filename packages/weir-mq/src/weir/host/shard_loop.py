"""The only loop: a shard takes its events, and what comes of them is done, in order.

`EventQueue` says when the shard takes them, and when what is deferred is done. `Backlog` has what
is no event yet: a read with many small frames is served by parts, in line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence, Sized
from typing import Any, Protocol

from weir.broker.api import events as ev
from weir.broker.api.effects import Answers, Effect, Hangup, Send, SignFrames
from weir.broker.shard import Shard
from weir.codec import U32, Buffer
from weir.host.fair_queue import FairQueue
from weir.host.logs import FlushSchedule
from weir.host.ports import Soon
from weir.model.limits import KIB
from weir.protocol.client.consumers import TakeTurn
from weir.protocol.client.declaration import opcode_of
from weir.protocol.client.messages import (
    DescribeTopic,
    Fetch,
    FetchChunks,
    Hello,
    Ping,
    Produce,
    Pull,
)
from weir.protocol.client.order import AwaitMark, SubscribeMarks
from weir.protocol.connection import Connection
from weir.protocol.device import DeviceHello, DevicePublishes, DeviceRequest
from weir.protocol.frame import CLIENT_HEADER, CLIENT_VERSION, ClientFrame
from weir.protocol.trunk import OWN_SESSION, Arrival, Kind, TrunkFrame

_PRODUCE = opcode_of(Produce)
_PUBLISHING = frozenset[type]((DeviceHello, DevicePublishes))
#: What concerns peers besides replies, and has its place among them.
_TO_SESSIONS = frozenset[type]((Answers, Hangup, SignFrames))
#: Requests whose replies may fill a peer.
ASK_FOR_MESSAGES = frozenset({opcode_of(Fetch), opcode_of(FetchChunks), opcode_of(Pull)})
#: What comes behind these of clients is served once their effects are done.
_SERVED_ALONE = ASK_FOR_MESSAGES | {opcode_of(Hello)}
#: Requests that leave nothing which ticks carry on, but somebody who waits, of whom `Shard.idle_ms`
#: knows; or what changes something, of which it knows as well.
_READS = frozenset(
    opcode_of(one)
    for one in (AwaitMark, DescribeTopic, Fetch, Ping, Pull, SubscribeMarks, TakeTurn)
)
_SUBSCRIBE_MARKS = opcode_of(SubscribeMarks)
_NOTHING: list[Effect] = []
#: Of a client's read that is longer than this, so many frames are served at once; the others wait
#: in line.
_CROWDED_BYTES = 2 * KIB
PART_FRAMES = 64
#: Where the length of the body stands in the header of a client frame.
_SIZE_AT = 4
#: A turn takes at most so many frames of those that are served by parts.
_TURN_FRAMES = 1_024
#: Of what peers say in a turn of the host, so much is taken by the shard at once: meanwhile the
#: memory budget is not looked at.
TURN_BYTES = 128 * KIB
#: So many bytes of a namespace are served in its turn, and what the last part has beyond them.
_QUANTUM_BYTES = 64 * KIB
#: The longest time between two ticks of a shard that rests.
REST_MS = 1_000
#: After so many ticks in a row that found nothing to do, a shard rests.
_QUIET_TICKS = 4


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
        "_flushes", "_gathers", "_shard", "changed", "defers", "events", "frames", "held",
        "is_closed", "put", "taken", "waits",
    )  # fmt: skip

    def __init__(self, shard: Shard, flushes: FlushSchedule) -> None:
        """Feed `shard`, whose flushes run as `flushes` says, which counts what peers ask for."""
        self._shard = shard
        self._flushes = flushes
        self._gathers = False
        #: Whether `run_deferred` is still to come, behind this turn.
        self.defers = False
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
        #: How many frames of peers have come so far.
        self.frames = 0
        #: Whether the shard took more than ticks, reads and flushes since `Pace` has set this to
        #: False.
        self.changed = True

    def receive(self, session: int, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        """Add what a peer said. What a device says first, a hello and publishes, becomes one event
        with that of others, if it was `Opened` just now and the shard has not taken that yet.
        """
        self._flushes.asked += len(frames)
        for frame in frames:
            self.frames += len(frame.sns) if type(frame) is DevicePublishes else 1
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

    def retract(self, session: int) -> None:
        """Have a peer that was `Opened` be nobody for now."""
        events = self.events
        if events and type(events[-1]) is ev.Opened and events[-1].session == session:
            events.pop()
        else:
            self.put(ev.Closed(session))

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
        if not self.changed:
            self.changed = not _only_read(taken)
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
            if not self._flushes.inline:
                is_over = _only_publish(taken) and not shard.has_deferred
                return _NOTHING if is_over else shard.run_deferred()
            if shard.budget.is_news(self.held):
                return shard.run_deferred()
        if self.defers:
            return _NOTHING
        self.defers = True
        return None

    def run_deferred(self) -> list[Effect]:
        """Return what any event may have made possible."""
        self.defers = False
        return _NOTHING if self.is_closed else self._shard.run_deferred()

    def close(self) -> None:
        """Drop all events from now on: the shard broke, or has ended."""
        self.events.clear()
        self.is_closed = self.waits = True
        self.put = _drop


def _only_publish(events: Sequence[ev.Event]) -> bool:
    """Whether events are publishes alone, which make nothing possible but a flush, mostly."""
    for event in events:
        if isinstance(event, ev.Received):
            for frame in event.frames:
                if isinstance(frame, ClientFrame):
                    if frame.opcode != _PRODUCE:
                        return False
                elif type(frame) not in _PUBLISHING:
                    return False
        elif not isinstance(event, ev.Opened | ev.Arrived):  # a silent peer, or that
            return False
    return True


def _only_read(events: Sequence[ev.Event]) -> bool:
    """Whether events are requests after which only deadlines are left, marks that another shard
    sends each second while nothing happens, ticks, and flushes, which end something that has begun
    before.
    """
    for event in events:
        if isinstance(event, ev.Received):
            for frame in event.frames:
                if not isinstance(frame, ClientFrame) or frame.opcode not in _READS:
                    return False
        elif isinstance(event, ev.PassedBack):
            if not all(map(_is_mark, event.frames)):
                return False
        elif not isinstance(event, ev.Ticked | ev.Flushed):
            return False
    return True


def _is_mark(frame: TrunkFrame) -> bool:
    """Whether another shard sends a mark of what it leads. Who waits for more of it, or was left to
    the next tick, `Shard.idle_ms` knows.
    """
    kind, session, body = frame
    if kind != Kind.REPLIES or session != OWN_SESSION or len(body) < CLIENT_HEADER.size:
        return False
    _, _, opcode, _, _ = CLIENT_HEADER.unpack_from(body)
    return bool(opcode == _SUBSCRIBE_MARKS)


def _drop(event: ev.Event) -> None:
    """Drop events of a broken shard."""


class PendingFrames(Protocol):
    """Whose frames wait for the effects of others."""

    #: Whether it is among those `unserved`.
    queued: bool

    def serve(self) -> None:
        """Hand on the next of them."""


class FrameParts(Protocol):
    """A peer with so many small frames that they are served in parts."""

    session: int

    def serve_part(self) -> int:
        """Hand on a part of them; return how many bytes that was."""


class Backlog:
    """Frames that have come and are not in the queue of events yet, by peer."""

    __slots__ = ("_namespaces", "_queue", "is_shared", "parts", "unserved")

    def __init__(self, queue: EventQueue) -> None:
        """Begin without any; `queue` counts those that are served."""
        self._queue = queue
        #: Whether peers were assigned to namespaces: while memory is short, those have their turns.
        self.is_shared = False
        #: Those with frames that wait for the effects of others: they are served once the queue has
        #: no events, and the effects of all before are done.
        self.unserved: deque[PendingFrames] = deque()
        #: Those that are served by parts, in turns of their own, by namespace.
        self.parts: FairQueue[FrameParts] = FairQueue(_QUANTUM_BYTES)
        #: The namespaces of peers, by session.
        self._namespaces: dict[int, str] = {}

    def assign(self, session: int, namespace: str) -> None:
        """Serve the parts of a peer in the turns of its namespace."""
        self._namespaces[session] = namespace
        self.is_shared = True

    def forget(self, session: int) -> None:
        """A peer is gone."""
        self._namespaces.pop(session, None)

    def add_parts(self, one: FrameParts) -> None:
        """Let a peer stand in line to be served by parts."""
        self.parts.add(self._namespaces.get(one.session, ""), one)

    def serve_next(self) -> None:
        """Serve the next frames of the peer that waits longest in `unserved`."""
        one = self.unserved.popleft()
        one.queued = False
        one.serve()

    def serve_parts(self) -> None:
        """Serve parts of those whose turn it is, until the frames of a turn are served. A host
        calls this behind a turn that has left some.
        """
        queue, parts = self._queue, self.parts
        until = queue.frames + _TURN_FRAMES
        for _ in range(len(parts)):
            if queue.frames >= until or (taken := parts.take()) is None:
                break
            namespace, one = taken
            parts.charge(namespace, one.serve_part())


def until_effects(frames: Sequence[ClientFrame | DeviceRequest]) -> int:
    """Return how many frames may be served at once: up to the first whose effects may keep those
    behind it from being served. One that asks for messages may fill its peer, and by a hello it
    becomes known whose quota a peer uses.
    """
    for end, frame in enumerate(frames, 1):
        if isinstance(frame, ClientFrame):
            if frame.opcode in _SERVED_ALONE:
                return end
        elif isinstance(frame, DeviceHello):
            return end
    return len(frames)


def first_part(stream: Connection, data: bytes) -> tuple[bytes, bytes]:
    """Return what holds at most as many frames as a part has, and the rest, which is to stay in
    line. `stream` has not taken `data` yet.
    """
    at = 0
    if len(data) <= _CROWDED_BYTES or stream.is_device:
        return data, b""
    if stream.stream is None and data[0] != CLIENT_VERSION:
        return data, b""
    if stream.pending:
        claimed = stream.claimed or CLIENT_HEADER.size
        at = max(claimed - stream.pending, 0)
    for _ in range(PART_FRAMES):
        if at + CLIENT_HEADER.size > len(data):
            return data, b""
        (size,) = U32.unpack_from(data, at + _SIZE_AT)
        at += CLIENT_HEADER.size + size
    return data[:at], data[at:]


def with_joined_replies(effects: list[Effect], here: Container[int]) -> list[Effect]:
    """Return effects with the small replies to each peer that is connected `here` joined, in order:
    to write costs the system more than most replies cost the shard.

    A reply moves up to the one before it, but over nothing else that concerns its peer.
    """
    sessions = [effect.session for effect in effects if isinstance(effect, Send)]
    if len(set(sessions)) == len(sessions):
        return effects  # each gets one, as those do that wait for it
    found: list[Effect] = []
    #: By session, the place in `found` of its last reply, and all buffers that belong there.
    last: dict[int, tuple[int, list[Buffer]]] = {}
    for effect in effects:
        if isinstance(effect, Send):
            session = effect.session
            before = last.get(session)
            if before is not None and not effect.charged:
                before[1].extend(effect.buffers)
                continue
            if before is not None:
                _join(found, *before)
            if session in here:
                last[session] = len(found), [*effect.buffers]
        elif type(effect) in _TO_SESSIONS:
            for before in last.values():
                _join(found, *before)
            last.clear()
        found.append(effect)
    for before in last.values():
        _join(found, *before)
    return found


def _join(found: list[Effect], at: int, buffers: list[Buffer]) -> None:
    """Let the reply at a place have all these buffers."""
    first = found[at]
    if isinstance(first, Send) and len(first.buffers) < len(buffers):
        found[at] = Send(first.session, tuple(buffers), first.charged)


class Clients(Protocol):
    """The connections of clients, as far as the loop is concerned."""

    backlog: Backlog

    @property
    def at_rest(self) -> bool:
        """Whether nobody waits to be looked at with each tick."""

    @property
    def open_now(self) -> Mapping[int, object]:
        """Those that are open, by session."""

    def hold_clients(self) -> None:
        """Let nobody in until `admit_clients`, but other nodes: the shard is not there yet."""

    def admit_clients(self) -> None:
        """Let those in who wait, as fast as the limits allow."""


class Host(Protocol):
    """Whose shard it is."""

    def serve(self) -> None:
        """The shard can serve: clients are let in."""

    def wake(self) -> None:
        """The shard's rest is over: it ticks as often as ever."""

    def broke(self, where: str, error: Exception) -> None:
        """The shard broke: nothing that it says is to be believed any more. May raise `error`."""


class ShardLoop:
    """Lets a shard take what is in its queue, and does what it asks for, until that is empty."""

    __slots__ = (
        "_actions", "_backlog", "_connections", "_host", "_linked", "_queue", "_rests_until",
        "_runs_soon", "_said_bytes", "_serves_parts", "_shard", "_soon", "_spoke", "_started",
        "serves",
    )  # fmt: skip

    def __init__(
        self,
        shard: Shard,
        queue: EventQueue,
        connections: Clients,
        linked: Sized,
        actions: Mapping[type, Callable[[Any], None]],
        host: Host,
        soon: Soon,
    ) -> None:
        """`actions` do what each effect asks for. `linked` are the nodes that this shard links to:
        with any of them clients are accepted although `shard` leads nothing, because these nodes
        find the leaders among themselves.
        """
        self._shard = shard
        self._queue = queue
        self._connections = connections
        self._backlog = connections.backlog
        self._linked = linked
        self._actions = actions
        self._host = host
        self._soon = soon
        self._serves_parts = self._started = self._runs_soon = False
        #: The monotonic time until which the shard rests, in ms; 0: it does not.
        self._rests_until = 0
        #: Which peer spoke last; and how much was said in this turn of the host.
        self._spoke = self._said_bytes = 0
        #: Whether clients are accepted: once they are, they stay accepted, whichever node leads.
        self.serves = False

    def start(self) -> None:
        """Bring the shard up; clients wait to be let in until it can serve."""
        self._connections.hold_clients()
        self.do(self._shard.start())
        self._started = True

    def handle(self, event: ev.Event, /) -> None:
        """Feed one event and do what comes of it, unless events are gathered."""
        queue = self._queue
        queue.put(event)
        if not queue.waits:
            self.run()

    def run(self) -> None:
        """Let the shard take what is in its queue, and do what comes of it, until that is empty."""
        queue, backlog = self._queue, self._backlog
        unserved = backlog.unserved
        try:
            while not queue.waits:
                if not queue.events:
                    if not unserved:
                        break
                    backlog.serve_next()
                    continue
                if effects := queue.take():
                    self.do(effects)
                behind = queue.follow()
                if behind:
                    self.do(behind)
                elif behind is None:
                    self._soon(self._run_deferred)
            if not self.serves:
                self._look()
            if backlog.parts and not self._serves_parts:
                self._serves_parts = True
                self._soon(self._serve_parts)
            if self._rests_until:
                self._wake_if_due()
        except Exception as error:
            self._broke(error)

    def rest(self, until_ms: int) -> None:
        """The shard does not tick before monotonic time `until_ms`: the host is told to `wake` as
        soon as there is something for ticks before that.
        """
        self._rests_until = until_ms

    def end_rest(self) -> None:
        """The host knows that the rest is over."""
        self._rests_until = 0

    def _wake_if_due(self) -> None:
        """End the rest, unless there were only reads, and nobody waits for less than it lasts."""
        queue, shard = self._queue, self._shard
        if not queue.changed:
            if queue.defers:
                return  # it is seen behind that
            idle_ms = shard.idle_ms(REST_MS) if self._connections.at_rest else 0
            if shard.time.monotonic_ms() + idle_ms >= self._rests_until:
                return
        self._rests_until = 0
        self._host.wake()

    def run_soon(self, session: int, size: int) -> None:
        """Run for `size` bytes that a peer said just now: behind this turn of the host, so that
        what others say in it is one to the shard. Run at once where nobody else spoke since the
        peer did last, or where much was said in this turn.
        """
        self._said_bytes += size
        before, self._spoke = self._spoke, session
        if self._said_bytes > TURN_BYTES or (session == before and not self._runs_soon):
            self._said_bytes = 0
            self.run()
        elif not self._runs_soon:
            self._runs_soon = True
            self._soon(self._run_gathered)

    def do(self, effects: list[Effect]) -> None:
        """Do what effects ask for, in order; see `with_joined_replies`."""
        actions = self._actions
        if len(effects) > 1:
            effects = with_joined_replies(effects, self._connections.open_now)
        for effect in effects:
            actions[type(effect)](effect)

    def _run_gathered(self) -> None:
        self._runs_soon, self._said_bytes = False, 0
        if not self._queue.waits:
            self.run()

    def _serve_parts(self) -> None:
        self._serves_parts = False
        self._backlog.serve_parts()
        self.run()

    def _run_deferred(self) -> None:
        try:
            self.do(self._queue.run_deferred())
            if not self.serves:
                self._look()
            if self._rests_until:
                self._wake_if_due()
        except Exception as error:
            self._broke(error)

    def _look(self) -> None:
        """Serve as soon as the shard can."""
        if self._started and (self._shard.ready or self._linked):
            self.serves = True
            self._connections.admit_clients()
            self._host.serve()

    def _broke(self, error: Exception) -> None:
        taken = self._queue.taken
        self._queue.close()
        self._host.broke(type(taken[0]).__name__ if taken else "settling", error)


class Pace:
    """When the next tick of one shard is due: rarely, while it has nothing to do.

        pace.ticking()
        ...                             # the tick, and all that comes of it
        later(pace.rest_ms() or tick_ms, tick)  # or `tick_ms` after `ShardLoop` says `wake`

    A shard looks at all that may be due whenever it is told that time passes. Where nothing has
    happened for a while that finds nothing, so it rests: the next tick comes at the nearest
    deadline of those who wait in its partitions, or after `REST_MS`. The first event ends the rest:
    the next tick comes as if there had been none. Reads do not, but what they wait for may bring
    the next tick forward (docs/adr/0127). What else has a deadline, such as a session whose
    token expires, is up to `REST_MS` late in a shard at rest. Ticks also carry the heartbeats of
    links and notice that one is silent: a shard that is linked to other nodes never rests.
    """

    __slots__ = ("_connections", "_linked", "_queue", "_quiet", "_shard", "_tick_ms", "number",
                 "turns")  # fmt: skip

    def __init__(
        self, shard: Shard, queue: EventQueue, connections: Clients, turns: ShardLoop,
        linked: Sized, tick_ms: int = ev.TICK_MS,
    ) -> None:  # fmt: skip
        """Pace `shard`, which takes events from `queue` in `turns`. `linked` are the nodes that it
        links to; `tick_ms` lie between two ticks of a shard that does not rest.
        """
        self._shard = shard
        self._queue = queue
        self._connections = connections
        #: In which turns the shard takes events.
        self.turns = turns
        #: Which tick is to come, for a host that cannot take a timer back.
        self.number = 0
        self._linked = linked
        self._tick_ms = tick_ms
        #: How many ticks in a row found nothing to do.
        self._quiet = 0

    def ticking(self) -> None:
        """A tick begins: what comes of it ends no rest."""
        self.turns.end_rest()
        if self._queue.changed:  # since the last tick
            self._quiet = 0
            self._queue.changed = False

    def rest_ms(self) -> int:
        """Begin a rest, if the tick that ends now shows that nothing is to be done: return in how
        many milliseconds the next one is due, unless the host is told to `wake` before. Else 0.
        """
        is_quiet = not (self._queue.changed or self._linked) and self.turns.serves
        rest_ms = self._shard.idle_ms(REST_MS) if is_quiet and self._connections.at_rest else 0
        self._quiet = self._quiet + 1 if rest_ms else 0
        if self._quiet <= _QUIET_TICKS or rest_ms <= self._tick_ms:
            return 0
        self.turns.rest(self._shard.time.monotonic_ms() + rest_ms)
        return rest_ms
