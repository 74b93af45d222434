"""Scatterings: messages to several partitions, and acks with them, at one stamp or not at all.

async with w.scatter() as s:
    s.publish("orders", order, key=customer)
    s.publish("orders", invoice, key=invoice_number)
    s.ack(message)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import msgspec

from weir.client.arguments import check_columns, key_bytes, value_bytes
from weir.client.connection.metadata import ASK_EVERY, Places
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.consumer import LeasedBatch, LeasedMessage
from weir.client.consumer.delivery import Settled
from weir.client.consumer.settlement import Leased, Settlement
from weir.client.core.grants import Run
from weir.client.producer.receipts import Receipt
from weir.errors import BadRequest, PartitionEnded, StaleGrant, TooLarge, UnknownTopic
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import Address, acks_part, batch_part, partition_of
from weir.model.limits import SCATTER_BYTES_MAX, SCATTER_PARTS_MAX
from weir.model.topic import partition_for
from weir.protocol.client import messages as m
from weir.protocol.client.order import Part

#: Far below the time after which brokers forget a producer id that nobody uses.
_UNUSED_SECONDS = 3_600.0
#: How often, and after how many seconds, it is tried elsewhere where a partition has ended.
_TRIES = 8
_AGAIN_AFTER = 0.05


class ScatteredAcks(msgspec.Struct, frozen=True):
    """Runs of a grant that a scattering is to ack."""

    address: Address
    cluster: str
    fence: int
    runs: list[Run]
    settlement: Settlement
    leased: Leased

    def put_back(self) -> None:
        """Let the consumer ack them again."""
        self.settlement.put_back(self.leased, self.runs)


def take_out(settlement: Settlement, leased: Leased) -> ScatteredAcks:
    """Take what a consumer handed out away from what that acks by itself.

    Raises `StaleGrant` if its lease is over, or if it has an outcome, and `BadRequest` if its
    cluster has a cursor over all partitions.
    """
    there, holding = list[Run](), leased.holding
    address, fence = holding.lessor.place_of(holding)
    if leased.state is Settled.OPEN and not holding.over:
        there = settlement.take_out(leased)
    if not there:
        raise StaleGrant("the lease of a message to ack has ended, or the message has an outcome")
    return ScatteredAcks(address, settlement.cluster, fence, there, settlement, leased)


class _Row(msgspec.Struct):
    """One message, and how the caller chose its partition."""

    topic: str
    value: bytes
    key: bytes | None
    tag: str | None
    time: int | None
    headers: Mapping[str, bytes]
    partition: int | None


class ProducerId(msgspec.Struct):
    """A producer id for one scattering at a time, and what it sent so far: its next `number` of a
    scattering, and its next sequence by group.
    """

    grant: m.ProducerGrant
    since: float
    number: int = 0
    sequences: dict[int, int] = msgspec.field(default_factory=dict)


class ProducerIds:
    """The producer ids of a client's scatterings, and publications, that are not in use."""

    def __init__(self, network: NetworkClient) -> None:
        """Have none yet."""
        self._network = network
        self.idle: list[ProducerId] = []

    async def take(self) -> ProducerId:
        """Return one; it comes back by `give_back`, or is never used again."""
        now = asyncio.get_running_loop().time()
        self.idle = [one for one in self.idle if one.since >= now - _UNUSED_SECONDS]
        if self.idle:
            return self.idle.pop()
        asked = m.OpenProducer(window=1)  # it is idle until it is known what came of the last one
        return ProducerId(await self._network.request(asked, m.ProducerGrant), now)

    def give_back(self, producer: ProducerId, sequences: Mapping[int, int]) -> None:
        """Take back one of which it is known what it did: so many more `sequences` by group."""
        producer.number += 1
        for group, count in sequences.items():
            producer.sequences[group] = producer.sequences.get(group, 0) + count
        self.idle.append(producer)


