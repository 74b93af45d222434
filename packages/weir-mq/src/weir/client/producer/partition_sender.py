"""A producer's way to one partition: gather, number, send, send again until confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from weir.client.connection.link import Link
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
from weir.client.producer.receipts import Confirmed, Handed, Sent
from weir.codec.fields import Buffer
from weir.errors import (
    BadChecksum,
    Disconnected,
    NotLeader,
    PartitionEnded,
    Refused,
    SequenceGap,
    StampTooFar,
    TooLarge,
    Unavailable,
    WeirError,
    refusal,
)
from weir.model.header import renumbered
from weir.model.ids import Address
from weir.model.stamp import milliseconds_of
from weir.protocol.client import messages as m

#: So many messages came alone one after the other, and the next one is taken to do so as well.
ALONE_IN_A_ROW = 8

#: A producer waits for a node's clock to reach what it has seen of another's, if it is not far.
CLOCKS_DIFFER_MAX_MS = 5_000


class Linger:
    """Judges the messages of one lane that lingers for no longer than a turn.

    Who waits for each confirm before the next message has nothing else to send in a turn: waiting
    for its end would make every message later. Who sends several in a turn is found out by the
    first of them that comes behind one that was not kept back.
    """

    __slots__ = ("_alone", "_loop", "_sent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Know of no message yet."""
        self._loop = loop
        #: How many in a row were alone.
        self._alone = 0
        #: Whether one was sent at once in this turn.
        self._sent = False

    def batch(self, count: int, alone: bool) -> None:
        """A batch of so many messages goes out, `alone` if nothing else is under way."""
        self._alone = self._alone + 1 if count == 1 and alone else 0

    def takes(self, alone: bool) -> bool:
        """Whether to send at once the message that comes now, `alone` if nothing is under way."""
        if self._sent:
            self._alone = 0
        elif alone and self._alone >= ALONE_IN_A_ROW:
            self._sent = True
            self._loop.call_soon(self._turned)
            return True
        return False

    def _turned(self) -> None:
        self._sent = False


class Owner(Protocol):
    """The producer, as its lanes see it."""

    def begun(self, batch: Handed) -> None:
        """A batch begins."""

    def settled(self, batch: Handed, result: Confirmed | Exception) -> None:
        """A batch is confirmed or given up."""

    def moved(self) -> None:
        """The partition may be served elsewhere now."""

    def stranded(
        self, lane: Lane, batches: list[tuple[Handed, Buffer]], error: PartitionEnded
    ) -> None:
        """The partition has ended, and these are not in it: they go elsewhere, in this order."""

    def forgotten(self, lane: Lane, error: WeirError) -> None:
        """What was confirmed as received is lost: the lane is to begin anew, and needs a grant."""

    def strayed(self) -> None:
        """A batch was confirmed by way of others: the partition may be served elsewhere by now."""


