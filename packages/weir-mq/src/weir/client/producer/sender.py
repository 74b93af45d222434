"""What a producer does beneath its messages: lanes, confirms, waiting, and where they go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from weir.client.arguments.choices import (
    AckLevel,
    CompressionName,
    check_choice,
    duration,
    whole_number,
)
from weir.client.connection.broker_clock import BrokerClock
from weir.client.connection.link import Link
from weir.client.connection.metadata import LOOK_EVERY, Places, watch
from weir.client.core.batcher import BATCH_BYTES, Packing, Whole
from weir.client.core.durations import seconds
from weir.client.producer.partition_sender import Lane
from weir.client.producer.partitioner import Choosing, taken_apart
from weir.client.producer.receipts import Confirmed, Handed, Limits, Timeouts
from weir.codec.fields import Buffer
from weir.errors import (
    Disconnected,
    PartitionEnded,
    ProducerExpired,
    Refused,
    UnknownTopic,
    WeirError,
)
from weir.model.ids import PARTITIONS_MAX, Address, group_of
from weir.model.limits import BATCH_BYTES_MAX, MIB
from weir.protocol.client import messages as m

_LEVELS = {
    "replicated": m.Level.REPLICATED,
    "received": m.Level.RECEIVED,
    "visible": m.Level.VISIBLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer gathers and sends; `linger` is a duration, `partition` None: by key or turn.

    `on_confirm` is called once per batch, in order per partition; what it raises, `flush` raises.
    """

    linger: str | float = "5ms"
    batch_bytes: int = BATCH_BYTES
    window: int = 8
    partition: int | None = None
    max_buffered: int = 64 * MIB
    on_confirm: Callable[[Confirmed], None] | None = None
    #: "none", "lz4" or "zstd" (the extra `compress`), kept only where it makes a batch smaller.
    compression: CompressionName = "none"
    level: int | None = None
    #: "replicated"; "received": confirmed once the leader's disk has it; or "visible": confirmed
    #: once nothing can come before it in the order of all partitions any more.
    ack: AckLevel = "replicated"

    def check(self) -> None:
        """Raise `BadRequest` for options that cannot work."""
        duration("linger", self.linger)
        whole_number("batch_bytes", self.batch_bytes, 1, BATCH_BYTES_MAX)
        whole_number("window", self.window)
        whole_number("max_buffered", self.max_buffered)
        check_choice("compression", self.compression, CompressionName)
        check_choice("ack", self.ack, AckLevel)


