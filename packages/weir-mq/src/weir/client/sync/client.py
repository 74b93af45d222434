"""`weir.sync`: the client without async. Same names, same parameters, same errors.

    from weir import sync

    with sync.connect() as w:
        w.publish("flights", b"UA1545 EWR IAH", key="EWR")
        for message in w.reader("flights", follow=False):
            print(message.value)

Each connection has one thread in the background, where the async client runs; a call waits for it.
Threads may share a connection and its producers, but each reader or consumer belongs to one thread
at a time. A connection does not outlive a fork: connect in the child. Callbacks run in the
background thread and must not call weir.

Most methods here are those of the async classes, wrapped by `waits`: signature, docstring and
type follow by themselves, and "await" in a docstring means "call".
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from weir.client import access as accesses
from weir.client import client as asynchronous
from weir.client import nodes, scattering, schemas, sinks
from weir.client.connection.system import SYSTEM, Background
from weir.client.core.delivered_batches import Delivered
from weir.client.producer import producer as producers
from weir.client.producer import receipts
from weir.client.producer.receipts import Receipt
from weir.client.reader import reader as readers
from weir.client.sync import (
    Twin,
    delivered_without_async,
    gives,
    in_loop,
    waits,
    without_async,
)
from weir.client.sync.consumer import Consumer, LeasedBatch, LeasedMessage
from weir.errors import WeirError
from weir.model.message import Message
from weir.protocol.client import messages as m

__all__ = [
    "Access",
    "Client",
    "Consumer",
    "LeasedBatch",
    "LeasedMessage",
    "PendingBatch",
    "PendingMessage",
    "Producer",
    "Reader",
    "Schemas",
    "Sink",
    "SinkWriter",
    "connect",
]

P = ParamSpec("P")
A = TypeVar("A")


class Scattering:
    """One scattering, to enter with `with`: leaving it sends it, an error in it does not."""

    def __init__(self, of: scattering.Scattering, background: Background) -> None:
        """Speak for `of`, which lives in the loop of `background`."""
        self._of = of
        self._background = background

    @property
    def receipts(self) -> list[Receipt]:
        """Where its messages are, in the order in which they were published."""
        return self._of.receipts

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
        """Add a message; all of them go to partitions of one topic."""
        self._of.publish(
            topic, value, key=key, tag=tag, time=time, headers=headers, partition=partition
        )

    def ack(self, what: LeasedMessage | LeasedBatch) -> None:
        """Add that a message, or a batch, of a consumer is done."""
        self._of.add_ack(*what.lease_of())

    def send(self) -> list[Receipt]:
        """Send it; leaving `with` does."""
        return self._background.run(self._of.send())

    def __enter__(self) -> Scattering:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.send()


class PendingMessage(Twin[receipts.PendingMessage]):
    """A message that was sent: `wait` for its `Receipt`, or its error."""

    wait = waits(receipts.PendingMessage.wait)


class PendingBatch(Twin[receipts.PendingBatch]):
    """A batch that was sent: `wait` for its `BatchReceipt`, or its error."""

    wait = waits(receipts.PendingBatch.wait)

    @property
    def done(self) -> bool:
        """Whether it is confirmed or given up."""
        return self._of.done

    @property
    def topic(self) -> str:
        """The topic it goes to."""
        return self._of.topic

    @property
    def partition(self) -> int:
        """The partition it goes to."""
        return self._of.partition

    @property
    def count(self) -> int:
        """How many messages are in it."""
        return self._of.count

    @property
    def size(self) -> int:
        """About how many bytes are in it."""
        return self._of.size


def _batches(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, list[receipts.PendingBatch]]],
) -> Callable[Concatenate[Any, P], list[PendingBatch]]:
    """Return the twin of a method that sends batches."""

    @wraps(method)
    def call(self: Twin[A], /, *arguments: P.args, **named: P.kwargs) -> list[PendingBatch]:
        batches = self._background.run(method(self._of, *arguments, **named))
        return [PendingBatch(batch, self._background) for batch in batches]

    return call


class Producer(Twin[producers.Producer]):
    """Sends to one topic under a producer id of its own. `with` opens, flushes and closes."""

    publish = waits(producers.Producer.publish)
    publish_from = waits(producers.Producer.publish_from)
    publish_arrow = waits(producers.Producer.publish_arrow)
    ready = waits(producers.Producer.ready)
    flush = waits(producers.Producer.flush)
    send = in_loop(producers.Producer.send, PendingMessage)
    send_many = _batches(producers.Producer.send_many)
    close = waits(producers.Producer.close)

    @property
    def topic(self) -> str:
        """The topic it sends to."""
        return self._of.topic

    @property
    def buffered(self) -> int:
        """Bytes gathered or sent, and not confirmed."""
        return self._of.buffered

    @property
    def error(self) -> WeirError | None:
        """The error that ended one of its partitions for good; then open another producer."""
        return self._of.error

    def open(self) -> Producer:
        """Ask where the partitions are and for a producer id. Raises `UnknownTopic`."""
        self._background.run(self._of.open())
        return self

    def __enter__(self) -> Producer:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._background.run(self._of.__aexit__(kind, error, None))


class Reader(Twin[readers.Reader]):
    """Iterate it for messages, or `batches()` for batches, each partition in offset order."""

    close = waits(readers.Reader.close)
    more = waits(readers.Reader.more)

    @property
    def topic(self) -> str:
        """The topic it reads."""
        return self._of.topic

    @property
    def positions(self) -> dict[int, int]:
        """{partition: offset behind what was handed out}: given as `start`, it continues there."""
        return self._of.positions

    def checkpoint(self) -> dict[int, tuple[int, int]]:
        """Return `positions` with lineages, to be kept and given back as `start`."""
        return self._of.checkpoint()

    @property
    def committed(self) -> dict[int, int]:
        """By partition, the offset behind the last committed message, as of the last fetch."""
        return self._of.committed

    @property
    def order(self) -> str:
        """The order: of each "partition", or "total" of all together; "" until it is open."""
        return self._of.order

    @property
    def late(self) -> int:
        """How many messages came too late for an order of best effort, and were left out."""
        return self._of.late

    def open(self) -> Reader:
        """Fill `positions`, and begin to fetch. Raises `UnknownTopic`."""
        self._background.run(self._of.open())
        return self

    def at_hand(self) -> Message | None:
        """Return the next message if it is here already, without waiting; None: call `more`."""
        message = self._of.at_hand()
        return None if message is None else without_async(message, self._background)

    def batches(self) -> Iterator[Delivered]:
        """Yield checked batches; `skip` of the first one may be above 0."""
        for delivered in self._background.iterate(self._of.batches()):
            yield delivered_without_async(delivered, self._background)

    def __iter__(self) -> Reader:
        return self

    def __next__(self) -> Message:
        # Only `more` crosses threads, once a batch; and Ctrl-C in it loses no message.
        while (message := self.at_hand()) is None:
            if not self.more():
                raise StopIteration
        return message

    def __enter__(self) -> Reader:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


class SinkWriter(Twin[sinks.SinkWriter]):
    """Stages rows of one batch of a query's result."""

    write = waits(sinks.SinkWriter.write)
    finish = waits(sinks.SinkWriter.finish)