class Scatterings:
    """What all scatterings of a client share: producer ids, and where topics are served."""

    def __init__(self, network: NetworkClient) -> None:
        """Open nothing yet."""
        self._network = network
        self.producers = ProducerIds(network)
        #: By topic, where it is served, and since when that is known.
        self._places: dict[str, tuple[Places, float]] = {}
        self._turn = 0
        self._finding = asyncio.Lock()

    def begin(self) -> Scattering:
        """Return an empty scattering."""
        self._turn += 1
        return Scattering(self, self._turn)

    async def places(self, topic: str, partition: int = 0) -> Places:
        """Return where a topic is served, as of a few seconds ago: else keys would go by fewer
        partitions than it has by now. As of now if `partition` was not there then.

        Raises `UnknownTopic`.
        """
        async with self._finding:
            now = asyncio.get_running_loop().time()
            known, since = self._places.get(topic, (None, now))
            if known is None or now - since >= ASK_EVERY or partition >= len(known):
                known = await Places.find(self._network, topic)
                self._places[topic] = known, now
            return known

    async def send(
        self, rows: Mapping[Address, list[_Row]], acks: list[ScatteredAcks]
    ) -> m.ScatterConfirm:
        """Return once all of it is durable. Raises `Refused`, or `Disconnected`: then it may have
        come to be or not.
        """
        producer = await self.producers.take()
        request = _request(producer, rows, acks, self._network)
        try:
            confirm = await self._network.request(request, m.ScatterConfirm)
        except (UnknownTopic, PartitionEnded):
            self.forget_places(some[0].topic for some in rows.values())
            raise
        self.producers.give_back(producer, {at.group: len(some) for at, some in rows.items()})
        self._network.saw(confirm.stamp)
        return confirm

    def forget_places(self, topics: Iterable[str]) -> None:
        """Ask anew where topics are served when that is needed next."""
        for topic in topics:
            self._places.pop(topic, None)


class Scattering:
    """One scattering, to enter with `async with`: leaving it sends it, an error in it does not."""

    def __init__(self, shared: Scatterings, turn: int) -> None:
        """Begin with nothing in it; see `Client.scatter`."""
        self._shared = shared
        self._turn = turn
        self._rows: list[_Row] = []
        self._acks: list[tuple[Settlement, Leased]] = []
        self._size = 0
        #: Where its messages are, in the order in which they were published; set by leaving it.
        self.receipts: list[Receipt] = []

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        tag: str | None = None,
        time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> None:
        """Add a message, as `Client.publish` takes it; those of several topics need that each of
        these was told to `scatter_with` the others.

        Without key and partition it goes where the others without go. Raises `BadRequest`, and
        `TooLarge` over 1 MiB in all.
        """
        check_columns(tag, time, headers)
        data, raw = value_bytes(value), key_bytes(key)
        self._size += len(data) + len(raw or b"")
        if self._size > SCATTER_BYTES_MAX:
            raise TooLarge(
                f"a scattering of over {SCATTER_BYTES_MAX:,} bytes: publish less at once",
                SCATTER_BYTES_MAX,
            )
        self._rows.append(_Row(topic, data, raw, tag, time, headers or {}, partition))

    def ack(self, what: LeasedMessage | LeasedBatch) -> None:
        """Add that a message, or a batch, of a consumer is done: it is acked if, and only if, all
        else comes to be. Any topic's.
        """
        self.add_ack(*what.lease_of())

    def add_ack(self, settlement: Settlement, leased: Leased) -> None:
        """Add that what a consumer handed out is done: for the client without async."""
        self._acks.append((settlement, leased))

    async def send(self) -> list[Receipt]:
        """Send it; leaving `async with` does. Raises `StaleGrant` if a lease is over: then nothing
        was published, and what was to be acked is another consumer's. `Disconnected` and
        `Unavailable`: it may have come to be or not.
        """
        if not self._rows:
            raise BadRequest("a scattering publishes at least one message: acks alone need none")
        for again in range(_TRIES, -1, -1):
            try:
                return await self._send([await self._place(row) for row in self._rows])
            except PartitionEnded:
                # The node that answers for the topic may not know of it yet.
                if not again or all(row.partition is not None for row in self._rows):
                    raise
                await asyncio.sleep(_AGAIN_AFTER)
        raise AssertionError("the last try returns or raises")

    async def _send(self, chosen: list[Address]) -> list[Receipt]:
        rows: dict[Address, list[_Row]] = {}
        for address, row in zip(chosen, self._rows, strict=True):
            rows.setdefault(address, []).append(row)
        taken: list[ScatteredAcks] = []
        try:
            for settlement, leased in self._acks:
                taken.append(take_out(settlement, leased))
            confirm = await self._shared.send(rows, taken)
        except BaseException:
            for one in taken:
                one.put_back()
            raise
        self.receipts = self._receipts(chosen, confirm)
        return self.receipts

    async def _place(self, row: _Row) -> Address:
        places = await self._shared.places(row.topic, row.partition or 0)
        if row.partition is not None:
            await places.find_these([row.partition])
            return places[row.partition]
        if row.key is not None:
            return places[partition_for(row.key, len(places), places.closed)]
        taking = [p for p in range(len(places)) if p not in places.closed]
        return places[taking[self._turn % len(taking)]]

    def _receipts(self, chosen: list[Address], confirm: m.ScatterConfirm) -> list[Receipt]:
        offsets, receipts = dict(confirm.offsets), []
        for row, address in zip(self._rows, chosen, strict=True):
            group = address.group
            at, partition = offsets[group], partition_of(group)
            offsets[group] += 1
            receipts.append(Receipt(row.topic, partition, at, confirm.stamp, confirm.duplicate))
        return receipts

    async def __aenter__(self) -> Scattering:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            await self.send()


