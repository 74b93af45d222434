"""Effects on their way to the host, the routes of replies to their callers, and waiting callers.

Requests wait for something to come or for their deadline, in order of arrival. Whatever happens
costs what it concerns: a deadline those that end, a peer that goes those it had asked. Nothing here
looks at the rest, however many wait.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from weir.broker.api.counts import Counts
from weir.broker.api.effects import Answers, Effect, Hangup, Send
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.session import Asked
from weir.codec import Buffer, total
from weir.errors import Overloaded, Refused
from weir.model.limits import CONNECTIONS_MAX, RETRY_AFTER_MS
from weir.protocol.client.codec import encode_reply
from weir.protocol.client.messages import (
    Confirm,
    Fetched,
    FetchedChunks,
    Granted,
    Refusal,
    RelayTold,
    Reply,
)

#: The opcode of requests that the shard makes for a device; no frame has it.
TO_DEVICE = -1
#: A union would be made anew for each reply.
_WITH_MESSAGES = (Fetched, Granted)
_WITH_BYTES = (FetchedChunks, RelayTold)
#: The opcode of requests that the shard makes for itself; no frame has it, either.
TO_SHARD = -2
#: How long a welcome waits for the confirm of what came with its hello: a device that has published
#: already waits for nothing else.
TOGETHER_MS = 1_000
Request = TypeVar("Request")
#: Deadlines of requests that were served may stay in the heap, up to so many beyond the live ones.
_SLACK = 64


class Caller(msgspec.Struct, frozen=True):
    """A request of the client dialect that waits for its reply."""

    session: int
    opcode: int
    correlation: int


class Outbox:
    """Collects the effects of one `handle` call, in order, and counts what is not answered yet."""

    __slots__ = ("_awaited", "_budget", "_open", "_together_ms", "_touched", "_welcomes",
                 "counts", "counts_given", "effects", "given", "kept", "own")  # fmt: skip

    def __init__(self, budget: Budget) -> None:
        """Begin empty; messages on their way to peers are charged to `budget`."""
        self._budget = budget
        self.counts = Counts()
        #: All since the last `take`, in order.
        self.effects: list[Effect] = []
        self._open: dict[int, int] = {}
        #: By session, what it waits for by something that may be taken away, and what that is.
        self._awaited: dict[int, dict[Caller, tuple[Asked, ...]]] = {}
        self._touched: dict[int, dict[int, None]] = {}
        #: By session, welcomes that wait for the confirm that follows, the oldest first; and until
        #: when: thousands of devices that come at once get a packet less each.
        self._welcomes: dict[int, tuple[int, bytes]] = {}
        self._together_ms = TOGETHER_MS
        #: Replies to requests that were made for devices; `Receivers` takes them out.
        self.kept: deque[tuple[Caller, Reply]] = deque()
        #: Replies to requests that the shard made for itself, by correlation; `Auditor` takes them.
        self.own: deque[tuple[int, Reply]] = deque()
        #: Whether `given` is kept: rows of session, group and bytes that were sent.
        self.counts_given = False
        self.given: list[tuple[int, int, int]] = []

    def opened(self, session: int) -> None:
        """Begin to count the requests of a peer."""
        self._open[session] = 0

    def opened_all(self, sessions: Iterable[int]) -> None:
        """Begin to count the requests of many peers."""
        self._open.update(dict.fromkeys(sessions, 0))

    def touches(self, session: int, group: int) -> None:
        """A peer may come to wait in a partition, or to hold messages of it."""
        if session in self._open:
            touched = self._touched.get(session)
            if touched is None:
                touched = self._touched[session] = {}
            touched[group] = None

    def hang_up(self, group: int, reason: str) -> None:
        """Close the connections of all peers that may wait in a partition: they find another node
        sooner than this one finds its way back.
        """
        for session, groups in self._touched.items():
            if group in groups:
                self.put(Hangup(session, reason))

    def closed(self, session: int) -> Iterable[int]:
        """Forget a peer; return the groups that must be told, so that it costs what it used."""
        self._open.pop(session, None)
        self._awaited.pop(session, None)
        self._welcomes.pop(session, None)
        return self._touched.pop(session, {})

    def knows(self, session: int) -> bool:
        """Return whether a peer is still there."""
        return session in self._open

    def asked(self, session: int) -> int:
        """Count a request; return how many of this peer's are not answered."""
        asked = self._open[session] = self._open[session] + 1
        return asked

    def answered(self, session: int) -> None:
        """A request of a peer was answered by another shard, or needs no answer."""
        if session in self._open:
            self._open[session] -= 1

    def awaits(self, caller: Caller, used: tuple[Asked, ...]) -> None:
        """A request waits for its answer, and uses what may be taken away until then."""
        self._awaited.setdefault(caller.session, {})[caller] = used

    def settled(self, caller: Caller) -> None:
        """A request waits no more: it was answered, or will be asked again."""
        if self._awaited and (awaited := self._awaited.get(caller.session)) is not None:
            awaited.pop(caller, None)

    def awaited(self, session: int) -> list[tuple[Caller, tuple[Asked, ...]]]:
        """Return what a peer waits for, and what it uses by that."""
        return list(self._awaited.get(session, {}).items())

    def put(self, effect: Effect) -> None:
        """Append an effect."""
        if self._welcomes and isinstance(effect, Hangup) and effect.session in self._welcomes:
            self.send(effect.session)
        self.effects.append(effect)

    def send(self, session: int, *buffers: Buffer) -> None:
        """Send bytes to a peer, if it is still there."""
        if session in self._open:
            if self._welcomes and (waited := self._welcomes.pop(session, None)) is not None:
                buffers = (waited[1], *buffers)
            self.effects.append(Send(session, buffers))

    def answer(self, replies: dict[int, bytes]) -> None:
        """Send many peers bytes, each its own."""
        is_open, welcomes = self._open, self._welcomes
        found: dict[int, bytes] = {}
        for session, reply in replies.items():
            if session in is_open:
                waited = welcomes.pop(session, None)
                found[session] = reply if waited is None else waited[1] + reply
        if len(found) > 1:
            self.effects.append(Answers(found))
        else:
            self.effects += [Send(session, (reply,)) for session, reply in found.items()]

    def welcome(self, session: int, welcome: bytes, now_ms: int) -> None:
        """Let a welcome wait for the confirm that follows: it goes out with it, or by `let_out`."""
        if session in self._welcomes:
            self.send(session, welcome)
        elif session in self._open:
            self._welcomes[session] = now_ms + self._together_ms, welcome

    def let_out(self, now_ms: int) -> None:
        """Send welcomes that have waited long enough, by themselves."""
        due = []
        for session, (until_ms, _) in self._welcomes.items():
            if until_ms > now_ms:
                break
            due.append(session)
        for session in due:
            self.send(session)

    def hurry(self) -> None:
        """Let welcomes wait no longer than to the next `let_out`: this shard stops."""
        self._together_ms = 0
        for session in list(self._welcomes):
            self.send(session)

    def send_messages(self, session: int, buffer: Buffer) -> None:
        """Send messages to a device; charged until they are out."""
        if session in self._open:
            if session in self._welcomes:
                self.send(session)
            self._budget.take(len(buffer))
            if self.counts_given:
                self.given.append((session, 0, len(buffer)))
            self.effects.append(Send(session, (buffer,), len(buffer)))

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request; nobody hears it if the peer is gone."""
        if caller.session not in self._open:
            if caller.opcode == TO_SHARD:
                self.own.append((caller.correlation, reply))
            return
        if caller.opcode == TO_DEVICE:
            self.kept.append((caller, reply))
            return
        self._open[caller.session] -= 1
        if self._awaited:
            self.settled(caller)
        buffers = encode_reply(reply, caller.opcode, caller.correlation)
        if isinstance(reply, Confirm):  # the most there are
            self.counts.confirms += 1
            self.counts.repeats += reply.duplicate
            self.effects.append(Send(caller.session, buffers))
            return
        charged = group = 0
        if isinstance(reply, _WITH_MESSAGES):
            charged, group = total(reply.batches), reply.address.group
            if charged:
                counts = self.counts.partition(reply.address.group)
                counts.gave(_messages_in(reply), charged)
        elif isinstance(reply, _WITH_BYTES):
            data = reply.message if isinstance(reply, RelayTold) else reply.batches
            charged, group = total(data), reply.address.group
            self.counts.partition(group).gave(0, charged)
        elif isinstance(reply, Refusal):
            self.counts.refused[reply.code] += 1
        if charged:
            self._budget.take(charged)
            if self.counts_given:
                self.given.append((caller.session, group, charged))
        self.effects.append(Send(caller.session, buffers, charged))

    def refuse(self, caller: Caller, error: Refused) -> None:
        """Answer a request with a numbered refusal."""
        self.reply(caller, Refusal(error.code, str(error), error.detail))

    def take(self) -> list[Effect]:
        """Return all effects since the last call, in order."""
        effects, self.effects = self.effects, []
        return effects


def _messages_in(reply: Fetched | Granted) -> int:
    if isinstance(reply, Granted) and reply.runs:
        return sum(behind - first for first, behind in reply.runs)
    return reply.next_offset - reply.offset


class Wait(NamedTuple, Generic[Request]):
    """A request that came at monotonic time `came_ms`, and waits until `deadline_ms` at most."""

    caller: Caller
    request: Request
    deadline_ms: int
    came_ms: int = 0


class Waits(Generic[Request]):
    """A line of requests; those of one peer, and those whose time is up, leave it out of turn."""

    __slots__ = ("_due", "_next", "_of", "_waits")

    def __init__(self) -> None:
        """Begin with nobody in line."""
        self._waits: OrderedDict[int, Wait[Request]] = OrderedDict()
        #: The numbers of each peer's waits, in order of arrival.
        self._of: dict[int, dict[int, None]] = {}
        self._due: list[tuple[int, int]] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._waits)

    def check_room(self) -> None:
        """Raise `Overloaded` if as many wait as peers may be connected."""
        if len(self._waits) >= CONNECTIONS_MAX:
            raise Overloaded(
                f"{CONNECTIONS_MAX:,} requests wait here already: ask again shortly", RETRY_AFTER_MS
            )

    def add(self, wait: Wait[Request], front: bool = False) -> None:
        """Put a request at the end of the line, or back in `front` of it."""
        number, self._next = self._next, self._next + 1
        self._waits[number] = wait
        if front:
            self._waits.move_to_end(number, last=False)
        self._of.setdefault(wait.caller.session, {})[number] = None
        if len(self._due) >= 2 * len(self._waits) + _SLACK:
            self._due = [(w.deadline_ms, n) for n, w in self._waits.items() if n != number]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (wait.deadline_ms, number))

    def change(self, session: int, change: Callable[[Request], Request]) -> None:
        """Let the requests of a peer ask for something else; they keep their places."""
        for number in self._of.get(session, ()):
            wait = self._waits[number]
            self._waits[number] = wait._replace(request=change(wait.request))

    def holds(self, session: int) -> bool:
        """Return whether a peer is in line."""
        return session in self._of

    @property
    def due_ms(self) -> int:
        """The monotonic time before which no deadline of those in line has come."""
        return self._due[0][0] if self._due else 0

    @property
    def peers(self) -> int:
        """How many peers are in line."""
        return len(self._of)

    @property
    def sessions(self) -> set[int]:
        """The waiting callers, in order."""
        return set(self._of)

    def first(self, session: int = 0) -> Wait[Request]:
        """Return the first in line, or the first wait of one peer."""
        return self._waits[self._number(session)]

    def pop(self, session: int = 0) -> Wait[Request]:
        """Take out the first in line, or the first wait of one peer."""
        return self._take(self._number(session))

    def other(self, passed: set[int]) -> int | None:
        """Return a peer in line that is none of those; None if there is no other."""
        return next((session for session in self._of if session not in passed), None)

    def _number(self, session: int) -> int:
        return next(iter(self._of[session] if session else self._waits))

    def ended(self, now_ms: int) -> list[Wait[Request]]:
        """Take out those whose time is up, the earliest deadline first."""
        found: list[Wait[Request]] = []
        while self._due and self._due[0][0] <= now_ms:
            _, number = heapq.heappop(self._due)
            if number in self._waits:
                found.append(self._take(number))
        return found

    def withdrawn(self, session: int) -> list[Wait[Request]]:
        """Take out all of a peer, in order of arrival."""
        return [self._take(number) for number in list(self._of.get(session, ()))]

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self.withdrawn(session)

    def _take(self, number: int) -> Wait[Request]:
        wait = self._waits.pop(number)
        session = wait.caller.session
        numbers = self._of[session]
        del numbers[number]
        if not numbers:
            del self._of[session]
        return wait