class Sink(Twin[sinks.Sink]):
    """Publishes the batches of one query's result, each of them once."""

    writer = gives(sinks.Sink.writer, SinkWriter)
    publish = waits(sinks.Sink.publish)

    @property
    def query(self) -> str:
        """The name of the query."""
        return self._of.query


class Schemas(Twin[schemas.Schemas]):
    """The schemas of a system's topics."""

    add = waits(schemas.Schemas.add)
    get = waits(schemas.Schemas.get)
    versions = waits(schemas.Schemas.versions)
    set_rule = waits(schemas.Schemas.set_rule)


class Access(Twin[accesses.Access]):
    """Administers users, roles and rights of a system."""

    describe = waits(accesses.Access.describe)
    create_user = waits(accesses.Access.create_user)
    set_password = waits(accesses.Access.set_password)
    change_roles = waits(accesses.Access.change_roles)
    revoke_user = waits(accesses.Access.revoke_user)
    change_rules = waits(accesses.Access.change_rules)
    delete_role = waits(accesses.Access.delete_role)
    create_token_key = waits(accesses.Access.create_token_key)
    trust_issuer = waits(accesses.Access.trust_issuer)
    remove_token_key = waits(accesses.Access.remove_token_key)
    token_keys = waits(accesses.Access.token_keys)
    opens_token_keys = waits(accesses.Access.opens_token_keys)
    issue_token = waits(accesses.Access.issue_token)
    set_mode = waits(accesses.Access.set_mode)
    explain = waits(accesses.Access.explain)
    refusals = waits(accesses.Access.refusals)
    rewrap = waits(accesses.Access.rewrap)
    secrets_left = waits(accesses.Access.secrets_left)


class Fleets(Twin[accesses.Fleets]):
    """The fleets of a system's devices."""

    put = waits(accesses.Fleets.put)
    remove = waits(accesses.Fleets.remove)
    drop_key = waits(accesses.Fleets.drop_key)
    list = waits(accesses.Fleets.list)
    opens_keys = waits(accesses.Fleets.opens_keys)
    device = waits(accesses.Fleets.device)
    replace_device = waits(accesses.Fleets.replace_device)
    end_devices_before = waits(accesses.Fleets.end_devices_before)
    revoke_device = waits(accesses.Fleets.revoke_device)