class Lane:
    """Batches of one partition in sequence order. The shell of a `Batcher` and a `Sequencer`."""

    __slots__ = (
        "_batcher",
        "_due",
        "_grant",
        "_hurry",
        "_level",
        "_linger",
        "_link",
        "_loop",
        "_owner",
        "_packing",
        "_sequencer",
        "_timer",
        "_topic",
        "_wait",
        "_waits",
        "address",
        "large",
        "partition",
        "refused",
    )

    def __init__(
        self,
        link: Link,
        owner: Owner,
        topic: str,
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
        #: The last refusal since the last confirm: it says why nothing is confirmed.
        self.refused: Refused | None = None
        #: Held while a large value is sent.
        self.large = asyncio.Lock()
        self._link = link
        self._owner = owner
        self._topic = topic
        self._grant = grant
        self._linger = linger
        self._packing = packing
        self._batcher: Batcher[Handed] = Batcher(batch_bytes)
        forgets = level is m.Level.RECEIVED
        self._sequencer: Sequencer[Handed] = Sequencer(window, forgets=forgets)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._wait: asyncio.TimerHandle | None = None
        self._due = False
        self._hurry = Linger(self._loop)

    @property
    def error(self) -> WeirError | None:
        """What ended this lane, if something did."""
        return self._sequencer.error

    @property
    def is_idle(self) -> bool:
        """Whether nothing is gathered or unconfirmed."""
        return not (len(self._sequencer) or self._batcher.waiting or self.gathering)

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
    ) -> Sent:
        """Add a message of `size_of` bytes to the batch gathered, or to one begun `now` (µs);
        `pinned` if it may go to no other partition.
        """
        batcher, hurries = self._batcher, False
        gathering = batcher.gathering
        if gathering is None or gathering.owner.pinned is not pinned or not batcher.fits(size):
            batch = Handed(self._topic, self.partition, pinned)
            self._owner.begun(batch)
            alone = gathering is None and not (batcher.ready or len(self._sequencer))
            gathering = batcher.begin(batch, now)
            hurries = self._linger <= 0 and self._hurry.takes(alone)
            if not hurries:
                self._linger_from_now()
        batch = gathering.owner
        batch.size += size
        batch.count += 1
        sent = Sent(batch, batcher.add(size, value, key, tag, time, headers, due, expires))
        if hurries:
            self.flush()
        elif batcher.ready:
            self.pump()
        return sent

    def put(self, whole: Whole[Handed]) -> None:
        """Hand over a batch behind all messages added so far."""
        self._owner.begun(whole.owner)
        self._batcher.put(whole)
        self.pump()

    def flush(self) -> None:
        """Close the batch being gathered: it goes out as soon as the window lets it."""
        self._batcher.cut()
        self.pump()

    def begin(self, address: Address) -> None:
        """Send what was gathered, and whatever comes, to a partition that is known by now."""
        self.address, self._waits = address, False
        self.pump()

    def pump(self) -> None:
        """Number what the window has room for, then send what is to be sent."""
        if self._waits:
            return
        sequencer, batcher, link = self._sequencer, self._batcher, self._link
        while (batcher.ready or (self._due and batcher.gathering is not None)) and sequencer.room:
            if not batcher.ready:
                batcher.cut()
            self._hold(batcher.ready.popleft())
        while (held := sequencer.to_send()) is not None:
            held.seen = held.seen or link.seen
            request = m.Produce(self.address, held.seen, held.data, self._level)
            correlation = link.send(request, self._answered)
            if correlation is None:
                return  # the link calls when it can be written to
            sequencer.sent(held, correlation)

    def fail(self, error: WeirError) -> None:
        """End this lane: give up all that is not confirmed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._wait is not None:
            self._wait.cancel()
        self._settle(self._sequencer.fail(error))

    def _linger_from_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = False
        # With linger 0 a batch still takes all that is sent in this turn of the loop, and, while
        # the window is full, all that comes until it has room.
        if self._linger > 0:
            self._timer = self._loop.call_later(self._linger, self._linger_over)
        else:
            self._timer = self._loop.call_soon(self._linger_over)

    def _linger_over(self) -> None:
        self._due = True
        self.pump()

    def strand(self, *wholes: Whole[Handed]) -> list[tuple[Handed, Buffer]]:
        """Return batches that come too late, as bytes, to go elsewhere."""
        grant, group = self._grant, self.address.group
        found: list[tuple[Handed, Buffer]] = []
        for whole in wholes:
            try:
                data = whole.encode(group, grant.producer, grant.epoch, 0)
            except Exception as error:  # as in `_hold`
                self._owner.settled(whole.owner, error)
            else:
                found.append((whole.owner, data))
        return found

    def _hold(self, gathered: Whole[Handed]) -> None:
        grant, sequencer, count = self._grant, self._sequencer, len(gathered)
        self._hurry.batch(count, alone=not len(sequencer))
        welcome = self._link.welcome
        try:
            batch = gathered.encode(
                self.address.group,
                grant.producer,
                grant.epoch,
                sequencer.next_sequence,
                self._packing,
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
            self._owner.settled(gathered.owner, error)
            return
        sequencer.hold(memoryview(batch), count, gathered.owner)

    def _answered(self, correlation: int, answer: m.Reply | Disconnected) -> None:
        if isinstance(answer, m.Confirm):  # as nearly all are
            self._link.saw(answer.stamp)
            self.refused = None
            self._settle(self._sequencer.answered(correlation, answer))
            # One at the node that answers, as an address without a node is, is never astray.
            if self.address.node and self._link.is_astray(self.address):
                self._owner.strayed()
        elif isinstance(answer, Disconnected):
            self._sequencer.lost()
            return
        elif isinstance(answer, m.Refusal):
            refused = refusal(answer.code, answer.message, answer.detail)
            if isinstance(refused, StampTooFar):
                ahead = milliseconds_of(self._sequencer.seen(correlation) - refused.detail) + 1
                refused.retryable = ahead <= CLOCKS_DIFFER_MAX_MS
                refused.wait_seconds = ahead / 1_000
            self._settle(self._sequencer.answered(correlation, refused))
        else:
            raise TypeError(f"Produce was answered by {answer!r}")
        self.pump()

    def renew(self, grant: m.ProducerGrant) -> None:
        """Send all that is held as another producer's: `Owner.forgotten` said why."""
        self._grant = grant
        group = self.address.group

        def anew(data: memoryview, sequence: int) -> memoryview:
            return memoryview(renumbered(data, group, grant.producer, grant.epoch, sequence))

        self._sequencer.renumber(anew)
        self.pump()

    def _settle(self, outcomes: list[Outcome[Handed]]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Released):
                held, confirm = outcome.held, outcome.confirm
                done = Confirmed(
                    self.partition,
                    held.sequence,
                    held.count,
                    confirm.offset,
                    confirm.stamp,
                    confirm.duplicate,
                    confirm.index,
                )
                self._owner.settled(held.owner, done)
            elif isinstance(outcome, Failed):
                self._owner.settled(outcome.held.owner, outcome.error)
            elif isinstance(outcome, Forgotten):
                self._owner.forgotten(self, outcome.error)
            elif isinstance(outcome, Stranded):
                self._strand(outcome)
            else:
                self._retry(outcome)
        if self._sequencer.error is not None:
            self._batcher.cut()
            while (gathered := self._batcher.take()) is not None:
                self._owner.settled(gathered.owner, self._sequencer.error)

    def _strand(self, outcome: Stranded[Handed]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        batches: list[tuple[Handed, Buffer]]
        batches = [(held.owner, held.data) for held in outcome.held]
        self._batcher.cut()
        while (gathered := self._batcher.take()) is not None:
            batches += self.strand(gathered)
        self._owner.stranded(self, batches, outcome.error)

    def _retry(self, retry: Retry) -> None:
        error, strikes = retry.error, retry.strikes
        self.refused = error
        if self._link.retry.spent(strikes):
            self.fail(error)
            return
        if isinstance(error, NotLeader) and error.detail:
            self.address = self._link.led_by(self.address, error.detail)
        elif isinstance(error, NotLeader | Unavailable):
            self._link.doubt(strikes)
            self._owner.moved()
        if strikes == 1 and isinstance(error, BadChecksum | SequenceGap):
            self._sequencer.resume()  # the broker is well: only the bytes or their order were not
            return
        self._wait = self._loop.call_later(self._link.pause(strikes, error), self._resume)

    def _resume(self) -> None:
        self._sequencer.resume()
        self.pump()
