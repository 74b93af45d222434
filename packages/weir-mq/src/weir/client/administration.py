"""Looking after topics, their hubs and consumer clusters: what `Client`'s methods of that kind do.

A partition knows only its own share of a cluster; here the shares are asked for and put together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import SYSTEM
from weir.client.core.retries import seconds
from weir.client.reader.options import Start, cluster_begin_of
from weir.errors import (
    BadRequest,
    ClusterInUse,
    OffsetOutOfRange,
    Unavailable,
    UnknownCluster,
)
from weir.model.columns import boot_of, generation_of
from weir.model.ids import LIMIT_MAX, Address
from weir.model.limits import MAX_AHEAD_MS, TOPICS_TOGETHER_MAX, UNTIL_DONE_MAX
from weir.model.topic import EVERY_CLUSTER, FOREVER, Mode, Presence, Progress, SettingsChange
from weir.order.clock import milliseconds_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

R = TypeVar("R")
#: A place that was asked for may be past retention by the time it is sought.
_SEEK_TRIES = 5
_ASKED_TOGETHER = 256
#: A list does not wait longer for a partition of which nobody answers.
_SILENT_MS = 1_000
#: How long partitions may take to follow when a cluster is paused, and how often they are asked.
_PAUSED_WITHIN = 10.0
_PAUSED_LOOK = 0.01
#: What sets no limit on a retention.
_KEPT_FOR_EVER = "forever"


class Share(msgspec.Struct, frozen=True):
    """How far a cluster is in one partition, which holds offsets [start, end).

    All below `cursor` is done; `lag` messages are not, of which `granted` are with consumers, some
    for the `attempts`-th time; the oldest was published `oldest_seconds` ago. What an aborted
    scattering left is no message. `skipped` went past retention before they were done. Nobody gets
    the `held_back` ones, which failed, for a while, nor the `delayed` ones, which are not due.
    `mode` is "" until its first grant. Acks of `pending` messages wait at the relay that was asked.
    """

    partition: int
    start: int
    end: int
    cursor: int
    lag: int
    granted: int = 0
    attempts: int = 0
    oldest_seconds: float | None = None
    skipped: int = 0
    consumers: int = 0
    paused: bool = False
    mode: str = ""
    held_back: int = 0
    delayed: int = 0
    pending: int = 0


class Cluster(msgspec.Struct, frozen=True):
    """A consumer cluster of a topic, and its share of each partition, in their order.

    One that reads in "total" order has one cursor over all partitions, and one turn.
    """

    name: str
    shares: tuple[Share, ...]
    order: str = "partition"
    #: The tags that its messages have, "" for none; empty: it takes all messages.
    tags: tuple[str, ...] = ()
    #: Whether a relay was asked that does not reach its core: it knows only what is `pending`.
    is_cut_off: bool = False

    @property
    def pending(self) -> int:
        """How many messages have acks that wait for the core, at the relay that was asked."""
        return sum(share.pending for share in self.shares)

    @property
    def lag(self) -> int:
        """How many messages are not done."""
        return sum(share.lag for share in self.shares)

    @property
    def granted(self) -> int:
        """How many messages are with consumers."""
        return sum(share.granted for share in self.shares)

    @property
    def mode(self) -> str:
        """Its promise of order: "shared", "keyed" or "ordered"; "" until its first grant."""
        return next((share.mode for share in self.shares if share.mode), "")

    @property
    def held_back(self) -> int:
        """How many messages failed, and wait for their next attempt."""
        return sum(share.held_back for share in self.shares)

    @property
    def delayed(self) -> int:
        """How many messages are not due, of those that it has come by."""
        return sum(share.delayed for share in self.shares)

    @property
    def skipped(self) -> int:
        """How many messages went past retention before they were done."""
        return sum(share.skipped for share in self.shares)

    @property
    def consumers(self) -> int:
        """How many consumers are at work, as far as one partition sees them."""
        return max(share.consumers for share in self.shares)

    @property
    def attempts(self) -> int:
        """The most grants that a message took which is with a consumer now."""
        return max(share.attempts for share in self.shares)

    @property
    def oldest_seconds(self) -> float | None:
        """How long ago the oldest message that is not done was published; None if all are done."""
        ages = [s.oldest_seconds for s in self.shares if s.oldest_seconds is not None]
        return max(ages, default=None)

    @property
    def paused(self) -> bool:
        """Whether it is granted nothing, at least in part."""
        return any(share.paused for share in self.shares)

    @property
    def paused_in_part(self) -> bool:
        """Whether some partitions grant it messages, and some do not."""
        return self.paused and not all(share.paused for share in self.shares)


def cluster_of(name: str, replies: Sequence[a.ClusterList]) -> Cluster:
    """Return one cluster out of the replies of all partitions, in their order."""
    info = next((info for info in replies[0].clusters if info.name == name), None)
    if info is None or not info.offsets:
        tags = next((found for reply in replies for one, found in reply.tags if one == name), ())
        parts = tuple(_share(p, reply, name) for p, reply in enumerate(replies))
        return Cluster(name, parts, tags=tags, is_cut_off=any(r.is_cut_off for r in replies))
    shares = []
    for partition, reply in enumerate(replies):
        offset = info.offsets[partition] if partition < len(info.offsets) else 0
        cursor = max(offset, reply.start)
        shares.append(
            Share(
                partition, reply.start, reply.end, cursor, _messages_from(cursor, reply),
                attempts=info.attempts, consumers=info.consumers, paused=info.paused,
                mode=Mode(info.mode).name.lower(), pending=dict(reply.pending).get(name, 0),
            )
        )  # fmt: skip
    return Cluster(name, tuple(shares), "total")


def _share(partition: int, reply: a.ClusterList, name: str) -> Share:
    """Return a cluster's share of a partition; one that it has not begun in is all before it."""
    info = next((info for info in reply.clusters if info.name == name), None)
    start, end, pending = reply.start, reply.end, dict(reply.pending).get(name, 0)
    if info is None:
        left = _messages_from(start, reply)
        return Share(partition, start, end, start, left, pending=pending)
    return Share(
        partition,
        start,
        end,
        info.cursor,
        info.lag,
        info.granted,
        info.attempts,
        None if info.oldest_ms < 0 else info.oldest_ms / 1_000,
        info.skipped,
        info.consumers,
        info.paused,
        "" if info.mode < 0 else Mode(info.mode).name.lower(),
        info.held_back,
        info.delayed,
        pending,
    )


