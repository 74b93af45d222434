"""The connection of a node to the leader of the controller: it is made again whenever it ends.

What a node reports or asks is sent again by a new connection until it is answered, in the same
order. Commands of a term below the highest one seen are ignored. A clock follows that of the
leader: by datagrams, and over this connection where they do not arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from time import monotonic, monotonic_ns
from typing import NamedTuple

from weir_toc.clock import Clock
from weir_toc.controller.codec import report_to
from weir_toc.controller.records import Report
from weir_toc.controller.terms import Terms
from weir_toc.errors import ControlError, SwitchTaken, TocError
from weir_toc.hosts.clock_socket import ClockQuestions
from weir_toc.hosts.frames import (
    FRAME_BYTES_MAX,
    Address,
    Frame,
    forward_of,
    framed_json,
    number_in,
    parsed,
    read_frame,
)

#: So many reports and requests may wait for their answers.
UNANSWERED_MAX = 10_000
#: Frames that the node has not taken yet.
FRAMES_MAX = 10_000
#: The clock is compared so often: at first, and from the eighth time on.
_FIRST_SAMPLES, _FIRST_PAUSE, _PAUSE = 8, 0.01, 0.4
#: A clock counts as set once it may be off by so many nanoseconds at most, or was compared so often
#: over connections. From then on it slews, and an error of 1 ms takes two seconds.
_SET_ERROR_NS = 1_000_000
_AGAIN_AFTER = 0.05
#: A leader that says nothing for so long is none: its answers to the clock are due all the time.
#: Two of these times must end before the next leader gives up who is not connected to it.
SILENT_SECONDS = 0.8
#: A node that says nothing to its leader for so long does not answer: its clock is due sooner.
ANSWERS_SECONDS = 2 * SILENT_SECONDS
#: What this node sends may wait in so many bytes of memory before packets to forward are dropped.
FORWARD_UNSENT_MAX = 1 << 20
#: A node whose place is taken asks again for so long: the other one may have just been lost.
TAKEN_SECONDS = 4.0


#: The clock of a host in nanoseconds; a benchmark gives one of which it knows how wrong it is.
RawClock = Callable[[], int]


class ClockReading(NamedTuple):
    """What a clock shows, in nanoseconds."""

    #: The clock of the host at that moment.
    raw: int
    time: int
    #: How far the time may be from the leader's; None if unknown.
    error: int | None


class Members:
    """The members of the controller whose addresses were given, and whom of them to ask next."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._given = [*addresses]
        #: Those to ask before any of them is asked again.
        self._unasked = [*addresses]
        #: The leader that a member has named: one of the addresses given, or another one.
        self._leader: Address | None = None
        self._elsewhere: Address | None = None

    @property
    def is_leader_known(self) -> bool:
        """Whether the next one to ask is a leader that was given."""
        return self._leader is not None

    def choose(self) -> Address:
        """Return whom to ask next.

        A leader at an address that was not given comes behind all that were: it may be out of
        reach from here, as behind address translation, and to find that takes time.
        """
        leader, self._leader = self._leader, None
        if leader is not None:
            return leader
        if self._unasked:
            return self._unasked.pop(0)
        self._unasked = [*self._given]
        elsewhere, self._elsewhere = self._elsewhere, None
        return elsewhere or self._unasked.pop(0)

    def name(self, leader: Address, by: Address) -> bool:
        """Take which leader a member names; return whether it can be asked from here."""
        if leader in self._given:
            self._leader = leader
        elif is_foreign(leader, by):
            return False
        else:
            self._elsewhere = leader
        return True

    def led_by(self, leader: Address) -> None:
        """Take who has answered as the leader: it is asked last, once it is lost."""
        self._unasked = sorted(self._given, key=lambda one: one == leader)


