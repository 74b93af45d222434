"""`connect` and the `Client` it gives: publish, produce, read, consume and administer topics."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from weir.client.access import Access, Fleets, Quotas
from weir.client.administration import (
    Administration,
    Cluster,
    Device,
    Held,
    MessageTrace,
    Part,
    ask_each,
    change_of,
    devices_of,
    forget_hub,
    trace,
)
from weir.client.arguments import (
    AckLevel,
    CompressionName,
    ConsumerMode,
    Delay,
    Due,
    ReadFrom,
    parse_url,
    whole_number,
)
from weir.client.connection.credentials import (
    AnyCredentials,
    TokenSource,
    find_credentials,
    split_user,
)
from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import SYSTEM
from weir.client.consumer.consumer import Consumer
from weir.client.consumer.delivery import Stale
from weir.client.consumer.subscription import ConsumerOptions, Subscription
from weir.client.core.batcher import BATCH_BYTES
from weir.client.core.retries import Backoff, check_retry, seconds
from weir.client.nodes import Nodes, SystemTopology
from weir.client.producer.producer import (
    Producer,
    ProducerKind,
    ProducerOptions,
    SharedProducers,
)
from weir.client.producer.receipts import BatchReceipt, Receipt
from weir.client.reader.options import ReaderOptions, ReadingOrder, Start, Until
from weir.client.reader.reader import Reader
from weir.client.scattering import Scattering, Scatterings
from weir.client.schemas import Schemas, SchemaVersion
from weir.client.sinks import Sink, forget, list_sinks
from weir.errors import LevelTooLow, WeirError
from weir.model.limits import GRANT_MS_DEFAULT, MIB, VALUE_BYTES_LOADED_MAX
from weir.model.topic import (
    DEFAULT_SETTINGS,
    Order,
    TopicSettings,
    as_change,
    check_key_by,
    check_order,
)
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.client import sinks as s

#: Ten years: a number that timers and arithmetic still take.
_WITHOUT_END_SECONDS = 10 * 365 * 24 * 3_600.0

__all__ = ["Backoff", "Client", "connect"]


class Client:
    """A client of a system of brokers. Get one from `weir.client.client.connect`."""

    def __init__(self, network: NetworkClient) -> None:
        """Take connections that are up; `close` ends them."""
        self._network = network
        self._producers = SharedProducers(network)
        self._consumers: list[Consumer] = []
        self._administration = Administration(network)
        self._scatterings = Scatterings(network)

    @property
    def welcome(self) -> m.Welcome:
        """The node that answered last, and its limits."""
        assert self._network.welcome is not None
        return self._network.welcome

    @property
    def is_connected(self) -> bool:
        """Whether a node is reached just now."""
        return self._network.is_up

    @property
    def nodes(self) -> Nodes:
        """The nodes of the set that it is connected to, for operators."""
        return Nodes(self._network)

    @property
    def access(self) -> Access:
        """Access control: users, roles and the mode of the set, for administrators."""
        return Access(self._network)

    @property
    def fleets(self) -> Fleets:
        """The fleets of devices: hubs that must prove their identity, or may connect."""
        return Fleets(self._network)

    @property
    def quotas(self) -> Quotas:
        """How much namespaces and principals may use, for administrators."""
        return Quotas(self._network)

    @property
    def topology(self) -> SystemTopology:
        """The BrokerSets of the system and their tiers, for administrators."""
        return SystemTopology(self._network)

    @property
    def schemas(self) -> Schemas:
        """The schemas of topics: add versions, and look them up."""
        return Schemas(self._network)

    def wait_without_end(self) -> None:
        """Let requests from now on wait for the broker for as long as it is away."""
        self._network.request_timeout = _WITHOUT_END_SECONDS

    # Messages.

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        tag: str | None = None,
        time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        delay: Delay | None = None,
        due: Due | None = None,
        ttl: Delay | None = None,
        schema: SchemaVersion | None = None,
    ) -> Receipt:
        """Send one message and return where it is once a majority has it.

        `value` is bytes, text (sent as UTF-8) or anything msgspec writes as JSON; `time` is in µs
        since 1970. Publishes of the same turn of the event loop share a batch.

        Clusters get it after `delay` ("5m", or seconds), or when it is `due` (a datetime, ISO 8601,
        or µs since 1970), a year ahead at most; and not once its `ttl` is over, which begins now.
        Readers see it at once. `schema` is what a producer takes.
        """
        send = partial(Producer.publish, key=key, tag=tag, time=time, headers=headers,
                       partition=partition, delay=delay, due=due, ttl=ttl)  # fmt: skip
        delayed = delay is not None or due is not None
        shared = ProducerKind(topic, delayed, schema)
        return await self._producers.publish(shared, partial(send, value=value))

    def producer(
        self,
        topic: str,
        *,
        linger: str | float = "5ms",
        batch_bytes: int = BATCH_BYTES,
        window: int = 8,
        partition: int | None = None,
        max_buffered: int = 64 * MIB,
        on_confirm: Callable[[BatchReceipt], None] | None = None,
        compression: CompressionName = "none",
        level: int | None = None,
        ack: AckLevel = "replicated",
        schema: SchemaVersion | None = None,
        check: bool | None = None,
    ) -> Producer:
        """Return a producer to enter with `async with`; leaving it flushes.

        `compression`: "none", "lz4" or "zstd", at a `level` of the library's or at its default;
        it needs the extra `weir-mq[compress]` here, at every reader, and at the brokers.

        `ack="received"` confirms what the leader alone has on disk: sooner, but lost with that
        machine; such a confirm tells no offset. `ack="visible"` confirms what readers in total
        order can have: nothing comes before it any more, in any partition.

        `schema`: which version of the topic's schema the values have, a number or "newest" (as of
        when the producer is opened). With `check`, values that do not fit it raise `BadValue`
        before they are sent; None: as the topic says (`client.schemas.set_rule`).
        """
        options = ProducerOptions(
            linger=linger,
            batch_bytes=batch_bytes,
            window=window,
            partition=partition,
            max_buffered=max_buffered,
            on_confirm=on_confirm,
            compression=compression,
            level=level,
            ack=ack,
            schema=schema,
            check_values=check,
        )
        return Producer(self._network, topic, options)

    def scatter(self) -> Scattering:
        """Return a scattering to enter with `async with`: what is published and acked in it comes
        to be at one stamp, all of it or nothing, once it is left. Raises as `Scattering.send`.
        """
        return self._scatterings.begin()

    def sink(self, query: str) -> Sink:
        """Return what publishes the batches of a query's result, each of them once: several
        writers stage one, and what they staged is published at one stamp, or not at all.

        `query` is its name, of up to 128 characters. Raises `BadRequest`.
        """
        return Sink(self._network, self._scatterings, query)

    def reader(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        until: Until | None = None,
        partitions: Sequence[int] | None = None,
        key: bytes | str | Sequence[bytes | str] | None = None,
        tag: str | Sequence[str] | None = None,
        max_bytes: int = 4 * MIB,
        follow: bool = True,
        value_bytes_max: int = VALUE_BYTES_LOADED_MAX,
        order: ReadingOrder | None = None,
        read_from: ReadFrom = "leader",
    ) -> Reader:
        """Return a reader of all or some partitions, of some keys or tags only if they are given.

        `start`: "earliest", "latest", "last" (message of each partition; with one `key` the last
        of that key, with several keys or with tags the last of each partition that passes), "-1h",
        a datetime, `weir.at(...)`, `weir.last(n)`, or {partition: offset} as `Reader.positions`
        gives it, or with lineages, as `Reader.checkpoint` does; partitions it does not name begin
        at their earliest. `until`: a time that has passed, or {partition: offset}; it ends there,
        with `follow=False` or a time at today's end.

        `order`: "total", one order of all partitions, the same for every reader; "partition", each
        in its own, sooner; None: as the topic has it. "best-effort" is "total" that does not wait
        for a partition which tells nothing for 0.5 s: what comes of it too late is left out, and
        counted in `Reader.late`. `read_from="any"` spreads readers over the partitions' replicas.
        A value over `value_bytes_max` is not loaded: `async for piece in message.chunks()`.
        """
        options = ReaderOptions(
            start=start,
            partitions=partitions,
            max_bytes=max_bytes,
            follow=follow,
            until=until,
            key=key,
            tag=tag,
            value_bytes_max=value_bytes_max,
            order=order,
            read_from=read_from,
        )
        if not isinstance(topic, str):
            raise TypeError(
                "a reader reads one topic, named by text, not "
                f"{type(topic).__name__}: open one reader for each topic"
            )
        return Reader(self._network, topic, options)

    def consumer(
        self,
        topic: str | Sequence[str],
        *,
        cluster: str,
        start: Start = "earliest",
        max_messages: int = 1_000,
        max_bytes: int = MIB,
        lease: str | float = GRANT_MS_DEFAULT / 1_000,
        ack_within: str | float = "50ms",
        on_stale: Callable[[Stale], None] | None = None,
        value_bytes_max: int = VALUE_BYTES_LOADED_MAX,
        mode: ConsumerMode = "shared",
        max_work: str | float | None = "5m",
        max_in_hand: int = 10_000,
        retry: Backoff | None = None,
        dead_letter: str | None = None,
        tags: str | Sequence[str] | None = None,
    ) -> Consumer:
        """Return a consumer that shares the topic's messages with all others of `cluster`.

        `topic`: a topic, a list of them, or a prefix as "orders.*", also in a list. Each topic has
        a cluster of that name. Topics that a prefix matches later join within seconds; those that
        are deleted leave. `start`, as a reader's, says where a cluster begins that has no position
        in a topic yet, and moves none that has; topics that join later are taken from their
        beginning. {partition: offset} needs that there is one topic.

        `lease`: how long messages are its own; it is extended while they are worked on in a block
        (`async with message:`), and outside of one for up to `max_work` (None: without end).
        `ack_within`: how long acks gather before they go out. `on_stale` is told of acks that came
        after the lease; without it they are logged. `mode`, which a cluster keeps: "shared";
        "keyed", messages of a key in order, one consumer at a time; "ordered", all of a partition
        in order by one consumer, while the others stand by.

        What failed comes again after a while that `retry` says, for ever; with `dead_letter`, a
        topic, it is published there after so many attempts, and what is rejected at once. At
        `max_in_hand` messages without an outcome a task that has them all is told `TooManyInHand`.
        A value over `value_bytes_max` is not loaded: `async for piece in message.chunks()`.
        `tags`, which a cluster keeps: it takes only messages with one of them, "" for no tag.
        """
        options = ConsumerOptions(
            cluster=cluster,
            max_messages=max_messages,
            max_bytes=max_bytes,
            lease=lease,
            ack_within=ack_within,
            on_stale=on_stale,
            value_bytes_max=value_bytes_max,
            mode=mode,
            max_work=max_work,
            max_in_hand=max_in_hand,
            retry=retry,
            dead_letter=dead_letter,
            tags=tags,
        )
        consumer = Consumer(self._network, Subscription(topic, start), options, self)
        self._consumers = [*(old for old in self._consumers if not old.closed), consumer]
        return consumer

    # Topics.

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        order: Order = "partition",
        *,
        if_absent: bool = True,
        retention: str | float | None = None,
        retention_bytes: int | str | None = None,
        scatter_with: Sequence[str] | None = None,
        until_done: Sequence[str] | None = None,
        replicas: int = 0,
        key_by: str = "",
    ) -> m.TopicInfo:
        """Create a topic, or take the one that exists if `if_absent` and its settings agree.

        Messages go when they are older than `retention` ("7d", seconds, or "forever"), and the
        oldest of a partition with more than `retention_bytes` (a number, or "forever": all stay).
        None: the broker's default, or whatever an existing topic has. One scattering may publish
        to it and to other topics if each is to `scatter_with` the others. Messages go too once
        every cluster named by `until_done` has acknowledged them (["*"]: every cluster there is;
        []: none is asked). A new topic has so many `replicas`, each on another node (0: three, as
        far as there are nodes). With `key_by` "device", messages of devices have the number of
        their hub as their key (8 bytes, little-endian), so keyed clusters keep each hub's order.
        """
        change = change_of(retention, retention_bytes, scatter_with, until_done)
        check_order(order)
        whole_number("partitions", partitions)
        whole_number("replicas", replicas, 0)
        check_key_by(key_by)
        request = m.CreateTopic(name, partitions, order, if_absent, change, replicas, key_by)
        # Without if_absent a second try could meet the topic that the first one made.
        info = await self._network.request(request, m.TopicInfo, again=if_absent)
        if key_by and info.key_by != key_by:
            raise LevelTooLow(
                f"topic {info.full_name} has no key_by: its broker is of an earlier release, which "
                "knows none. Upgrade all nodes, and delete the topic to create it anew",
                0,
            )
        return info

    async def restore_topic(
        self,
        name: str,
        source: str,
        system: int,
        partitions: int = 1,
        order: Order = "partition",
        *,
        settings: TopicSettings = DEFAULT_SETTINGS,
        key_by: str = "",
    ) -> m.TopicInfo:
        """Create a topic, for what a backup holds of the topic `source` of a `system`, as its
        manifest names them. It needs the right to `restore` in the namespaces of both. Raises
        `TopicExists`.
        """
        check_order(order)
        check_key_by(key_by)
        whole_number("partitions", partitions)
        change = as_change(settings)
        request = m.RestoreTopic(
            name, partitions, order, False, change, key_by=key_by, source=source, system=system
        )
        return await self._network.request(request, m.TopicInfo, again=False)

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: str | float | None = None,
        retention_bytes: int | str | None = None,
        scatter_with: Sequence[str] | None = None,
        until_done: Sequence[str] | None = None,
    ) -> m.TopicInfo:
        """Change what is given, see `create_topic`; return the topic as it is now.

        Partitions can only be added. From then on a key may fall into another one than before, so
        messages of one key that were published before and after have no order among them.
        """
        change = change_of(retention, retention_bytes, scatter_with, until_done)
        return await self._administration.alter(name, change, partitions or 0)

    async def end_partition(self, name: str, partition: int) -> m.TopicInfo:
        """End a partition for good, not 0: it takes no messages any more, and is read to its end;
        its keys fall into others. Return the topic; to end it again changes nothing.
        """
        return await self._administration.end(name, partition)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its messages, for good. Raises `UnknownTopic`."""
        await self._administration.delete(name)

    async def topics(self, namespace: str = "") -> list[m.TopicInfo]:
        """Return the topics of a namespace, or of all (""). Their `full_name` is what all calls
        take; `name` is without the namespace.
        """
        return await self._administration.topics(namespace)

    async def held(self, namespace: str = "") -> list[Held]:
        """Return the topics of a namespace, or of all (""), and the offsets that their partitions
        hold: one request a page of topics. A partition that no leader answers for within 1 s has
        None.
        """
        return await self._administration.held(namespace)

    async def describe(self, name: str) -> m.TopicInfo:
        """Return a topic and where its partitions are served. Raises `UnknownTopic`."""
        return await self._network.request(m.DescribeTopic(name), m.TopicInfo)

    async def positions(self, name: str) -> tuple[list[int], list[int]]:
        """Return, by partition, the first offsets and those behind the last committed."""
        places = await Places.find(self._network, name)
        found = (await places.positions()).values()
        return [reply.start for reply in found], [reply.end for reply in found]

    async def resolve_cut(
        self,
        *topics: str,
        after: m.ResolvedCut | None = None,
        rows_max: int = 0,
        bytes_max: int = 0,
        wait: float | str = 0.0,
    ) -> m.ResolvedCut:
        """Return a cut through topics: a stamp, and of each partition the offset behind all that is
        stamped at or below it.

        `after`: an earlier answer, for what comes behind that; then at most `rows_max` messages or
        about `bytes_max` bytes, and always the next one (0: no limit). While nothing new is
        committed, the answer waits up to `wait` (seconds or "500ms"); then it has no topics. Raises
        `UnknownTopic`, `BadRequest`, and `Unavailable` while a partition has no leader.
        """
        read = [m.TopicPositions(one.info.id, list(enumerate(one.ends)))
                for one in (after.topics if after is not None else ())]  # fmt: skip
        stamp, wait = after.stamp if after is not None else 0, seconds(wait)
        request = m.ResolveCut([*topics], read, stamp, rows_max, bytes_max, round(wait * 1_000))
        return await self._network.request(request, m.ResolvedCut, wait=wait)

    async def parts(self, name: str) -> list[Part]:
        """Return what each partition of a topic holds, and where it is served."""
        return await self._administration.parts(name)

    async def topic_stats(self, name: str) -> list[a.PartitionStats]:
        """Return how much each partition of a topic holds, in order: messages, bytes, first and
        last offset, and when these were published. Raises `UnknownTopic`.
        """
        places = await Places.find(self._network, name)
        return await ask_each(places, lambda _, address: a.AskStats(address), a.PartitionStats)

    async def trace(self, topic: str, partition: int, offset: int) -> MessageTrace:
        """Return where a message is, and how far each cluster is with it. Raises `UnknownTopic`."""
        return await trace(await Places.find(self._network, topic), partition, offset)

    # Consumer clusters.

    async def clusters(self, topic: str, cluster: str = "") -> list[Cluster]:
        """Return how far the clusters of a topic are, or one of them (none, if it is unknown)."""
        return await self._administration.clusters(topic, cluster)

    async def seek_cluster(
        self, topic: str, cluster: str, to: Start, *,
        partitions: Sequence[int] | None = None, create: bool = False,
    ) -> Cluster:  # fmt: skip
        """Let a cluster go on at `to`, a reader's `start`, in some partitions or in all.

        What its consumers hold is theirs no more: their acks come too late (`StaleGrant`). With
        `create`, a cluster that is not there begins. Raises `UnknownCluster`.
        """
        return await self._administration.seek(topic, cluster, to, partitions, create)

    async def pause_cluster(self, topic: str, cluster: str) -> Cluster:
        """Grant a cluster nothing until `resume_cluster`: consumers wait. They may still ack."""
        return await self._administration.pause(topic, cluster, True)

    async def resume_cluster(self, topic: str, cluster: str) -> Cluster:
        """Resume a paused cluster."""
        return await self._administration.pause(topic, cluster, False)

    async def delete_cluster(self, topic: str, cluster: str) -> None:
        """Forget a cluster; one of its name would begin anew.

        Raises `ClusterInUse` while it has consumers, and `UnknownCluster`.
        """
        await self._administration.forget(topic, cluster)

    async def hubs(self, topic: str, hub: int | None = None) -> list[Device]:
        """Return where the devices of a hub stand that publish with sequences, or of all hubs."""
        return await devices_of(await Places.find(self._network, topic), hub)

    async def forget_hub(self, topic: str, hub: int) -> int:
        """Forget where the devices of a hub stand; return how many that were. They begin anew, at
        sequence 0 of a boot above all that the hub had: what it sent before is refused. Below
        format level 3 any boot will do, and what the hub repeats is there twice: stop it before.
        """
        return await forget_hub(await Places.find(self._network, topic), hub)

    async def sinks(self, topic: str) -> list[s.Sink]:
        """Return which queries have published to a topic, by their names, and the last batch of
        each.
        """
        return await list_sinks(await Places.find(self._network, topic))

    async def forget_sink(self, topic: str, query: str) -> bool:
        """Forget what a query has published to a topic; return whether anything was known of it.

        Should it come back, it begins anew, and what it publishes again is there twice.
        """
        return await forget(await Places.find(self._network, topic), query)

    async def ping(self) -> None:
        """Return when the broker has answered."""
        await self._network.request(m.Ping(), m.Pong)

    # Ending.

    async def close(self) -> None:
        """Flush the publishes under way, then end the connections and all that runs over them."""
        try:
            for consumer in self._consumers:
                await _leave(consumer)
            self._consumers.clear()
        finally:  # a cancelled caller ends the connections as well
            try:
                await self._producers.close()
            finally:
                await self._network.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        # Only of a client that was never told to end: one that ended by itself was told of already.
        if self._network.error is None:
            warnings.warn(
                "a connection to weir was not closed: use `async with`, or `await client.close()`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


async def _leave(consumer: Consumer) -> None:
    """Close a consumer that was left open, so that what it did is not done again."""
    if not consumer.unfinished:
        return
    lost = ""
    try:
        await consumer.close()
    except WeirError as error:
        lost = f"; its last acks are lost, their messages will come again: {error}"
    warnings.warn(
        f"a consumer of {consumer.topic!r} was left open until the client closed: enter it "
        f"with `async with`, or `await consumer.close()`{lost}",
        ResourceWarning,
        stacklevel=3,
    )


class Connecting:
    """A client on its way: `await` it, or enter it with `async with`, which also closes it."""

    def __init__(
        self,
        hosts: list[tuple[str, int]],
        name: str,
        retry: Backoff,
        request_timeout: float,
        credentials: AnyCredentials | None = None,
    ) -> None:
        """Keep the addresses and the credentials; the client does not connect yet."""
        self._credentials = credentials
        self._hosts = hosts
        self._name = name
        self._retry = retry
        self._request_timeout = request_timeout
        self._client: Client | None = None

    async def _connect(self) -> Client:
        system = SYSTEM.get()
        network = NetworkClient(
            self._hosts,
            name=self._name,
            retry=self._retry,
            request_timeout=self._request_timeout,
            random=system.dice(),
            system=system,
            credentials=self._credentials,
        )
        await network.start()
        return Client(network)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"this is no client yet, so it has no {name!r}: write `async with weir.connect(...) "
            "as w:`, or `w = await weir.connect(...)`"
        )

    def __await__(self) -> Generator[object, None, Client]:
        return self._connect().__await__()

    # A type checker knows no such methods, and complains of a plain `with` as well.
    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                "this client needs an event loop: write `async with weir.connect(...) as w:`, or "
                "without asyncio `with weir.sync.connect(...) as w:`"
            )

        def __exit__(self, *_: object) -> None:
            """Is looked for before `__enter__` is called."""

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