def _messages_from(offset: int, reply: a.ClusterList) -> int:
    """Return how many messages a partition holds from `offset` on: void offsets hold none."""
    voids = sum(max(behind - max(first, offset), 0) for first, behind in reply.voids)
    return max(reply.end - offset, 0) - voids


class Part(msgspec.Struct, frozen=True):
    """What a partition holds: offsets [start, end), `bytes` of messages, and where it is served.

    `nodes` hold it, its leader's included; those of them in `behind` are not up to date.
    """

    partition: int
    address: Address
    start: int
    end: int
    bytes: int
    clusters: tuple[str, ...]
    nodes: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


def change_of(
    retention: str | float | None,
    retention_bytes: int | str | None,
    scatter_with: Sequence[str] | None = None,
    until_done: Sequence[str] | None = None,
) -> SettingsChange:
    """Return what to ask for. Raises `BadRequest` or `ValueError` for what is no retention.

    Only the word means for ever: a number that comes to nothing would do the opposite of what it
    says.
    """
    ms, size = retention, retention_bytes
    if ms is not None:
        ms = _KEPT_FOR_EVER if ms == _KEPT_FOR_EVER else round(seconds(ms) * 1_000)
        ms = _limit(ms, f"retention={retention!r}: give 1 second or more")
    if size is not None:
        size = _limit(size, f"retention_bytes={retention_bytes!r}: give 1 byte or more")
    if isinstance(scatter_with, str):
        raise BadRequest(f"scatter_with={scatter_with!r}: give a list of topics")
    if scatter_with is not None and len(scatter_with) >= TOPICS_TOGETHER_MAX:
        raise BadRequest(
            f"scatter_with names {len(scatter_with)} topics; {TOPICS_TOGETHER_MAX - 1} are allowed"
        )
    if isinstance(until_done, str):
        raise BadRequest(
            f"until_done={until_done!r}: give a list of clusters, or [{EVERY_CLUSTER!r}] for every "
            "cluster there is"
        )
    if until_done is not None and len(until_done) > UNTIL_DONE_MAX:
        raise BadRequest(
            f"until_done names {len(until_done)} clusters; {UNTIL_DONE_MAX} are allowed"
        )
    together = None if scatter_with is None else tuple(scatter_with)
    clusters = None if until_done is None else tuple(until_done)
    return SettingsChange(ms, size, together, clusters)


def _limit(value: int | str, advice: str) -> int:
    if value == _KEPT_FOR_EVER:
        return FOREVER
    if not isinstance(value, int) or not 0 < value <= LIMIT_MAX:
        raise BadRequest(f'{advice}, {LIMIT_MAX:,} at most, or "{_KEPT_FOR_EVER}"')
    return value


