"""One process of the network: its endpoint, its socket, and its connection to the controller.

All of it runs in one asyncio loop, which should do nothing else: a loop that stands still for ten
intervals sends no beacons, and the process is taken for dead. `weir_toc.member` gives it a thread.
"""

from __future__ import annotations

import asyncio
import random
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from time import monotonic_ns
from typing import NamedTuple

from weir_toc.controller.codec import RANGES_MAX, command_from, decisions_from, report_to
from weir_toc.controller.entries import Completed, Decisions, Fail, Recalled
from weir_toc.controller.records import Returned
from weir_toc.endpoint.endpoint import Endpoint
from weir_toc.endpoint.events import (
    Admitted,
    Delivered,
    EndpointConfig,
    Excluded,
    Left,
    LeftAlike,
    ProcessFailed,
    SendFailed,
    Service,
    Settled,
    Undeliverable,
)
from weir_toc.endpoint.making import Scatterings
from weir_toc.errors import ClockStopped, Fenced, NotSent, Refused, SendBufferFull, TocError
from weir_toc.hosts.alarm import Alarm
from weir_toc.hosts.control_link import ControlLink, RawClock
from weir_toc.hosts.frames import Address, Frame, number_in, packets_in, text_in
from weir_toc.hosts.rack_link import RackLink
from weir_toc.hosts.udp import OpenSocket, UdpSocket
from weir_toc.node import SILENT_INTERVALS
from weir_toc.places import place_named
from weir_toc.topology import rack_switch

#: A program is given no more pieces at once after so many events. So many failures of sends it may
#: leave unread.
BATCH_EVENTS, FAILURES_MAX = 256, 10_000
#: Before time passes for an endpoint, so many bursts are read: it may have been stopped. But no
#: more once an interval has passed: others wait for its beacon.
_BURSTS_BEFORE_TICK = 16
_AGAIN_AFTER = 0.1
#: A process that was excluded waits for so many seconds to be told what became of what it holds.
SETTLE_SECONDS = 10.0
#: Python's lock changes hands so often in an interval at least, if two threads want it.
SWITCHES_PER_INTERVAL = 10
_EXCLUDED = (
    "this process was silent for {silent:g} ms or longer, or cut off: others go on without it. It "
    "ran {late:g} ms late at most. Join again; it will be another process"
)
_LOST = ". What it held of reliable messages is lost: {why}"
_CUT_OFF = (
    ". Its rack was cut off: what it delivered last of reliable messages, others may not deliver"
)
_UNTOLD = "the controller did not tell within {seconds:g} s which of them others deliver"
_NOT_KEPT = "the controller does not keep any more which of them others deliver"

#: The memory for messages that wait for their turn, in bytes, unless a program says another.
REORDER_BYTES = EndpointConfig().reorder_budget
#: Stands for the stamp of a scattering that has not left.
_WAITS = -1

ProgramEvent = Delivered | SendFailed | ProcessFailed


def _share_the_lock(interval: int) -> None:
    """Let a busy program give up Python's lock often enough.

    Each call to a socket gives the lock up, and gets it back after `sys.getswitchinterval()` while
    the program computes: 5 ms by default. A few such calls in one interval would be silence.
    """
    wait = interval / 1e9 / SWITCHES_PER_INTERVAL
    if wait < sys.getswitchinterval():
        sys.setswitchinterval(wait)


class Stream:
    """What one service has for the program: the oldest first."""

    def __init__(self) -> None:
        self.events: deque[ProgramEvent] = deque()
        #: Set while there are events, or none will come.
        self.has_news = asyncio.Event()
        #: How many messages of the last batch the program is working on.
        self.given = 0
        self.failures = 0

    def take(self) -> list[ProgramEvent]:
        """Return the next events."""
        batch: list[ProgramEvent] = []
        count = 0
        while self.events and count < BATCH_EVENTS:
            one = self.events.popleft()
            batch.append(one)
            count += 1
            if isinstance(one, Delivered):
                self.given += len(one.rows)
                count += len(one.rows)
            else:
                self.failures -= isinstance(one, SendFailed)
        return batch