_DEFAULT_RETRY = Backoff()


def connect(
    url: str = "weir://localhost:6800",
    *,
    name: str = "python",
    retry: Backoff = _DEFAULT_RETRY,
    request_timeout: str | float = 30.0,
    password: str | os.PathLike[str] | None = None,
    token: TokenSource | None = None,
) -> Connecting:
    """Connect to weir://[user@]host[:port][,host2[:port2]]: `async with connect() as w`, or await
    it. A user's `password` is text, or the path of a file that only its owner may read; None: by
    the environment, WEIR_PASSWORD, or WEIR_PASSWORD_FILE with such a path; else by the keyring.
    Instead, `token` is one, or the path of a file that is read for each connection, or a function,
    async or not, that returns one; without a user in the URL, WEIR_TOKEN and WEIR_TOKEN_FILE are
    looked at.

    A lost connection is dialled again with backoff, for ever unless `retry.attempts` is set; a
    request waits for it up to `request_timeout` ("5s", or seconds) and then raises `Disconnected`.
    `name` is what the broker calls this client. Raises `ValueError` for what is no address, and for
    a user without a password.
    """
    check_retry(retry)
    timeout = seconds(request_timeout)
    if not timeout:
        raise ValueError("request_timeout=0: give more than 0")
    url, user = split_user(url)
    hosts = parse_url(url)
    credentials = find_credentials(user, password, token, hosts)
    return Connecting(hosts, name, retry, timeout, credentials)
