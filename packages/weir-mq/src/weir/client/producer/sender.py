"""Where the batches of a producer go: the partitions of its topic, also as they move and grow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from weir.client.arguments import (
    AckLevel,
    CompressionName,
    check_choice,
    duration,
    whole_number,
)
from weir.client.connection.metadata import LOOK_EVERY, Places, watch
from weir.client.connection.network_client import NetworkClient
from weir.client.core.batcher import BATCH_BYTES, Gathered, Packing, Whole, picked
from weir.client.core.retries import seconds
from weir.client.producer.partition_sender import PartitionSender
from weir.client.producer.receipts import BatchReceipt, PendingBatch, Unconfirmed
from weir.client.schemas import Schemas, SchemaVersion, Unable, ValueChecker, number_of
from weir.codec import Buffer
from weir.errors import (
    BadRequest,
    Disconnected,
    MissingLibrary,
    PartitionEnded,
    ProducerExpired,
    Refused,
    UnknownTopic,
    WeirError,
)
from weir.model.batch import Batch, Columns
from weir.model.ids import PARTITIONS_MAX, Address, group_of, topic_of, window_of
from weir.model.limits import BATCH_BYTES_MAX, DEDUPE_HORIZON_MS, MIB, PIPELINE_WINDOW
from weir.model.topic import partition_for
from weir.protocol.client import messages as m

_LEVELS = {
    "replicated": m.Level.REPLICATED,
    "received": m.Level.RECEIVED,
    "visible": m.Level.VISIBLE,
}


#: So many batches of a partition are under way at once for publishes that have no producer of
#: their own: what comes meanwhile shares the next batch. Each id costs the broker by its window.
LONE_WINDOW = 4
#: For so long a shared id is given to topics that did not have it yet.
SHARED_SECONDS = DEDUPE_HORIZON_MS / 1_000 / 7


class Partitioner:
    """Chooses by key, and in turn what has none, among the partitions that take messages."""

    __slots__ = ("_topic", "_turn", "closed", "senders")

    def __init__(self, topic: str) -> None:
        """Know of no partition yet."""
        self._topic = topic
        self._turn = 0
        #: Of the partitions that are known, by number.
        self.senders: list[PartitionSender] = []
        #: Those to which nothing goes any more unless they are named.
        self.closed: set[int] = set()

    def begin(self, senders: list[PartitionSender], closed: Iterable[int], turn: int) -> None:
        """Choose among these, the one at `turn` before the first."""
        self.senders, self.closed, self._turn = senders, set(closed), turn

    def close_idle(self, closed: Iterable[int]) -> None:
        """Send nothing more to these, as far as nothing is under way there: what is, and what comes
        behind it, goes elsewhere together, in its order, once it is refused.
        """
        self.closed |= {p for p in closed if p < len(self.senders) and self.senders[p].is_idle}

    def by_key(self, key: bytes) -> int:
        """Return the partition that a key falls into."""
        return partition_for(key, len(self.senders), self.closed)

    @property
    def turn(self) -> int:
        """The partition whose turn it is."""
        return self.next() if self._turn in self.closed else self._turn

    def next(self) -> int:
        """Stay with a partition while it gathers, then turn to the next: whole batches."""
        if not self.senders[self._turn].gathering:
            self._turn = (self._turn + 1) % len(self.senders)
        while self._turn in self.closed:  # partition 0 never is
            self._turn = (self._turn + 1) % len(self.senders)
        return self._turn

    def choose(self, key: bytes | None, partition: int | None) -> PartitionSender:
        """Return the sender of a partition, of a key's, or of the next. Raises `BadRequest`,
        `UnknownTopic`.
        """
        senders = self.senders
        if not senders:
            raise BadRequest("the producer is not open: use `async with client.producer(...)`")
        if partition is None:
            if key is not None:
                return senders[partition_for(key, len(senders), self.closed)]
            partition = self.next()
        if not isinstance(partition, int) or not 0 <= partition < len(senders):
            raise UnknownTopic(
                f"{self._topic} has no partition {partition!r}: give 0 to {len(senders) - 1}"
            )
        return senders[partition]


def taken_apart(
    whole: PendingBatch, data: Buffer, partitioner: Partitioner, unconfirmed: Unconfirmed
) -> list[tuple[int, Gathered[PendingBatch]]]:
    """Return what goes to which partition of a batch that was encoded as `data`, in its order.

    What has no key goes to one of them. A caller that waits for the whole is told once all of
    these are settled.
    """
    batch, without_key = Batch(data), partitioner.next()
    places: dict[int, list[int]] = {}
    for place, key in enumerate(batch.keys()):
        partition = without_key if key is None else partitioner.by_key(key)
        places.setdefault(partition, []).append(place)
    moved: list[tuple[PendingBatch, int] | None] = [None] * len(batch)
    found = []
    for partition, rows in places.items():
        part = unconfirmed.begin(partition, part_of=whole)
        part.count = len(rows)
        part.size = whole.size * len(rows) // len(batch)
        for at, row in enumerate(rows):
            moved[row] = part, at
        found.append((partition, _gathered(part, batch, rows)))
    found[0][1].owner.size += whole.size - sum(one.owner.size for _, one in found)
    whole.size = 0  # its parts have that
    whole.moved = [one for one in moved if one is not None]
    return found


def _gathered(owner: PendingBatch, batch: Batch, rows: list[int]) -> Gathered[PendingBatch]:
    columns = batch.header.columns

    def numbers(flag: Columns) -> list[int] | None:
        column = batch.numbers(flag)
        return None if column is None else picked(column.tolist(), rows)

    return Gathered(
        owner,
        batch.header.base_time,
        picked(batch.values(), rows) or (),
        picked(batch.keys(), rows) if columns & Columns.KEY else None,
        picked(batch.tags(), rows) if columns & Columns.TAG else None,
        numbers(Columns.TIME),
        picked(batch.headers(), rows) if columns & Columns.HEADERS else None,
        numbers(Columns.DUE),
        numbers(Columns.EXPIRES),
        owner.size,
    )


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer gathers and sends; `linger` is a duration, `partition` None: by key or turn.

    `on_confirm` is called once per batch, in order per partition; what it raises, `flush` raises.
    """

    linger: str | float = "5ms"
    batch_bytes: int = BATCH_BYTES
    window: int = 8
    partition: int | None = None
    max_buffered: int = 64 * MIB
    on_confirm: Callable[[BatchReceipt], None] | None = None
    #: "none", "lz4" or "zstd" (the extra `compress`), kept only where it makes a batch smaller.
    compression: CompressionName = "none"
    level: int | None = None
    #: "replicated"; "received": confirmed once the leader's disk has it; or "visible": confirmed
    #: once nothing can come before it in the order of all partitions any more.
    ack: AckLevel = "replicated"
    #: The version of the topic's schema that all values have; None: none, unless the topic says
    #: that values are checked, and then the newest.
    schema: SchemaVersion | None = None
    #: Whether values are checked by it before they are sent; None: as the topic says.
    check_values: bool | None = None

    def check(self) -> None:
        """Raise `BadRequest` for options that cannot work."""
        duration("linger", self.linger)
        whole_number("batch_bytes", self.batch_bytes, 1, BATCH_BYTES_MAX)
        whole_number("window", self.window)
        whole_number("max_buffered", self.max_buffered)
        check_choice("compression", self.compression, CompressionName)
        check_choice("ack", self.ack, AckLevel)
        if isinstance(self.schema, str):
            check_choice("schema", self.schema, Literal["newest"])
        elif self.schema is not None:
            whole_number("schema", self.schema, 1)


