"""A producer's way to one partition: gather, number, send, send again until confirmed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from weir.client.connection.network_client import NetworkClient
from weir.client.core.batcher import PLAIN, Batcher, Packing, Whole
from weir.client.core.sequencer import (
    Failed,
    Forgotten,
    Outcome,
    Released,
    Retry,
    Sequencer,
    Stranded,
)
from weir.client.producer.receipts import BatchReceipt, PendingBatch, PendingMessage, Unconfirmed
from weir.codec import Buffer
from weir.errors import (
    BadChecksum,
    Disconnected,
    NotLeader,
    PartitionEnded,
    SequenceGap,
    StampTooFar,
    TooLarge,
    Unavailable,
    WeirError,
    refusal,
)
from weir.model.batch import renumbered
from weir.model.ids import Address
from weir.order.clock import milliseconds_of
from weir.protocol.client import messages as m

#: So many messages came alone one after the other, and the next one is taken to do so as well.
ALONE_IN_A_ROW = 8

#: A producer waits for a node's clock to reach what it has seen of another's, if it is not far.
CLOCKS_DIFFER_MAX_MS = 5_000


class Linger:
    """How long the batch that gathers waits for more messages: `seconds`, or with 0 a turn at most.

    A caller that waits for each confirm before the next message sends only one message in a turn:
    waiting for the turn's end would delay every message. A caller that sends several in a turn is
    recognized by the first message that follows one which was not kept back.
    """

    __slots__ = ("_alone", "_loop", "_sent", "_timer", "is_over", "seconds")

    def __init__(self, seconds: float) -> None:
        """Know of no message yet."""
        self.seconds = seconds
        #: Whether the batch that gathers has waited for long enough.
        self.is_over = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        #: How many in a row were alone.
        self._alone = 0
        #: Whether one was sent at once in this turn.
        self._sent = False

    def begin(self, over: Callable[[], None]) -> None:
        """A batch gathers from now on; `over` is called once it has waited for long enough."""
        if self._timer is not None:
            self._timer.cancel()
        self.is_over = False
        # With linger 0 a batch still takes all that is sent in this turn of the loop, and, while
        # the window is full, all that comes until it has room.
        if self.seconds > 0:
            self._timer = self._loop.call_later(self.seconds, over)
        else:
            self._timer = self._loop.call_soon(over)

    def cancel(self) -> None:
        """Nothing waits any more."""
        if self._timer is not None:
            self._timer.cancel()

    def batch_sent(self, count: int, alone: bool) -> None:
        """A batch of so many messages goes out, `alone` if nothing else is under way."""
        self._alone = self._alone + 1 if count == 1 and alone else 0

    def sends_at_once(self, alone: bool) -> bool:
        """Whether to send at once, without any linger, the message that comes now, `alone` if
        nothing is under way.
        """
        if self._sent:
            self._alone = 0
        elif alone and self._alone >= ALONE_IN_A_ROW:
            self._sent = True
            self._loop.call_soon(self._end_turn)
            return True
        return False

    def _end_turn(self) -> None:
        self._sent = False


class Routes(Protocol):
    """What the sender of a partition asks of its topic's."""

    def find(self) -> None:
        """Ask where the partitions are served: this one may have moved."""

    def find_now_and_then(self) -> None:
        """Do so unless that was asked a moment ago: a batch was confirmed by way of others."""

    def reroute(
        self,
        sender: PartitionSender,
        batches: list[tuple[PendingBatch, Buffer]],
        error: PartitionEnded,
    ) -> None:
        """Send these elsewhere, in this order: the partition has ended, and they are not in it."""

    def renew(self, sender: PartitionSender) -> None:
        """Get a sender another grant: what was confirmed as received is lost, so it begins anew."""