class Departure:
    """A call that waits until all of its scatterings have left."""

    def __init__(self, tickets: range) -> None:
        self.future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.tickets = tickets
        #: Why the last one that never left did not.
        self.why = ""
        self._stamps = [_WAITS] * len(tickets)
        self._missing = len(tickets)
        if not tickets:
            self.future.set_result([])

    @property
    def is_over(self) -> bool:
        """Whether all have left, or never will."""
        return not self._missing

    def waits(self, ticket: int) -> bool:
        """Whether one has not left yet, and may."""
        return self._stamps[ticket - self.tickets.start] == _WAITS

    def left(self, ticket: int, stamp: int) -> None:
        """One has left, or never will: then its stamp is 0."""
        self._stamps[ticket - self.tickets.start] = stamp
        self._count(1)

    def left_alike(self, tickets: range, stamp: int) -> None:
        """Several have left, with stamps that follow each other."""
        at = tickets[0] - self.tickets.start
        self._stamps[at : at + len(tickets)] = range(stamp, stamp + len(tickets))
        self._count(len(tickets))

    def _count(self, left: int) -> None:
        self._missing -= left
        if not self._missing and not self.future.done():  # done if nobody waits any more
            if self._stamps == [0]:
                self.future.set_exception(NotSent(self.why))
            else:
                self.future.set_result(self._stamps)

    def fail(self, why: TocError) -> None:
        """End the wait with an error, unless it has ended."""
        if not self.future.done():
            self.future.set_exception(type(why)(str(why)))


class Departures:
    """Calls that wait until what they sent has left.

    Tickets rise from call to call, so a call is found by its first one: to note each ticket would
    take longer than what else is done for most messages here.
    """

    def __init__(self) -> None:
        #: The first tickets, and the calls in the same order.
        self._firsts: list[int] = []
        self._calls: list[Departure] = []

    def add(self, tickets: range) -> Departure:
        """Let a call wait for these tickets, which lie above all that were added before."""
        call = Departure(tickets)
        if tickets:
            self._firsts.append(tickets.start)
            self._calls.append(call)
        return call

    def left(self, ticket: int, stamp: int, why: str = "") -> bool:
        """One has left, or never will, and `why` tells why not; return whether a call waited."""
        at = bisect_right(self._firsts, ticket) - 1
        if at < 0 or ticket not in (call := self._calls[at]).tickets or not call.waits(ticket):
            return False
        call.why = why or call.why
        call.left(ticket, stamp)
        self._forget(at, call)
        return True

    def left_alike(self, tickets: range, stamp: int) -> None:
        """Several of one call have left, with stamps that follow each other."""
        at = bisect_right(self._firsts, tickets[0]) - 1
        if at >= 0 and tickets[0] in (call := self._calls[at]).tickets:
            call.left_alike(tickets, stamp)
            self._forget(at, call)

    def fail(self, why: TocError) -> None:
        """End all calls with an error."""
        calls, self._calls, self._firsts = self._calls, [], []
        for call in calls:
            call.fail(why)

    def _forget(self, at: int, call: Departure) -> None:
        if call.is_over:
            del self._firsts[at], self._calls[at]