class SharedId:
    """A producer id that publishes to several topics share, each topic once: another producer of
    the same topic would number its batches anew.
    """

    def __init__(self, network: NetworkClient) -> None:
        """Ask for none yet."""
        self._network = network
        self._grant: m.ProducerGrant | None = None
        self._since = 0.0
        self._topics: set[str] = set()

    async def take(self, topic: str) -> m.ProducerGrant:
        """Return the id for a topic, a new one if the topic had it, or it is old: partitions take
        no id that they do not know from the dedupe horizon on.
        """
        now = asyncio.get_running_loop().time()
        is_old = now - self._since > SHARED_SECONDS
        if self._grant is None or topic in self._topics or is_old:
            asked = m.OpenProducer(window=LONE_WINDOW)
            self._grant = await self._network.request(asked, m.ProducerGrant)
            self._since, self._topics = now, set()
        self._topics.add(topic)
        return self._grant


class TopicSender:
    """The senders of one topic's partitions, under a producer id of its own."""

    def __init__(
        self,
        network: NetworkClient,
        topic: str,
        options: ProducerOptions,
        unconfirmed: Unconfirmed,
        shared: SharedId | None = None,
    ) -> None:
        """Take the connections, and the id that is `shared`; `open` talks to the broker."""
        self._shared_id = shared
        self.partitioner = Partitioner(topic)
        self._network = network
        self._topic = topic
        self._options = options
        self._unconfirmed = unconfirmed
        self._packing = Packing.named(options.compression, options.level)
        #: Values are checked by it before they are sent, if it is there.
        self.checker: ValueChecker | Unable | None = None
        self._finding: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._renewing: dict[asyncio.Task[None], None] = {}
        #: When it was asked last where the partitions are.
        self._asked = 0.0
        #: The partitions that are known, and under what to send to others, while it is open.
        self._known: tuple[Places, m.ProducerGrant] | None = None
        #: Partitions that are looked for, as the topic may have got them since; by number.
        self._sought: dict[int, tuple[PartitionSender, asyncio.Task[None]]] = {}
        #: From which partition on the topic had none, and when that was said.
        self._lacking = (PARTITIONS_MAX, 0.0)

    async def open(self) -> None:
        """Ask where the partitions are and for a producer id. Raises `UnknownTopic`."""
        places = await Places.find(self._network, self._topic)
        await self._take_schema(places)
        if isinstance(self._options.partition, int):
            await places.find_these([self._options.partition])
        grants = await self._granted(len(places))
        senders = [self._new_sender(p, places[p], grant) for p, grant in enumerate(grants)]
        # Programs that publish one message each must not all begin with the same partition.
        turn = self._network.random.randrange(len(senders))
        self.partitioner.begin(senders, places.closed, turn)
        self.partitioner.choose(None, self._options.partition)
        self._network.senders.add(self)
        self._known = places, grants[0]
        loop = asyncio.get_running_loop()
        self._watching = loop.create_task(self._watch(places, grants[0]), name="weir growth")

    async def _take_schema(self, places: Places) -> None:
        """Find out which version of the schema values have. Raises `UnknownSchema`."""
        asked, check = self._options.schema, self._options.check_values
        newest, checked = places.schema
        is_checked = checked if check is None else check
        checker = None
        if asked is None and not (is_checked and (newest or check)):
            asked = 0
        elif asked is None or asked == "newest" or asked > newest:
            # Where the topic was described, the last versions may not be known yet.
            found = await Schemas(self._network).get(self._topic, number_of(asked))
            asked = found.number
        if asked and is_checked:
            checker = await ValueChecker.find(self._network, self._topic, asked)
        self._packing = replace(self._packing, schema=asked)
        self.checker = checker

    async def _follow_schema(self, places: Places) -> None:
        """Do as the topic says by now, if it says something else: to what is sent from here on."""
        newest, checked = places.schema
        check = self._options.check_values
        wanted = newest if (checked if check is None else check) else 0
        if self._options.schema is not None or wanted == self._packing.schema:
            return
        try:
            await self._take_schema(places)
        except MissingLibrary as error:
            self.checker = Unable(error)
        except WeirError:
            return  # it is asked again
        for sender in self._all():
            sender.repack(self._packing)

    async def _granted(self, partitions: int) -> list[m.ProducerGrant]:
        """Ask for a producer id for all partitions; or for each, which may have to begin anew."""
        if self._shared_id is not None:
            return [await self._shared_id.take(self._topic)] * partitions
        if _LEVELS[self._options.ack] is not m.Level.RECEIVED:
            window = min(self._options.window, PIPELINE_WINDOW)
            asked_once = m.OpenProducer(window=window)
            return [await self._network.request(asked_once, m.ProducerGrant)] * partitions
        asked = m.OpenProducer(), m.ProducerGrant
        return await asyncio.gather(*(self._network.request(*asked) for _ in range(partitions)))

    def _new_sender(
        self, partition: int, address: Address, grant: m.ProducerGrant, waits: bool = False
    ) -> PartitionSender:
        options, welcome = self._options, self._network.welcome
        window = min(options.window, window_of(grant.producer))
        return PartitionSender(
            self._network,
            self,
            self._unconfirmed,
            partition,
            address=address,
            grant=grant,
            linger=seconds(options.linger),
            batch_bytes=options.batch_bytes,
            window=min(window, welcome.window if welcome else window),
            packing=self._packing,
            level=_LEVELS[options.ack],
            waits=waits,
        )

    async def _watch(self, places: Places, grant: m.ProducerGrant) -> None:
        """Send to partitions that are added later, too; keys fall into other ones from then on."""
        known = len(self.senders)

        def grown(partitions: range) -> None:
            self._grow(places, grant)

        async def looked() -> None:
            self.partitioner.close_idle(places.closed)
            await self._follow_schema(places)

        # A topic that is gone refuses what is sent: that is soon enough to say so.
        with contextlib.suppress(Refused):
            await watch(places, known, grown, looked)

    def _grow(self, places: Places, grant: m.ProducerGrant) -> None:
        """Have a sender for each partition that is known by now."""
        for partition in range(len(self.senders), len(places)):
            sender, _ = self._sought.pop(partition, (None, None))
            if sender is None:
                self.senders.append(self._new_sender(partition, places[partition], grant))
            else:
                self.senders.append(sender)
                sender.begin(places[partition])

    async def close(self) -> None:
        """Give up what is not confirmed; `flush` first to give up nothing."""
        self._network.senders.remove(self)
        seeking = [task for _, task in self._sought.values()]
        for task in (self._finding, self._watching, *self._renewing, *seeking):
            if task is not None:
                task.cancel()
        self._known = None
        closed = Disconnected("the producer is closed; messages under way may have been stored")
        self.end(closed)
        self._unconfirmed.close(closed)

    @property
    def error(self) -> WeirError | None:
        """The error that ended one of its partitions for good; then open another producer."""
        errors = (sender.error for sender in self.senders)
        return next((e for e in errors if e and not isinstance(e, PartitionEnded)), None)

    async def put(
        self,
        sender: PartitionSender,
        size: int,
        count: int,
        whole: Callable[[PendingBatch], Whole[PendingBatch]],
        pinned: bool = False,
    ) -> PendingBatch:
        """Send a batch of about `size` bytes to a partition once there is room; raise what ended
        it. One that is not `pinned` goes elsewhere if the partition has ended.
        """
        unconfirmed = self._unconfirmed

        def has_room() -> bool:
            return sender.error is not None or (sender.room and unconfirmed.fits(size))

        await unconfirmed.until(has_room)
        error = sender.error
        if error is not None and (pinned or not isinstance(error, PartitionEnded)):
            raise error
        batch = unconfirmed.begin(sender.partition, pinned)
        batch.size, batch.count = size, count
        unconfirmed.buffered += size
        if isinstance(error, PartitionEnded):
            self.reroute(sender, sender.encoded(whole(batch)), error)
        else:
            sender.put(whole(batch))
        return batch

    async def flush(self) -> None:
        """Return when all that was sent before is confirmed; raise the first error since the last.

        Raises `Disconnected` after `request_timeout` without any confirm.
        """
        for sender in self._all():
            sender.flush()
        await self._unconfirmed.flush()

    # What the senders of partitions ask for: see `Routes`.

    def reroute(
        self,
        sender: PartitionSender,
        batches: list[tuple[PendingBatch, Buffer]],
        error: PartitionEnded,
    ) -> None:
        """Send elsewhere what was not meant for this very partition, which has ended."""
        self.partitioner.closed.add(sender.partition)
        self.find()
        for whole, data in batches:
            if whole.pinned:
                self._unconfirmed.resolve(whole, error)
                continue
            for partition, part in taken_apart(whole, data, self.partitioner, self._unconfirmed):
                self.senders[partition].put(part)
        self._unconfirmed.wake()

    def find(self) -> None:
        """Ask again where the partitions are, once at a time."""
        if self._finding is None or self._finding.done():
            self._finding = asyncio.get_running_loop().create_task(self._find(), name="weir find")

    def find_now_and_then(self) -> None:
        """Ask again where the partitions are, now and then."""
        if asyncio.get_running_loop().time() - self._asked >= LOOK_EVERY:
            self.find()

    def renew(self, sender: PartitionSender) -> None:
        """Get another epoch, or producer id, for a sender whose old one has lost what was only
        received: a new epoch ends what of the old one is still on its way.
        """
        task = asyncio.get_running_loop().create_task(self._renew(sender), name="weir renew")
        self._renewing[task] = None
        task.add_done_callback(self._renewing.pop)

    async def _renew(self, sender: PartitionSender) -> None:
        others = (other for other in self.senders if other is not sender)
        shared = any(other.producer == sender.producer for other in others)
        try:
            try:
                asked = m.OpenProducer(0 if shared else sender.producer)
                grant = await self._network.request(asked, m.ProducerGrant)
            except ProducerExpired:  # it is so old that it is forgotten
                grant = await self._network.request(m.OpenProducer(), m.ProducerGrant)
            sender.renew(grant)
        except WeirError as error:
            if sender.error is None:
                sender.fail(error)

    async def _find(self) -> None:
        self._asked = asyncio.get_running_loop().time()
        try:
            info = await self._network.request(m.DescribeTopic(self._topic), m.TopicInfo)
            await self._network.learn(info.addresses)
        except WeirError as error:
            # It is tried on at the old place, and asked again with the next refusal.
            self._unconfirmed.found(error)
            return
        self._unconfirmed.found(None)
        if any(topic_of(sender.address.group) != info.id for sender in self.senders):
            # Another topic has the name by now, and the pending batches are sealed for the one
            # before: its broker answers that it is gone.
            return
        self.partitioner.close_idle(info.closed)
        for sender, address in zip(self.senders, info.addresses, strict=False):
            sender.address = address

    # What the connections ask for: see `Sender`.

    def writable(self) -> None:
        """Send what waited for the network."""
        for sender in self.senders:
            sender.pump()

    def end(self, error: WeirError) -> None:
        """Give up: there will be no connection again."""
        for sender in self._all():
            if sender.error is None:
                sender.fail(error)
        self._unconfirmed.wake()

    # Choosing a partition.

    def choose(self, key: bytes | None, partition: int | None) -> PartitionSender:
        """Return the sender of a partition, which may have to be looked for; of the one that the
        options name, of a key's, or of the next.
        """
        if partition is None:
            partition = self._options.partition
        try:
            return self.partitioner.choose(key, partition)
        except UnknownTopic as unknown:
            return self._seek_sender(partition, unknown)

    def _seek_sender(self, partition: int | None, unknown: UnknownTopic) -> PartitionSender:
        """Return one that sends nothing until it is found out whether the topic has got this
        partition since. Raises `unknown` if there can be none, or it was just looked for.
        """
        loop = asyncio.get_running_loop()
        first, since = self._lacking
        if (
            self._known is None
            or not isinstance(partition, int)
            or not len(self.senders) <= partition < PARTITIONS_MAX
            or (partition >= first and loop.time() - since < LOOK_EVERY)
        ):
            raise unknown
        if (found := self._sought.get(partition)) is not None:
            return found[0]
        places, grant = self._known
        address = Address(0, 0, group_of(places.id, partition))
        sender = self._new_sender(partition, address, grant, waits=True)
        seeking = loop.create_task(self._seek(places, grant, sender), name="weir seek")
        self._sought[partition] = sender, seeking
        return sender

    async def look_for(self, partition: int) -> None:
        """Return once a partition is known. Raises `UnknownTopic` if the topic has none such, and
        `Disconnected` if that is not found out in `request_timeout`.
        """
        sender = self.choose(None, partition)
        if (found := self._sought.get(partition)) is not None:
            await asyncio.wait(found[1:], timeout=self._network.request_timeout)
            if sender.error is not None:
                raise sender.error
            if not found[1].done():
                raise self._unconfirmed.stalled()

    async def _seek(self, places: Places, grant: m.ProducerGrant, sender: PartitionSender) -> None:
        """Look for a sender's partition; let it begin, or end it with what refuses it."""
        tries = 0
        while sender.error is None:
            try:
                await places.find_these([sender.partition])
            except (Refused, Disconnected) as error:
                tries += 1
                lasts = isinstance(error, Disconnected) or error.retryable
                if lasts and not self._network.retry.spent(tries):
                    await asyncio.sleep(self._network.pause(tries, error))
                    continue
                del self._sought[sender.partition]
                if isinstance(error, UnknownTopic):
                    self._lacking = sender.partition, asyncio.get_running_loop().time()
                if sender.error is None:
                    sender.fail(error)
            else:
                self._grow(places, grant)
            return

    @property
    def senders(self) -> list[PartitionSender]:
        """Those of the partitions that are known, by partition."""
        return self.partitioner.senders

    def _all(self) -> list[PartitionSender]:
        """Return all of them, also of partitions that are looked for."""
        return [*self.senders, *(sender for sender, _ in self._sought.values())]
