"""Effects on their way to the host, and how a reply finds the one who asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from weir.broker.api.counts import Counts
from weir.broker.api.effects import Answers, Effect, Hangup, Send
from weir.broker.runtime.budget import Budget
from weir.codec.fields import Buffer, total
from weir.errors import Refused
from weir.protocol.client.codec import encode_reply
from weir.protocol.client.messages import Confirm, Fetched, FetchedChunks, Granted, Refusal, Reply

#: The opcode of requests that the shard makes for a device; no frame has it.
TO_DEVICE = -1
#: A union would be made anew for each reply.
_WITH_MESSAGES = (Fetched, Granted)
#: How long a welcome waits for the confirm of what came with its hello: a device that has published
#: already waits for nothing else.
TOGETHER_MS = 1_000


class Caller(msgspec.Struct, frozen=True):
    """A request of the client dialect that waits for its reply."""

    session: int
    opcode: int
    correlation: int


class Outbox:
    """Collects the effects of one `handle` call, in order, and counts what is not answered yet."""

    __slots__ = ("_budget", "_open", "_together_ms", "_touched", "_welcomes",
                 "counts", "effects", "kept")  # fmt: skip

    def __init__(self, budget: Budget) -> None:
        """Begin empty; messages on their way to peers are charged to `budget`."""
        self._budget = budget
        self.counts = Counts()
        #: All since the last `take`, in order.
        self.effects: list[Effect] = []
        self._open: dict[int, int] = {}
        self._touched: dict[int, dict[int, None]] = {}
        #: By session, welcomes that wait for the confirm that follows, the oldest first; and until
        #: when: thousands of devices that come at once get a packet less each.
        self._welcomes: dict[int, tuple[int, bytes]] = {}
        self._together_ms = TOGETHER_MS
        #: Replies to requests that were made for devices; `Receivers` takes them out.
        self.kept: deque[tuple[Caller, Reply]] = deque()

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
        """A request of a peer was answered by another shard."""
        if session in self._open:
            self._open[session] -= 1

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
            self.effects.append(Send(session, (buffer,), len(buffer)))

    def reply(self, caller: Caller, reply: Reply) -> None:
        """Answer a request; nobody hears it if the peer is gone."""
        if caller.session not in self._open:
            return
        if caller.opcode == TO_DEVICE:
            self.kept.append((caller, reply))
            return
        self._open[caller.session] -= 1
        buffers = encode_reply(reply, caller.opcode, caller.correlation)
        if isinstance(reply, Confirm):  # the most there are
            self.counts.confirmed(reply.duplicate)
            self.effects.append(Send(caller.session, buffers))
            return
        charged = 0
        if isinstance(reply, _WITH_MESSAGES):
            charged = total(reply.batches)
            if charged:
                counts = self.counts.partition(reply.address.group)
                counts.gave(_messages_in(reply), charged)
        elif isinstance(reply, FetchedChunks):
            charged = total(reply.batches)
            self.counts.partition(reply.address.group).gave(0, charged)
        elif isinstance(reply, Refusal):
            self.counts.refused[reply.code] += 1
        if charged:
            self._budget.take(charged)
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