class Held(msgspec.Struct, frozen=True):
    """A topic, and by partition the offsets [start, end) that it holds; None of a partition whose
    leader did not answer in time.
    """

    info: m.TopicInfo
    offsets: list[tuple[int, int] | None]


class Administration:
    """What operators ask of one system of brokers."""

    def __init__(self, network: NetworkClient) -> None:
        """Ask over the connections of a client."""
        self._network = network

    async def topics(self, namespace: str) -> list[m.TopicInfo]:
        """Return the topics of a namespace, or of all ("")."""
        found: list[m.TopicInfo] = []
        after, more = "", True
        while more:
            page = await self._network.request(m.ListTopics(namespace, after), m.TopicList)
            found += page.topics
            more = page.more and bool(page.topics)
            if found:
                after = f"{found[-1].namespace}/{found[-1].name}"
        return found

    async def held(self, namespace: str) -> list[Held]:
        """Return the topics of a namespace, or of all (""), and what their partitions hold."""
        found: list[Held] = []
        after, more = "", True
        while more:
            request = m.ListOffsets(namespace, after, _SILENT_MS)
            page = await self._network.request(request, m.OffsetList, wait=_SILENT_MS / 1_000)
            known = {group: (start, end) for group, start, end in page.offsets}
            for info in page.topics:
                found.append(Held(info, [known.get(at.group) for at in info.addresses]))
                after = f"{info.namespace}/{info.name}"
            more = page.more and bool(page.topics)
        return found

    async def alter(self, name: str, change: SettingsChange, partitions: int) -> m.TopicInfo:
        """Change a topic's settings or number of partitions.

        A cluster that is paused is so in new partitions too. Before they are asked for, the broker
        is told of clusters again that were paused partition by partition, as releases did before.
        """
        if partitions:
            places = await Places.find(self._network, name)
            for cluster in await self._clusters(places, ""):
                if cluster.paused:
                    await self._set_paused(places, cluster.name, True)
        return await self._network.request(a.AlterTopic(name, change, partitions), m.TopicInfo)

    async def end(self, name: str, partition: int) -> m.TopicInfo:
        """End a partition; one that has ended is answered the same."""
        return await self._network.request(a.EndPartition(name, partition), m.TopicInfo)

    async def delete(self, name: str) -> None:
        """Delete a topic. By its id, so that a second try deletes no other of that name."""
        info = await self._network.request(m.DescribeTopic(name), m.TopicInfo)
        await self._network.request(a.DeleteTopic(name, info.id), a.Deleted)

    async def parts(self, topic: str) -> list[Part]:
        """Return what each partition holds."""
        places = await Places.find(self._network, topic)
        infos = await ask_each(
            places, lambda _, address: a.DescribePartition(address), a.PartitionInfo
        )
        return [
            Part(
                p,
                places[p],
                info.start,
                info.end,
                info.bytes,
                tuple(info.clusters),
                tuple(info.nodes),
                tuple(info.behind),
            )
            for p, info in enumerate(infos)
        ]

    async def clusters(self, topic: str, name: str = "") -> list[Cluster]:
        """Return the clusters of a topic, or one of them, by name; none is no error."""
        return await self._clusters(await Places.find(self._network, topic), name)

    async def seek(
        self, topic: str, name: str, to: Start, partitions: Sequence[int] | None, create: bool
    ) -> Cluster:
        """Let a cluster go on elsewhere. Raises `UnknownCluster` unless it may be created."""
        begin = cluster_begin_of(to)
        places = await self._known(topic, name, create)
        if begin.needs_clock:
            begin = begin.settled(await self._network.wall_ms())
        elif begin.stamp:
            await self._has_come(begin.stamp)
        chosen = [*(range(len(places)) if partitions is None else partitions)]
        if begin.offsets is not None:
            chosen = [*begin.offsets]
        await places.find_these(chosen)
        for attempt in range(_SEEK_TRIES):
            found = await places.positions(begin.stamp, chosen)
            wanted = {p: begin.offset(p, reply) for p, reply in found.items()}
            try:
                await self._seek(places, name, wanted)
            except OffsetOutOfRange:
                if begin.offsets is not None or attempt == _SEEK_TRIES - 1:
                    raise
            else:
                break
        (cluster,) = await self._clusters(places, name)
        return cluster

    async def _has_come(self, stamp: int) -> None:
        """Raise `BadRequest` for a time ahead, as far as no leader stamps anything."""
        if milliseconds_of(stamp) > await self._network.wall_ms() + MAX_AHEAD_MS:
            raise BadRequest(
                "this is a time ahead of the broker's clock, and nothing is stamped then: give a "
                'time that has passed, or "latest" to go on behind all there is'
            )

    async def pause(self, topic: str, name: str, paused: bool) -> Cluster:
        """Pause a cluster, or let it go on; return when every partition does so.

        One request decides it for all partitions, and for those to come. Raises `Unavailable` if a
        partition does not follow in time: it will, as soon as it has a leader.
        """
        places = await self._known(topic, name, create=False)
        await self._set_paused(places, name, paused)
        try:
            async with asyncio.timeout(_PAUSED_WITHIN):
                while True:
                    (cluster,) = await self._clusters(places, name)
                    if all(share.paused == paused for share in cluster.shares):
                        return cluster
                    await asyncio.sleep(_PAUSED_LOOK)
        except TimeoutError:
            raise Unavailable(
                f"cluster {name!r} is {'paused' if paused else 'resumed'}, but some partitions do "
                "not know it yet: they follow by themselves once they have a leader"
            ) from None

    async def _set_paused(self, places: Places, name: str, paused: bool) -> None:
        request = a.PauseCluster(places[0], name, paused)
        await self._network.request(request, a.ClusterChanged)

    async def forget(self, topic: str, name: str) -> None:
        """Delete a cluster; nothing is deleted if it has consumers anywhere when this begins."""
        places = await self._known(topic, name, create=False)
        (cluster,) = await self._clusters(places, name)
        if cluster.consumers:
            raise ClusterInUse(
                f"{cluster.consumers} consumers of cluster {name!r} are at work: stop them first",
                cluster.consumers,
            )
        if cluster.paused:  # one of its name that comes later is not
            await self.pause(topic, name, False)
        infos = await ask_each(
            places, lambda _, address: a.ListClusters(address, name), a.ClusterList
        )
        mine = [partition for partition, info in enumerate(infos) if info.clusters]
        await ask_each(
            places,
            lambda _, address: a.DeleteCluster(address, name),
            a.ClusterChanged,
            mine,
            gone_is_done=True,
        )

    async def _known(self, topic: str, name: str, create: bool) -> Places:
        places = await Places.find(self._network, topic)
        if not create and not await self._clusters(places, name):
            raise UnknownCluster(
                f"no cluster {name!r} reads {topic}: `weir cluster list {topic}` names those "
                "that do; a consumer that starts, or a seek that may create, makes one"
            )
        return places

    async def _clusters(self, places: Places, name: str) -> list[Cluster]:
        replies = await ask_each(
            places, lambda _, address: a.ListClusters(address, name), a.ClusterList
        )
        known = {info.name for reply in replies for info in reply.clusters}
        known.update(one for reply in replies for one, _ in reply.pending)
        names = sorted(known)
        return [cluster_of(one, replies) for one in names]

    async def _seek(self, places: Places, name: str, wanted: Mapping[int, int]) -> None:
        known = await self._clusters(places, name)
        if known and known[0].order == "total":
            offsets = tuple(wanted.get(share.partition, share.cursor) for share in known[0].shares)
            await ask_each(
                places, lambda _, address: m.SeekCursor(address, name, offsets), m.Moved, [0]
            )
            return
        await ask_each(
            places,
            lambda partition, address: a.SeekCluster(address, name, wanted[partition]),
            a.ClusterChanged,
            [*wanted],
        )