class Settling:
    """Which failures this process must answer, and when it may."""

    def __init__(self) -> None:
        #: Failed processes with which nothing is under way, and failures that are not answered.
        self._settled: set[int] = set()
        self._due: dict[int, frozenset[int]] = {}
        #: What the controller commanded before this process was admitted.
        self.held: list[Fail] = []
        #: What failed receivers cannot be told, and the controller has not noted yet.
        self.undeliverable: asyncio.Queue[Undeliverable] = asyncio.Queue()

    def release(self) -> list[Fail]:
        """Return what was held, once."""
        held, self.held = self.held, []
        return held

    def begin(self, failure: int, processes: Iterable[int]) -> list[int]:
        """Note a failure; return the failures to answer now."""
        self._due[failure] = frozenset(processes)
        return self._completed()

    def settle(self, process: int) -> list[int]:
        """Note that nothing is under way to a failed process; return the failures to answer."""
        self._settled.add(process)
        return self._completed()

    def _completed(self) -> list[int]:
        done = [number for number, failed in self._due.items() if failed <= self._settled]
        for number in done:
            del self._due[number]
        return done


class Ending:
    """Why a process does not go on; both are None while it does."""

    def __init__(self) -> None:
        #: Nothing is sent any more. What others deliver of what it holds is handed out behind that.
        self.excluded: Fenced | None = None
        self.is_excluded = asyncio.Event()
        #: Whether its rack was cut off, as the controller has said.
        self.is_cut_off = False
        #: Streams end, too.
        self.ended: TocError | None = None

    def check(self) -> None:
        """Raise why nothing is sent any more, if so."""
        self._raise(self.ended or self.excluded)

    def check_streams(self) -> None:
        """Raise why nothing will come any more, if so."""
        self._raise(self.ended)

    @staticmethod
    def _raise(why: TocError | None) -> None:
        if why is not None:
            raise type(why)(str(why))


class Wishes(NamedTuple):
    """At which rack a program joins, and how much memory others may use there."""

    #: None for the one with the fewest processes.
    rack: int | None
    reorder_bytes: int