def _request(
    producer: ProducerId,
    rows: Mapping[Address, list[_Row]],
    acks: list[ScatteredAcks],
    network: NetworkClient,
) -> m.Scatter:
    groups, now = [address.group for address in rows], network.system.now_us()
    done: dict[int, tuple[Address, dict[str, list[tuple[int, int, int]]]]] = {}
    for one in acks:
        _, clusters = done.setdefault(one.address.group, (one.address, {}))
        found = clusters.setdefault(one.cluster, [])
        found += [(one.fence, first, behind) for first, behind in one.runs]
    parts = sorted([*map(batch_part, groups), *map(acks_part, done)])
    if len(parts) > SCATTER_PARTS_MAX:
        raise TooLarge(
            f"a scattering over {len(parts)} partitions; {SCATTER_PARTS_MAX} are allowed",
            SCATTER_PARTS_MAX,
        )
    scattered = Scattered(producer.number, tuple(parts))
    found_parts = [
        Part(address, _batch(producer, address.group, some, scattered, now))
        for address, some in rows.items()
    ]
    found_parts += [Part(at, acks=[*clusters.items()]) for at, clusters in done.values()]
    grant = producer.grant
    return m.Scatter(grant.producer, grant.epoch, producer.number, network.seen, found_parts)


def _batch(
    producer: ProducerId, group: int, rows: list[_Row], scattered: Scattered, now: int
) -> bytes:
    return bytes(encode(
        [row.value for row in rows],
        group=group,
        producer=producer.grant.producer,
        epoch=producer.grant.epoch,
        sequence=producer.sequences.get(group, 0),
        base_time=now,
        keys=[row.key for row in rows] if any(row.key is not None for row in rows) else None,
        tags=[row.tag for row in rows] if any(row.tag is not None for row in rows) else None,
        times=[now if row.time is None else row.time for row in rows]
        if any(row.time is not None for row in rows) else None,
        headers=[row.headers for row in rows] if any(row.headers for row in rows) else None,
        scattered=scattered,
    ))  # fmt: skip