async def ask_each(
    places: Places,
    request: Callable[[int, Address], m.Request],
    kind: type[R],
    partitions: list[int] | None = None,
    gone_is_done: bool = False,
) -> list[R]:
    """Ask partitions, all if None, a few hundred at a time; return their replies in order.

    With `gone_is_done`, one that does not know the cluster has done what was asked, at an earlier
    try, and gives no reply.
    """

    async def ask(partition: int) -> R | None:
        try:
            return await places.ask(
                partition,
                lambda address: request(partition, address),
                kind,
                wait=0.0,
                check=lambda _: None,
            )
        except UnknownCluster:
            if not gone_is_done:
                raise
            return None

    asked = [*range(len(places))] if partitions is None else partitions
    found: list[R | None] = []
    for first in range(0, len(asked), _ASKED_TOGETHER):
        found += await asyncio.gather(*map(ask, asked[first : first + _ASKED_TOGETHER]))
    return [reply for reply in found if reply is not None]


class ClusterProgress(msgspec.Struct, frozen=True):
    """How far a cluster is with one message: "waiting", "granted", "held back" or "done".

    It was granted `attempts` times. One that is granted is with `principal` at `address`, as far as
    the node that leads the partition knows them, by connection number `consumer`, for another
    `left_seconds`. A cluster that reads in total order says who has its turn.
    """

    cluster: str
    progress: str
    attempts: int = 0
    consumer: int = 0
    principal: str = ""
    address: str = ""
    left_seconds: float = 0.0