class Sender:
    """The lanes of one topic, under a producer id of its own: what is below a `Producer`."""

    def __init__(
        self,
        link: Link,
        topic: str,
        options: ProducerOptions,
    ) -> None:
        """Take the link; `open` talks to the broker."""
        options.check()
        self.topic = topic
        #: Bytes gathered or sent, and not confirmed.
        self.buffered = 0
        self._link = link
        self._options = options
        self._linger = seconds(options.linger)
        self._packing = Packing.named(options.compression, options.level)
        self._now = link.system.now_us
        self.clock = BrokerClock(link, self._now)
        self.choosing = Choosing(topic)
        self._unsettled: dict[Handed, None] = {}
        self._first_error: Exception | None = None
        self._patience = Timeouts(link.request_timeout)
        self.limits = Limits(link.request_timeout, self._stalled)
        self._moving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._renewing: dict[asyncio.Task[None], None] = {}
        self._doubt = ""
        #: When it was asked last where the partitions are.
        self._sought = 0.0
        #: The partitions that are known, and under what to send to others, while it is open.
        self._known: tuple[Places, m.ProducerGrant] | None = None
        #: Partitions that are looked for, as the topic may have got them since; by number.
        self._unheard: dict[int, tuple[Lane, asyncio.Task[None]]] = {}
        #: From which partition on the topic had none, and when that was said.
        self._lacking = (PARTITIONS_MAX, 0.0)

    async def open(self) -> None:
        """Ask where the partitions are and for a producer id. Raises `UnknownTopic`."""
        info, _ = await asyncio.gather(
            self._link.request(m.DescribeTopic(self.topic), m.TopicInfo), self.clock.learn()
        )
        places = Places(self._link, self.topic, info)
        if isinstance(self._options.partition, int):
            await places.find_these([self._options.partition])
        grants = await self._granted(len(places))
        lanes = [self._new_lane(p, places[p], grant) for p, grant in enumerate(grants)]
        # Programs that publish one message each must not all begin with the same partition.
        self.choosing.begin(lanes, places.closed, self._link.random.randrange(len(lanes)))
        self.choosing.lane(self._options.partition)
        self._link.senders[self] = None
        self._known = places, grants[0]
        loop = asyncio.get_running_loop()
        self._watching = loop.create_task(self._watch(places, grants[0]), name="weir growth")

    async def _granted(self, lanes: int) -> list[m.ProducerGrant]:
        """Ask for a producer id for all lanes; or for each, where it may have to begin anew."""
        asked = m.OpenProducer(), m.ProducerGrant
        if _LEVELS[self._options.ack] is not m.Level.RECEIVED:
            return [await self._link.request(*asked)] * lanes
        return await asyncio.gather(*(self._link.request(*asked) for _ in range(lanes)))

    def _new_lane(
        self, partition: int, address: Address, grant: m.ProducerGrant, waits: bool = False
    ) -> Lane:
        options, welcome = self._options, self._link.welcome
        return Lane(
            self._link,
            self,
            self.topic,
            partition,
            address=address,
            grant=grant,
            linger=self._linger,
            batch_bytes=options.batch_bytes,
            window=min(options.window, welcome.window if welcome else options.window),
            packing=self._packing,
            level=_LEVELS[options.ack],
            waits=waits,
        )

    async def _watch(self, places: Places, grant: m.ProducerGrant) -> None:
        """Send to partitions that are added later, too; keys fall into other ones from then on."""
        known = len(self.choosing.lanes)

        def grown(partitions: range) -> None:
            self._grow(places, grant)

        def looked() -> None:
            self.choosing.close_idle(places.closed)

        # A topic that is gone refuses what is sent: that is soon enough to say so.
        with contextlib.suppress(Refused):
            await watch(places, known, grown, looked)

    def _grow(self, places: Places, grant: m.ProducerGrant) -> None:
        """Have a lane for each partition that is known by now."""
        for partition in range(len(self.lanes), len(places)):
            lane, _ = self._unheard.pop(partition, (None, None))
            if lane is None:
                self.lanes.append(self._new_lane(partition, places[partition], grant))
            else:
                self.lanes.append(lane)
                lane.begin(places[partition])

    async def close(self) -> None:
        """Give up what is not confirmed; `flush` first to give up nothing."""
        self._link.senders.pop(self, None)
        seeking = [task for _, task in self._unheard.values()]
        for task in (self._moving, self._watching, *self._renewing, *seeking):
            if task is not None:
                task.cancel()
        self._known = None
        closed = Disconnected("the producer is closed; what was under way may have happened")
        self.ended(closed)
        self.limits.close(closed)

    @property
    def error(self) -> WeirError | None:
        """What ended one of its partitions for good; open another producer then."""
        errors = (lane.error for lane in self.lanes)
        return next((e for e in errors if e and not isinstance(e, PartitionEnded)), None)

    async def hand(
        self,
        lane: Lane,
        size: int,
        count: int,
        whole: Callable[[Handed], Whole[Handed]],
        pinned: bool = False,
    ) -> Handed:
        """Hand a batch of about `size` bytes to a lane once it takes it; raise what ended that. One
        that is not `pinned` goes elsewhere if the partition has ended.
        """
        if not self._takes(lane, size):
            await self._patience.until(partial(self._takes, lane, size), self._stalled)
        error = lane.error
        if error is not None and (pinned or not isinstance(error, PartitionEnded)):
            raise error
        batch = Handed(self.topic, lane.partition, pinned)
        batch.size, batch.count = size, count
        self.buffered += size
        if isinstance(error, PartitionEnded):
            self.begun(batch)
            self.stranded(lane, lane.strand(whole(batch)), error)
        else:
            lane.put(whole(batch))
        return batch

    async def ready(self) -> None:
        """Return when no more than `max_buffered` bytes await their confirms."""
        most = self._options.max_buffered
        await self._patience.until(lambda: self.buffered <= most, self._stalled)

    def forgive(self, error: Exception) -> None:
        """Keep from `flush` what ended the chunks of a value that is sent again."""
        if self._first_error is error:
            self._first_error = None

    async def confirmed(self, batch: Handed) -> Confirmed:
        """Return a batch's confirm. Raises `Disconnected` after `request_timeout` without any."""
        await self._settles(batch)
        return await batch

    async def _settles(self, batch: Handed) -> None:
        await self._patience.until(partial(_is_settled, batch), self._stalled)

    async def flush(self) -> None:
        """Return when all that was sent before is confirmed; raise the first error since the last.

        Raises `Disconnected` after `request_timeout` without any confirm.
        """
        waited_for = [*self._unsettled]
        for lane in self._all():
            lane.flush()
        for batch in waited_for:
            if not batch.settled:
                await self._patience.until(partial(_is_settled, batch), self._stalled)
        error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    # What lanes and the link tell.

    def begun(self, batch: Handed) -> None:
        """A batch begins: `flush` waits for it from now on."""
        self._unsettled[batch] = None
        batch.patience = self._settles

    def settled(self, batch: Handed, result: Confirmed | Exception) -> None:
        """A batch is confirmed or given up: tell all who wait."""
        self._unsettled.pop(batch, None)
        self.buffered -= batch.size
        batch.settle(result)
        if isinstance(result, Exception):
            self._first_error = self._first_error or result
        elif self._options.on_confirm is not None and not (result.index or batch.moved):
            # It is no chunk, nor was each of its parts told.
            # An error of the user's ledger must not end the connection whose reply this is.
            try:
                self._options.on_confirm(result)
            except Exception as error:
                self._first_error = self._first_error or error
        whole = batch.part_of
        if whole is not None and (outcome := whole.gathered) is not None:
            self.settled(whole, outcome)
        self._patience.wake()

    def stranded(
        self, lane: Lane, batches: list[tuple[Handed, Buffer]], error: PartitionEnded
    ) -> None:
        """Send elsewhere what was not meant for this very partition, which has ended."""
        self.choosing.closed.add(lane.partition)
        self.moved()
        for whole, data in batches:
            if whole.pinned:
                self.settled(whole, error)
                continue
            for partition, part in taken_apart(whole, data, self.choosing):
                self.lanes[partition].put(part)
        self._patience.wake()

    def moved(self) -> None:
        """Ask again where the partitions are, once at a time."""
        if self._moving is None or self._moving.done():
            self._moving = asyncio.get_running_loop().create_task(self._find(), name="weir find")

    def forgotten(self, lane: Lane, error: WeirError) -> None:
        """Get another epoch, or producer id, for a lane whose old one has lost what was only
        received: a new epoch ends what of the old one is still on its way.
        """
        task = asyncio.get_running_loop().create_task(self._renew(lane), name="weir renew")
        self._renewing[task] = None
        task.add_done_callback(self._renewing.pop)

    async def _renew(self, lane: Lane) -> None:
        shared = any(other is not lane and other.producer == lane.producer for other in self.lanes)
        try:
            try:
                asked = m.OpenProducer(0 if shared else lane.producer)
                grant = await self._link.request(asked, m.ProducerGrant)
            except ProducerExpired:  # it is so old that it is forgotten
                grant = await self._link.request(m.OpenProducer(), m.ProducerGrant)
            lane.renew(grant)
        except WeirError as error:
            if lane.error is None:
                lane.fail(error)

    def strayed(self) -> None:
        """Ask again where the partitions are, now and then."""
        if asyncio.get_running_loop().time() - self._sought >= LOOK_EVERY:
            self.moved()

    def writable(self) -> None:
        """Send what waited for the link."""
        for lane in self.lanes:
            lane.pump()

    def ended(self, error: WeirError) -> None:
        """Give up: there will be no link again."""
        for lane in self._all():
            if lane.error is None:
                lane.fail(error)
        self._patience.wake()

    async def _find(self) -> None:
        self._sought = asyncio.get_running_loop().time()
        try:
            info = await self._link.request(m.DescribeTopic(self.topic), m.TopicInfo)
            await self._link.learn(info.addresses)
        except WeirError as error:
            # The lanes go on trying at the old place, and ask again with the next refusal.
            self._doubt = f" (asked where {self.topic} is served: {error})"
            return
        self._doubt = ""
        self.choosing.close_idle(info.closed)
        for lane, address in zip(self.lanes, info.addresses, strict=False):
            lane.address = address

    # Waiting, and choosing a lane.

    def lane_of(self, key: bytes | None, partition: int | None) -> Lane:
        """Return the lane of a partition, or of a key's; see `lane`."""
        if partition is None:
            partition = self._options.partition
        if partition is None and key is not None:
            partition = self.choosing.of_key(key)
        return self.lane(partition)

    def lane(self, partition: int | None) -> Lane:
        """Return the lane of a partition, which may have to be looked for, or of the next."""
        try:
            return self.choosing.lane(partition)
        except UnknownTopic as unknown:
            return self._lane_unheard_of(partition, unknown)

    def _lane_unheard_of(self, partition: int | None, unknown: UnknownTopic) -> Lane:
        """Return a lane that sends nothing until it is found out whether the topic has got this
        partition since. Raises `unknown` if there can be none, or it was just looked for.
        """
        loop = asyncio.get_running_loop()
        first, since = self._lacking
        if (
            self._known is None
            or not isinstance(partition, int)
            or not len(self.lanes) <= partition < PARTITIONS_MAX
            or (partition >= first and loop.time() - since < LOOK_EVERY)
        ):
            raise unknown
        if (found := self._unheard.get(partition)) is not None:
            return found[0]
        places, grant = self._known
        address = Address(0, 0, group_of(places.id, partition))
        lane = self._new_lane(partition, address, grant, waits=True)
        seeking = loop.create_task(self._seek(places, grant, lane), name="weir seek")
        self._unheard[partition] = lane, seeking
        return lane

    async def look_for(self, partition: int) -> None:
        """Return once a partition is known. Raises `UnknownTopic` if the topic has none such, and
        `Disconnected` if that is not found out in `request_timeout`.
        """
        lane = self.lane(partition)
        if (found := self._unheard.get(partition)) is not None:
            await asyncio.wait(found[1:], timeout=self._link.request_timeout)
            if lane.error is not None:
                raise lane.error
            if not found[1].done():
                raise self._stalled()

    async def _seek(self, places: Places, grant: m.ProducerGrant, lane: Lane) -> None:
        """Look for a lane's partition; let it begin, or end it with what refuses it."""
        tries = 0
        while lane.error is None:
            try:
                await places.find_these([lane.partition])
            except (Refused, Disconnected) as error:
                tries += 1
                lasts = isinstance(error, Disconnected) or error.retryable
                if lasts and not self._link.retry.spent(tries):
                    await asyncio.sleep(self._link.pause(tries, error))
                    continue
                del self._unheard[lane.partition]
                if isinstance(error, UnknownTopic):
                    self._lacking = lane.partition, asyncio.get_running_loop().time()
                if lane.error is None:
                    lane.fail(error)
            else:
                self._grow(places, grant)
            return

    def _all(self) -> list[Lane]:
        """Return all lanes, also those whose partition is looked for."""
        return [*self.lanes, *(lane for lane, _ in self._unheard.values())]

    @property
    def lanes(self) -> list[Lane]:
        """The lanes of the partitions that are known, by partition."""
        return self.choosing.lanes

    def _takes(self, lane: Lane, size: int) -> bool:
        fits = self.buffered == 0 or self.buffered + size <= self._options.max_buffered
        return lane.error is not None or (lane.room and fits)

    def _stalled(self) -> Disconnected:
        refused = next((lane.refused for lane in self.lanes if lane.refused is not None), None)
        advice = (
            "Check that the broker is up and has a majority"
            if refused is None
            else f"The broker refused it last with: {type(refused).__name__}: {refused}. Mend that"
        )
        return Disconnected(
            f"nothing sent to {self.topic} was confirmed for {self._link.request_timeout:g} s; "
            f"{len(self._unsettled)} batches are still tried. {advice}, or give a longer "
            f"request_timeout{self._doubt}"
        )


def _is_settled(batch: Handed) -> bool:
    return batch.settled