class Quotas(Twin[accesses.Quotas]):
    """How much namespaces and principals of a system may use."""

    set = waits(accesses.Quotas.set)
    remove = waits(accesses.Quotas.remove)
    list = waits(accesses.Quotas.list)
    describe = waits(accesses.Quotas.describe)


class SystemTopology(Twin[nodes.SystemTopology]):
    """The topology of the system that a client is connected to."""

    describe = waits(nodes.SystemTopology.describe)
    apply = waits(nodes.SystemTopology.apply)
    describe_relay = waits(nodes.SystemTopology.describe_relay)
    describe_copies = waits(nodes.SystemTopology.describe_copies)
    plan_promotion = waits(nodes.SystemTopology.plan_promotion)
    promote = waits(nodes.SystemTopology.promote)


class Client(Twin[asynchronous.Client]):
    """A connection to a system of brokers: get one from `connect`, end it with `with`."""

    publish = waits(asynchronous.Client.publish)
    create_topic = waits(asynchronous.Client.create_topic)
    restore_topic = waits(asynchronous.Client.restore_topic)
    alter_topic = waits(asynchronous.Client.alter_topic)
    end_partition = waits(asynchronous.Client.end_partition)
    delete_topic = waits(asynchronous.Client.delete_topic)
    topics = waits(asynchronous.Client.topics)
    held = waits(asynchronous.Client.held)
    parts = waits(asynchronous.Client.parts)
    topic_stats = waits(asynchronous.Client.topic_stats)
    trace = waits(asynchronous.Client.trace)
    clusters = waits(asynchronous.Client.clusters)
    seek_cluster = waits(asynchronous.Client.seek_cluster)
    pause_cluster = waits(asynchronous.Client.pause_cluster)
    resume_cluster = waits(asynchronous.Client.resume_cluster)
    delete_cluster = waits(asynchronous.Client.delete_cluster)
    hubs = waits(asynchronous.Client.hubs)
    forget_hub = waits(asynchronous.Client.forget_hub)
    describe = waits(asynchronous.Client.describe)
    positions = waits(asynchronous.Client.positions)
    resolve_cut = waits(asynchronous.Client.resolve_cut)
    ping = waits(asynchronous.Client.ping)
    producer = gives(asynchronous.Client.producer, Producer)
    reader = gives(asynchronous.Client.reader, Reader)
    consumer = gives(asynchronous.Client.consumer, Consumer)
    scatter = gives(asynchronous.Client.scatter, Scattering)
    sink = gives(asynchronous.Client.sink, Sink)
    sinks = waits(asynchronous.Client.sinks)
    forget_sink = waits(asynchronous.Client.forget_sink)

    @property
    def welcome(self) -> m.Welcome:
        """The node that answered last, and its limits."""
        return self._of.welcome

    @property
    def access(self) -> Access:
        """Access control: users, roles and the mode of the set, for administrators."""
        return Access(self._of.access, self._background)

    @property
    def schemas(self) -> Schemas:
        """The schemas of topics: add versions, and look them up."""
        return Schemas(self._of.schemas, self._background)

    @property
    def quotas(self) -> Quotas:
        """How much namespaces and principals may use, for administrators."""
        return Quotas(self._of.quotas, self._background)

    @property
    def topology(self) -> SystemTopology:
        """The BrokerSets of the system and their tiers, for administrators."""
        return SystemTopology(self._of.topology, self._background)

    @property
    def fleets(self) -> Fleets:
        """The fleets of devices: hubs that must prove their identity, and those that may
        connect.
        """
        return Fleets(self._of.fleets, self._background)

    def close(self) -> None:
        """Flush the publishes under way, then end the connection and all that runs over it."""
        self._background.stop(self._of.close)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._background.running:
            warnings.warn(
                "a connection of weir.sync was not closed: enter it with `with`, or call close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


def connected(connecting: asynchronous.Connecting) -> Client:
    """Return the twin of a client on its way, once it is connected. Raises what that does."""
    background = SYSTEM.get().background("weir-sync")
    try:
        return Client(background.run(_awaited(connecting)), background)
    except BaseException:
        background.stop()
        raise


def _twin(connect: Callable[P, asynchronous.Connecting]) -> Callable[P, Client]:
    @wraps(connect)
    def call(*arguments: P.args, **named: P.kwargs) -> Client:
        return connected(connect(*arguments, **named))  # a wrong URL needs no thread

    return call


async def _awaited(connecting: asynchronous.Connecting) -> asynchronous.Client:
    return await connecting


#: Connect and return a `Client`: `with connect() as w`, or call its `close` in the end.
connect = _twin(asynchronous.connect)