class Process:
    """A process that has joined, or is joining."""

    def __init__(
        self,
        controller: Sequence[Address],
        name: str,
        rack: int | None,
        open_socket: OpenSocket = UdpSocket,
        raw_clock: RawClock = monotonic_ns,
        reorder_bytes: int = REORDER_BYTES,
    ) -> None:
        self.name = name
        self.link = ControlLink(controller, {"op": "hello", "kind": "guest"}, raw_clock)
        #: Processes that have joined, by name.
        self.names: dict[str, int] = {}
        #: Why the controller has given no id yet, as it said last.
        self.refused = ""
        self._wishes = Wishes(rack, reorder_bytes)
        self._open_socket = open_socket
        self._endpoint: Endpoint | None = None
        self._socket: RackLink | None = None
        self._streams = {service: Stream() for service in Service}
        #: Set whenever the names have changed, or none will any more.
        self._named = asyncio.Event()
        self._admitted = asyncio.Event()
        self._sends = Departures()
        self._settling = Settling()
        self._alarm = Alarm(self.link, self._tick)
        self._ending = Ending()

    @property
    def process(self) -> int:
        """The id of this process; 0 before it has one."""
        return self._endpoint.process if self._endpoint is not None else 0

    @property
    def switch(self) -> Address | None:
        """Where the aggregator of its rack is; None before the controller has told it."""
        return self._socket.switch if self._socket is not None else None

    async def run(self) -> None:
        """Join, and go on until cancelled. `wait_until_joined` tells when it has joined."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.link.run())
                tasks.create_task(self._note_recalls())
                tasks.create_task(self._settle())
                await self._register()
                assert self._socket is not None
                loop.add_reader(self._socket.fileno(), self._readable)
                self._after()
                while True:
                    self._take_frame(await self.link.frames.get())
        finally:
            self._alarm.cancel()
            if self._socket is not None:
                loop.remove_reader(self._socket.fileno())
                self._socket.close()

    async def _register(self) -> None:
        incarnation = random.SystemRandom().getrandbits(62)
        request: Frame = {"op": "register", "name": self.name, "nonce": incarnation}
        if self._wishes.rack is not None:
            request["rack"] = self._wishes.rack
        while (answer := await self.link.request(request))["op"] != "done":
            self.refused = str(answer.get("why", ""))
            if answer.get("never") is True:
                raise Refused(self.refused)
            # Its aggregator may start yet, and a former process of this name be given up.
            await asyncio.sleep(_AGAIN_AFTER)
        process, interval = number_in(answer, "process"), number_in(answer, "interval")
        place = place_named(text_in(answer, "place"))
        await self.link.is_set.wait()
        switch = text_in(answer, "host"), number_in(answer, "port")
        self._socket = RackLink(switch, place, self._open_socket)
        hello: Frame = {"node": process, "incarnation": incarnation}
        if self._socket.address is not None:
            hello["host"], hello["port"] = self._socket.address
        self.link.hello = {"op": "hello", "kind": "node", **hello}
        config = EndpointConfig(interval=interval, reorder_budget=self._wishes.reorder_bytes,
                                barriers_in_data=place.barriers_in_data,
                                program_takes=True)  # fmt: skip
        self._endpoint = Endpoint(process, 1, self.link.now(), config)
        _share_the_lock(interval)
        await self.link.request({"op": "attach", **hello})

    # -- what the program calls ----------------------------------------------------------------

    async def wait_until_joined(self) -> None:
        """Wait until the aggregator has admitted this process and its name is known to all."""
        await self._admitted.wait()
        self._ending.check()
        await self.wait_for((self.name,))

    async def wait_for(self, names: Sequence[str]) -> None:
        """Wait until processes of all these names have joined."""
        while not all(name in self.names for name in names):
            self._ending.check()
            self._named.clear()
            await self._named.wait()
        self._ending.check()

    async def send_many(self, service: Service, scatterings: Scatterings) -> list[int]:
        """Send scatterings in this order; return their stamps once all have left.

        Raises InvalidScattering, SendBufferFull and Fenced before any is sent, and NotSent if only
        one was to be sent and never leaves. Of several, the stamp of such a one is 0.
        """
        self._ending.check()
        stream = self._streams[service]
        if stream.failures >= FAILURES_MAX:
            raise SendBufferFull(f"{FAILURES_MAX} failures of sends are unread: read the events")
        assert self._endpoint is not None
        tickets = self._endpoint.send_many(self.link.now(), service, scatterings)
        departure = self._sends.add(tickets)
        self._after()
        return await departure.future

    async def take(self, service: Service) -> list[ProgramEvent]:
        """Return the next events of a service; those of the call before count as worked on.

        Raises Fenced once all are taken that came before this process was excluded.
        """
        stream = self._streams[service]
        if stream.given and self._endpoint is not None:
            self._endpoint.taken(self.link.now(), service, stream.given)
            stream.given = 0
            self._after()
        await stream.has_news.wait()
        batch = stream.take()
        if not batch:
            self._ending.check_streams()
        if not stream.events and not self._ending.ended:
            stream.has_news.clear()
        return batch

    async def drain(self) -> None:
        """Wait until all that was sent has left and is acknowledged, or given up, and until the
        network's commit barrier has passed the reliable part of it. A process that leaves before
        that has failed at a stamp below, and receivers discard what they have acknowledged.
        """
        ending = self._ending
        while not ending.excluded and not ending.ended and self._endpoint is not None:
            state = self._endpoint.describe()
            if not any(
                state.get(key) for key in ("buffered", "open", "best_effort", "uncommitted")
            ):
                return
            await asyncio.sleep(0.001)

    def describe(self) -> Mapping[str, object]:
        """Return what waits, what was counted, and how far the clock may be off, in ns."""
        if self._endpoint is None:
            return {}
        clock = self.link.read_clock()
        return {
            "process": self.process,
            **self._endpoint.describe(),
            **asdict(self._endpoint.counters),
            "strangers": self._socket.strangers if self._socket is not None else 0,
            "kernel_drops": self._socket.kernel_drops if self._socket is not None else 0,
            "late_max_ns": self._alarm.late_max,
            "clock_raw_ns": clock.raw,
            "clock_ns": clock.time,
            "clock_error_ns": clock.error,
            "controller": self.link.is_connected,
        }

    # -- packets and time ----------------------------------------------------------------------

    def _readable(self) -> None:
        self._read()
        self._after()

    def _read(self) -> bool:
        """Take one burst; return whether there may be more."""
        assert self._socket is not None
        assert self._endpoint is not None
        burst = self._socket.read()
        if burst is not None:
            self._endpoint.receive_runs(self.link.now(), burst)
        return burst is not None

    def _tick(self) -> None:
        assert self._endpoint is not None
        assert self._socket is not None
        try:
            self._alarm.check(self._endpoint.config.interval)
        except ClockStopped as error:
            self._excluded(f"{error}; it is another process then")
            return
        late = self.link.now() + self._endpoint.config.interval
        for _ in range(_BURSTS_BEFORE_TICK):
            if not self._read() or self.link.now() >= late:
                break
        now = self.link.now()
        if now >= self._endpoint.deadline:
            self._endpoint.tick(now)
        self._alarm.note_promise(now, self._endpoint.promised)
        if self._alarm.is_reading_due(self._endpoint.config.interval):
            reading = self._endpoint.read_link(rack_switch(self.process))
            endpoint = self._endpoint
            drops, commit = self._socket.kernel_drops, endpoint.barriers[1]
            self._alarm.read([reading], drops, commit, endpoint.holds)
        self._after()

    def _after(self) -> None:
        """Send what is queued, hand out events, and set the timer."""
        assert self._endpoint is not None
        assert self._socket is not None
        endpoint = self._endpoint
        self._socket.send(endpoint.take_runs())
        for to, packets in endpoint.take_forwards():
            self.link.forward(to, packets)
        for event in endpoint.take_event_runs():
            if isinstance(event, Delivered):
                self._hand(event.service, event)
            else:
                self._happened(event)
        if self._ending.ended is None and self._ending.excluded is None:
            self._alarm.set(endpoint.deadline)

    def _happened(self, event: object) -> None:
        if isinstance(event, ProcessFailed):
            self._hand(Service.RELIABLE, event)
        elif isinstance(event, LeftAlike):
            if isinstance(event.tickets, range):  # of one call
                self._sends.left_alike(event.tickets, event.stamp)
            else:
                for one in event.each():
                    self._sends.left(*one)
        elif isinstance(event, Left):
            self._sends.left(*event)
        elif isinstance(event, SendFailed):
            self._send_failed(event)
        elif isinstance(event, Undeliverable):
            self._settling.undeliverable.put_nowait(event)
        elif isinstance(event, Settled):
            self._answer(self._settling.settle(event.process))
        elif isinstance(event, Admitted):
            self._admitted.set()
            for command in self._settling.release():
                self._fail(command)
        elif isinstance(event, Excluded):
            self._excluded()

    def _send_failed(self, event: SendFailed) -> None:
        why = f"nothing was sent, as of process {event.to}: {event.reason.value}"
        if self._sends.left(event.ticket, 0, why):
            return
        if event.stamp:  # else `send` has raised: nothing was sent, to nobody
            self._streams[event.service].failures += 1
            self._hand(event.service, event)

    def _hand(self, service: Service, event: ProgramEvent) -> None:
        stream = self._streams[service]
        stream.events.append(event)
        stream.has_news.set()

    # -- the controller ------------------------------------------------------------------------

    def _take_frame(self, frame: Frame) -> None:
        if frame["op"] == "names":
            self.names = dict(frame.get("names") or {})
            told = {id: (host, port) for id, host, port in frame.get("addresses") or ()}
            if self._socket is not None:
                self._socket.learn(self.names.values(), told)
            self._named.set()
        elif frame["op"] == "excluded":
            self._excluded(is_cut_off=frame.get("cut_off") is True)
        elif frame["op"] == "forward" and self._endpoint is not None:
            source = number_in(frame, "node")
            self._endpoint.forwarded(self.link.now(), source, packets_in(frame))
            self._after()
        elif frame["op"] == "command":
            command = command_from(frame.get("command"))
            if isinstance(command, Fail) and command.to == self.process:
                if self._admitted.is_set():
                    self._fail(command)
                    self._after()
                else:
                    self._settling.held.append(command)

    def _fail(self, command: Fail) -> None:
        assert self._endpoint is not None
        now = self.link.now()
        for process, stamp in command.processes:
            self._endpoint.process_failed(now, process, stamp)
        failed = [process for process, _ in command.processes]
        self._answer(self._settling.begin(command.failure, failed))

    def _answer(self, failures: Iterable[int]) -> None:
        """Tell the controller that nothing is under way any more to the processes of these."""
        for failure in failures:
            self.link.report(Completed(failure, self.process))

    async def _note_recalls(self) -> None:
        """Let the controller note what failed receivers cannot be told."""
        while True:
            event = await self._settling.undeliverable.get()
            for receiver, ranges in event.recalled:
                for at in range(0, len(ranges), RANGES_MAX):
                    part = ranges[at : at + RANGES_MAX]
                    await self.link.confirm(Recalled(self.process, receiver, part))
            assert self._endpoint is not None
            self._endpoint.recalls_noted(self.link.now(), event.process)
            self._after()

    def _excluded(self, reason: str = "", is_cut_off: bool = False) -> None:
        """Send nothing any more, for a reason or as it was silent; `_settle` ends the streams.

        Where its rack `is_cut_off`, it may hear barriers still that are not for it.
        """
        self._ending.is_cut_off |= is_cut_off
        if self._ending.excluded is not None:
            return
        assert self._endpoint is not None
        self._endpoint.exclude()
        silent = SILENT_INTERVALS * self._endpoint.config.interval / 1e6
        why = Fenced(reason or _EXCLUDED.format(silent=silent, late=self._alarm.late_max / 1e6))
        self._ending.excluded = why
        self._end_calls(why)
        self._ending.is_excluded.set()

    async def _settle(self) -> None:
        """Once this process is excluded, deliver what others deliver of what it holds."""
        await self._ending.is_excluded.wait()
        assert self._endpoint is not None
        assert self._ending.excluded is not None
        why = self._ending.excluded
        held = self._endpoint.held
        if held is not None:
            lost = ""
            try:
                async with asyncio.timeout(SETTLE_SECONDS):
                    decisions = await self._ask_for_decisions(*held)
            except TimeoutError:
                lost = _UNTOLD.format(seconds=SETTLE_SECONDS)
            except TocError as error:
                lost = str(error)
            else:
                self._endpoint.settle(self.link.now(), decisions)
                self._after()
            if lost:
                why = Fenced(str(why) + _LOST.format(why=lost))
        if self._ending.is_cut_off:
            why = Fenced(str(why) + _CUT_OFF)
        self.end(why)

    async def _ask_for_decisions(self, through: int, senders: Iterable[int]) -> Decisions:
        """Return what became of what these senders sent.

        Raises TocError if the controller does not know it any more.
        """
        returned = report_to(Returned(self.process, through, tuple(sorted(senders))))
        while True:
            frame = await self.link.request({"op": "report", "report": returned})
            if frame.get("decided") is True:
                if "recalled" not in frame:
                    raise TocError(_NOT_KEPT)
                return decisions_from(frame)
            await asyncio.sleep(_AGAIN_AFTER)

    def end(self, why: TocError) -> None:
        """Let nothing go on: waiting calls raise `why`, and streams do behind what they have."""
        if self._ending.ended is not None:
            return
        self._ending.ended = why
        self._end_calls(why)
        for stream in self._streams.values():
            stream.has_news.set()

    def _end_calls(self, why: TocError) -> None:
        self._sends.fail(why)
        self._admitted.set()
        self._named.set()