class MessageTrace(msgspec.Struct, frozen=True):
    """Where one message is: "stored", "aborted" with its scattering, "skipped" by a relay that
    keeps other tags, "awaited" where it has not come yet, "deleted" by retention, or "lost".

    The partition holds offsets [start, end) there. `stamp` is that of the batch or entry that holds
    it, or 0. A relay got it at `received` by its own clock, in seconds since 1970; in the core that
    is None. The clock of the node that answered is `clock_ahead` seconds ahead of this machine's,
    give or take `clock_error`.
    """

    topic: str
    partition: int
    offset: int
    presence: str
    start: int
    end: int
    stamp: int
    received: float | None
    clock_ahead: float
    clock_error: float
    clusters: tuple[ClusterProgress, ...] = ()


async def trace(places: Places, partition: int, offset: int) -> MessageTrace:
    """Ask where a message is, and how far the clusters of its topic are with it. Raises
    `BadRequest` for a partition that is not there.
    """

    if partition >= len(places):
        await places.find_again()  # a node that lags may not have heard of it
    if not 0 <= partition < len(places):
        count = len(places)
        raise BadRequest(
            f"{places.topic} has {count} partitions: name one from 0 to {count - 1}"
            if count > 1
            else f"{places.topic} has partition 0 alone: name that"
        )

    def request(address: Address) -> m.Request:
        return a.TraceMessage(address, offset)

    now_us = SYSTEM.get().now_us
    asked_us = now_us()
    told = await places.ask(partition, request, a.TracedMessage)
    told_us = now_us()
    here, error = (asked_us + told_us) / 2e6, (told_us - asked_us) / 2e6
    clusters = [
        ClusterProgress(
            one.name, Progress(one.progress).name.lower().replace("_", " "), one.attempts,
            one.consumer, one.principal, one.address, one.left_ms / 1_000,
        )
        for one in told.clusters
    ]  # fmt: skip
    if partition and told.presence == Presence.STORED and not told.received_ms:
        clusters += await _in_total_order(places, partition, offset)
    return MessageTrace(
        places.topic, partition, offset, Presence(told.presence).name.lower(), told.start, told.end,
        told.stamp, told.received_ms / 1_000 if told.received_ms else None,
        told.now_ms / 1_000 - here, error, tuple(sorted(clusters, key=lambda one: one.cluster)),
    )  # fmt: skip


async def _in_total_order(places: Places, partition: int, offset: int) -> list[ClusterProgress]:
    """Return how far the clusters are that have their one cursor in partition 0."""
    (listed,) = await ask_each(places, lambda _, at: a.ListClusters(at), a.ClusterList, [0])
    found = []
    for one in listed.clusters:
        if one.offsets:
            at = one.offsets[partition] if partition < len(one.offsets) else 0
            found.append(ClusterProgress(one.name, "done" if offset < at else "waiting"))
    return found


class Device(msgspec.Struct, frozen=True):
    """A device (hub, sn) in one partition: the boot and sequence that it is expected to go on with,
    the offset of its last message, and how often the device was replaced before.
    """

    partition: int
    hub: int
    sn: int
    boot: int
    next_sequence: int
    offset: int
    generation: int = 0


async def devices_of(places: Places, hub: int | None) -> list[Device]:
    """Return where the devices of a hub stand, or of all, by partition, hub and sn."""
    found: list[Device] = []
    for partition in range(len(places)):
        part = 0
        while True:
            listed = await _list(places, partition, hub, part)
            found += [
                Device(partition, hub, sn, boot_of(epoch), wanted, offset, generation_of(epoch))
                for hub, sn, epoch, wanted, offset in listed.devices
            ]
            part = listed.next_part
            if not part:
                break
    return sorted(found, key=lambda one: (one.partition, one.hub, one.sn))


async def _list(places: Places, partition: int, hub: int | None, part: int) -> a.HubList:
    def request(address: Address) -> m.Request:
        return a.ListHubs(address, hub, part)

    return await places.ask(partition, request, a.HubList)


async def forget_hub(places: Places, hub: int) -> int:
    """Forget a hub in all partitions; return how many devices that were."""

    def request(address: Address) -> m.Request:
        return a.ForgetHub(address, hub)

    asked = (places.ask(p, request, a.HubForgotten) for p in range(len(places)))
    return sum(reply.devices for reply in await asyncio.gather(*asked))