class PartitionSender:
    """Batches of one partition in sequence order. The shell of a `Batcher` and a `Sequencer`."""

    __slots__ = (
        "_batcher",
        "_former",
        "_grant",
        "_level",
        "_linger",
        "_network",
        "_packing",
        "_routes",
        "_sequencer",
        "_unconfirmed",
        "_wait",
        "_waits",
        "address",
        "large",
        "partition",
    )

    def __init__(
        self,
        network: NetworkClient,
        routes: Routes,
        unconfirmed: Unconfirmed,
        partition: int,
        *,
        address: Address,
        grant: m.ProducerGrant,
        linger: float,
        batch_bytes: int,
        window: int,
        packing: Packing = PLAIN,
        level: m.Level = m.Level.REPLICATED,
        waits: bool = False,
    ) -> None:
        """Begin with sequence 0 of the grant's epoch: at once, or if it `waits`, when told to."""
        self._waits = waits
        self._level = level
        self.partition = partition
        self.address = address
        #: Held while a large value is sent.
        self.large = asyncio.Lock()
        self._network = network
        self._routes = routes
        self._unconfirmed = unconfirmed
        self._grant = grant
        self._linger = Linger(linger)
        self._packing = packing
        #: How the batches that are gathered, and were before `repack`, are packed.
        self._former: deque[Packing] = deque()
        self._batcher: Batcher[PendingBatch] = Batcher(batch_bytes)
        forgets = level is m.Level.RECEIVED
        self._sequencer: Sequencer[PendingBatch] = Sequencer(window, forgets=forgets)
        self._wait: asyncio.TimerHandle | None = None

    @property
    def error(self) -> WeirError | None:
        """The error that ended it, or None."""
        return self._sequencer.error

    @property
    def is_idle(self) -> bool:
        """Whether nothing is gathered or unconfirmed."""
        return not (self._sequencer.held or self._batcher.ready or self.gathering)

    @property
    def producer(self) -> int:
        """The producer id under which it sends."""
        return self._grant.producer

    @property
    def room(self) -> bool:
        """Whether a whole batch handed over now would go out at once."""
        return self._sequencer.room and not self._batcher.ready

    @property
    def gathering(self) -> bool:
        """Whether a batch is open for more messages."""
        return self._batcher.gathering is not None

    def add(
        self,
        size: int,
        value: bytes,
        now: int,
        key: bytes | None,
        tag: str | None,
        time: int | None,
        headers: Mapping[str, bytes] | None,
        due: int | None = None,
        expires: int | None = None,
        pinned: bool = False,
    ) -> PendingMessage:
        """Add a message of `size_of` bytes to the batch gathered, or to one begun `now` (µs);
        `pinned` if it may go to no other partition. Raises what ended this partition.
        """
        sequencer, batcher, unconfirmed = self._sequencer, self._batcher, self._unconfirmed
        if sequencer.error is not None:
            raise sequencer.error
        unconfirmed.buffered += size
        at_once, gathering = False, batcher.gathering
        if gathering is None or gathering.owner.pinned is not pinned or not batcher.fits(size, tag):
            alone = gathering is None and not (batcher.ready or sequencer.held)
            gathering = batcher.begin(unconfirmed.begin(self.partition, pinned), now)
            linger = self._linger
            at_once = linger.seconds <= 0 and linger.sends_at_once(alone)
            if not at_once:
                linger.begin(self._linger_over)
        batch = gathering.owner
        batch.size += size
        batch.count += 1
        place = batcher.add(size, value, key, tag, time, headers, due, expires)
        if at_once:
            self.flush()
        elif batcher.ready:
            self.pump()
        return PendingMessage(batch, place)

    def put(self, whole: Whole[PendingBatch]) -> None:
        """Send a batch behind all messages added so far."""
        self._batcher.put(whole)
        self.pump()

    def flush(self) -> None:
        """Close the batch being gathered: it goes out as soon as the window lets it."""
        self._batcher.cut()
        self.pump()

    def repack(self, packing: Packing) -> None:
        """Pack by `packing` what is added from now on, and by the one before what was."""
        self.flush()
        late = len(self._batcher.ready) - len(self._former)
        self._former.extend([self._packing] * late)
        self._packing = packing

    def begin(self, address: Address) -> None:
        """Send what was gathered, and whatever comes, to a partition that is known by now."""
        self.address, self._waits = address, False
        self.pump()

    def pump(self) -> None:
        """Number what the window has room for, then send what is to be sent."""
        if self._waits:
            return
        sequencer, batcher, network = self._sequencer, self._batcher, self._network
        linger = self._linger
        while (
            batcher.ready or (linger.is_over and batcher.gathering is not None)
        ) and sequencer.room:
            if not batcher.ready:
                batcher.cut()
            self._hold(batcher.ready.popleft())
        while sequencer.held and (held := sequencer.to_send()) is not None:
            held.seen = held.seen or network.seen
            request = m.Produce(self.address, held.seen, held.data, self._level)
            correlation = network.send(request, self._answered)
            if correlation is None:
                return  # the connection calls when it can be written to
            sequencer.sent(held, correlation)

    def fail(self, error: WeirError) -> None:
        """End it: give up all that is not confirmed."""
        self._linger.cancel()
        if self._wait is not None:
            self._wait.cancel()
        self._apply(self._sequencer.fail(error))

    def _linger_over(self) -> None:
        self._linger.is_over = True
        self.pump()

    def encoded(self, *wholes: Whole[PendingBatch]) -> list[tuple[PendingBatch, Buffer]]:
        """Return batches that come too late, as bytes, to go elsewhere."""
        grant, group = self._grant, self.address.group
        found: list[tuple[PendingBatch, Buffer]] = []
        for whole in wholes:
            try:
                data = whole.encode(group, grant.producer, grant.epoch, 0)
            except Exception as error:  # as in `_hold`
                self._unconfirmed.resolve(whole.owner, error)
            else:
                found.append((whole.owner, data))
        return found

    def _hold(self, gathered: Whole[PendingBatch]) -> None:
        grant, sequencer, count = self._grant, self._sequencer, len(gathered)
        self._linger.batch_sent(count, alone=not sequencer.held)
        welcome = self._network.home.welcome
        try:
            batch = gathered.encode(
                self.address.group,
                grant.producer,
                grant.epoch,
                sequencer.next_sequence,
                self._former.popleft() if self._former else self._packing,
            )
            if welcome is not None and len(batch) > welcome.batch_bytes_max:
                raise TooLarge(
                    f"a batch of {len(batch):,} bytes; this broker takes "
                    f"{welcome.batch_bytes_max:,}: publish() takes larger values",
                    welcome.batch_bytes_max,
                )
        # Whatever is wrong with these messages is told to those who wait for them; no sequence
        # number was used, so the batches behind them are not touched.
        except Exception as error:
            self._unconfirmed.resolve(gathered.owner, error)
            return
        sequencer.hold(memoryview(batch), count, gathered.owner)

    def _answered(self, correlation: int, answer: m.Reply | Disconnected) -> None:
        if isinstance(answer, m.Confirm):  # as nearly all are
            self._network.saw(answer.stamp)
            if self._unconfirmed.refusals:
                self._unconfirmed.refusals.pop(self.partition, None)
            self._apply(self._sequencer.answered(correlation, answer))
            # One at the node that answers, as an address without a node is, is never astray.
            if self.address.node and self._network.is_astray(self.address):
                self._routes.find_now_and_then()
        elif isinstance(answer, Disconnected):
            self._sequencer.lost()
            return
        elif isinstance(answer, m.Refusal):
            refused = refusal(answer.code, answer.message, answer.detail)
            if isinstance(refused, StampTooFar):
                ahead = milliseconds_of(self._sequencer.seen(correlation) - refused.detail) + 1
                refused.retryable = ahead <= CLOCKS_DIFFER_MAX_MS
                refused.wait_seconds = ahead / 1_000
            self._apply(self._sequencer.answered(correlation, refused))
        else:
            raise TypeError(f"Produce was answered by {answer!r}")
        self.pump()

    def renew(self, grant: m.ProducerGrant) -> None:
        """Send all that is held as another producer's: see `Routes.renew`."""
        self._grant = grant
        group = self.address.group

        def anew(data: memoryview, sequence: int) -> memoryview:
            return memoryview(renumbered(data, group, grant.producer, grant.epoch, sequence))

        self._sequencer.renumber(anew)
        self.pump()

    def _apply(self, outcomes: list[Outcome[PendingBatch]]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Released):
                held, confirm = outcome.held, outcome.confirm
                done = BatchReceipt(
                    self.partition,
                    held.sequence,
                    held.count,
                    confirm.offset,
                    confirm.stamp,
                    confirm.duplicate,
                    confirm.index,
                )
                self._unconfirmed.resolve(held.owner, done)
            elif isinstance(outcome, Failed):
                self._unconfirmed.resolve(outcome.held.owner, outcome.error)
            elif isinstance(outcome, Forgotten):
                self._routes.renew(self)
            elif isinstance(outcome, Stranded):
                self._strand(outcome)
            else:
                self._retry(outcome)
        if self._sequencer.error is not None:
            self._batcher.cut()
            while (gathered := self._batcher.take()) is not None:
                self._unconfirmed.resolve(gathered.owner, self._sequencer.error)

    def _strand(self, outcome: Stranded[PendingBatch]) -> None:
        self._linger.cancel()
        batches: list[tuple[PendingBatch, Buffer]]
        batches = [(held.owner, held.data) for held in outcome.held]
        self._batcher.cut()
        while (gathered := self._batcher.take()) is not None:
            batches += self.encoded(gathered)
        self._routes.reroute(self, batches, outcome.error)

    def _retry(self, retry: Retry) -> None:
        error, strikes = retry.error, retry.strikes
        self._unconfirmed.refusals[self.partition] = error
        if self._network.retry.spent(strikes):
            self.fail(error)
            return
        if isinstance(error, NotLeader) and error.detail:
            self.address = self._network.led_by(self.address, error.detail)
        elif isinstance(error, NotLeader | Unavailable):
            self._network.doubt(strikes)
            self._routes.find()
        if strikes == 1 and isinstance(error, BadChecksum | SequenceGap):
            self._sequencer.resume()  # the broker is well: only the bytes or their order were not
            return
        self._wait = asyncio.get_running_loop().call_later(
            self._network.pause(strikes, error), self._resume
        )

    def _resume(self) -> None:
        self._sequencer.resume()
        self.pump()