class ControlLink:
    """One node's side. `frames` has what the controller sends: commands, names, exclusion."""

    def __init__(
        self, addresses: Sequence[Address], hello: Frame, raw_clock: RawClock = monotonic_ns
    ) -> None:
        self.hello = hello
        self.clock = Clock(raw_clock())
        #: Which leaders this node obeys.
        self.terms = Terms()
        #: Set once the clock has been set by a leader.
        self.is_set = asyncio.Event()
        #: How often it was compared over this connection and former ones.
        self._compared = 0
        self.frames: asyncio.Queue[Frame] = asyncio.Queue(FRAMES_MAX)
        #: Why the last connection ended or none could be made.
        self.trouble = ""
        self._raw_clock = raw_clock
        self._members = Members(addresses)
        self._numbers = 0
        self._unanswered: dict[int, tuple[Frame, asyncio.Future[Frame] | None]] = {}
        self._writer: asyncio.StreamWriter | None = None
        #: Whether the leader forwards packets: earlier versions do not.
        self._forwards = False
        #: Since when a leader has said that another node has this place; None if none has.
        self._taken_since: float | None = None

    @property
    def is_connected(self) -> bool:
        """Whether a leader has answered on the connection of now."""
        return self._writer is not None

    def now(self) -> int:
        """Return the synchronised time in nanoseconds."""
        return self.clock.read(self._raw_clock())

    def read_clock(self) -> ClockReading:
        """Return the synchronised time, and how far it may be off."""
        raw = self._raw_clock()
        return ClockReading(raw, self.clock.read(raw), self.clock.error_bound(raw))

    async def run(self) -> None:
        """Keep a connection, until cancelled.

        Raises SwitchTaken if another aggregator has the place of this node.
        """
        while True:
            address = self._members.choose()
            try:
                await self._converse(address)
            except (OSError, EOFError, TimeoutError, ControlError) as error:
                self.trouble = f"{address[0]}:{address[1]}: {error or type(error).__name__}"
            if not self._members.is_leader_known:
                await asyncio.sleep(_AGAIN_AFTER)

    def report(self, report: Report) -> None:
        """Report what the leader must know, until it has confirmed it."""
        self._ask({"op": "report", "report": report_to(report)}, None)

    async def confirm(self, report: Report) -> None:
        """Report what the leader must know; return once it has confirmed it."""
        await self.request({"op": "report", "report": report_to(report)})

    async def request(self, frame: Frame) -> Frame:
        """Send a request; return its answer, however long that takes."""
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        number = self._ask(frame, future)
        try:
            return await future
        finally:
            self._unanswered.pop(number, None)

    def say(self, frame: Frame) -> None:
        """Send a frame once, if there is a connection."""
        if self._writer is not None:
            self._writer.write(framed_json(frame))

    def forward(self, to: int, packets: Iterable[bytes | bytearray]) -> None:
        """Let the leader forward packets, if it does that, and reads what it is sent.

        They may be lost: who needs an answer forwards them again.
        """
        writer = self._writer
        if writer is None or not self._forwards:
            return
        if writer.transport.get_write_buffer_size() <= FORWARD_UNSENT_MAX:
            writer.write(framed_json(forward_of(to, packets)))

    def _ask(self, frame: Frame, future: asyncio.Future[Frame] | None) -> int:
        if len(self._unanswered) >= UNANSWERED_MAX:
            raise TocError(f"the controller has not answered {UNANSWERED_MAX} reports: is it gone?")
        self._numbers += 1
        numbered = {**frame, "number": self._numbers}
        self._unanswered[self._numbers] = numbered, future
        self.say(numbered)
        return self._numbers

    # -- one connection ------------------------------------------------------------------------

    async def _converse(self, address: Address) -> None:
        async with asyncio.timeout(SILENT_SECONDS):
            reader, writer = await asyncio.open_connection(*address)
        sampling: asyncio.Task[None] | None = None
        try:
            writer.write(framed_json({**self.hello, "term": self.terms.highest}))
            frame = await self._read(reader)
            if frame["op"] == "moved":
                self._follow(address, frame)
                return
            if frame["op"] == "taken":
                self._taken(frame)
                return
            if frame["op"] == "replaced":
                raise SwitchTaken(str(frame.get("why", "")))
            if frame["op"] != "welcome":
                raise ControlError(f"it answered {frame['op']!r}: {frame.get('why', '')}")
            term = number_in(frame, "term")
            if not self.terms.follow(term):
                raise ControlError(f"it leads in term {term}, and {self.terms.highest} has begun")
            self._taken_since = None
            self.trouble = ""
            self._members.led_by(address)
            self._forwards = frame.get("forwards") is True
            self._writer = writer
            for numbered, _ in self._unanswered.values():
                writer.write(framed_json(numbered))
            sampling = asyncio.create_task(self._sample(writer))
            while True:
                frame = await self._read(reader)
                received = self._raw_clock()
                if frame["op"] == "moved":
                    self._follow(address, frame)
                    return
                self._take(frame, received)
        finally:
            self._writer = None
            writer.close()
            if sampling is not None:
                sampling.add_done_callback(_forget)
                sampling.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> Frame:
        async with asyncio.timeout(SILENT_SECONDS):
            return parsed(*await read_frame(reader, FRAME_BYTES_MAX))

    def _follow(self, member: Address, frame: Frame) -> None:
        """Try the leader that a member names."""
        self.trouble = str(frame.get("why", ""))
        leader = address_in(frame.get("to"))
        if leader is not None and not self._members.name(leader, member):
            self.trouble += ", an address of its own machine: name one that is reached from here"

    def _taken(self, frame: Frame) -> None:
        """Another node has this place. One that had it asks until the other is started or gone."""
        now = monotonic()
        self.trouble = str(frame.get("why", ""))
        if self._taken_since is None:
            self._taken_since = now
        if not self.hello.get("started") and now - self._taken_since >= TAKEN_SECONDS:
            raise SwitchTaken(self.trouble)

    def _take(self, frame: Frame, received: int) -> None:
        op = frame["op"]
        if op == "clock":
            sent, reached, answered = (
                number_in(frame, key) for key in ("sent", "reached", "answered")
            )
            self.clock.sample(sent, reached, answered, received)
            self._compared += 1
            error = self.clock.error_bound(received)
            if self._compared >= _FIRST_SAMPLES or (error is not None and error <= _SET_ERROR_NS):
                self.is_set.set()
        elif op == "refused" and "number" not in frame:
            raise ControlError(str(frame.get("why", "")))
        elif op in ("done", "refused"):
            _, future = self._unanswered.pop(number_in(frame, "number"), (None, None))
            if future is not None and not future.done():
                future.set_result(frame)
        elif op == "command" and not self.terms.obeys(number_in(frame, "term")):
            pass  # of a leader that was replaced
        elif self.frames.full():
            raise ControlError("this node does not take what it is sent")
        else:
            self.frames.put_nowait(frame)

    async def _sample(self, writer: asyncio.StreamWriter) -> None:
        """Compare the clock again and again."""
        leader = writer.get_extra_info("peername")[:2]
        questions = ClockQuestions(leader, self.terms.highest, self.clock, self._raw_clock)
        count = 0
        try:
            while True:
                questions.ask()
                writer.write(framed_json({"op": "clock", "sent": self._raw_clock()}))
                await writer.drain()
                count += 1
                await asyncio.sleep(_FIRST_PAUSE if count < _FIRST_SAMPLES else _PAUSE)
        finally:
            questions.close()


def address_in(value: object) -> Address | None:
    """Return the address that a member names as `[host, port]`; None if it names none."""
    if not isinstance(value, list) or [*map(type, value)] != [str, int]:
        return None
    host, port = value
    return (host, port) if host and 0 < port < 1 << 16 else None


def is_foreign(leader: Address, member: Address) -> bool:
    """Whether a member at another machine names a leader by an address of its own machine.

    Here another network may have that address.
    """
    return _is_local(leader[0]) and not _is_local(member[0])


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _forget(sampling: asyncio.Task[None]) -> None:
    """Take note of how the comparison of the clock has ended: with its connection, or by that."""
    if not sampling.cancelled():
        sampling.exception()
