"""Requests of the client dialect, each to where it belongs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weir.broker.admission import Authorize
from weir.broker.identity import Identity
from weir.broker.outbox import Caller, Outbox
from weir.broker.partition import Partition
from weir.broker.registry import Registry
from weir.broker.sessions import Session
from weir.broker.topics import Topics
from weir.errors import Fenced, ProducerExpired, Refused, UnknownProducer, WrongSystem
from weir.model.header import Header
from weir.model.limits import BATCH_BYTES_MAX, PIPELINE_WINDOW
from weir.model.topic import split_name
from weir.wire import messages as m
from weir.wire.client import decode_request
from weir.wire.frame import ClientFrame


class Requests:
    """Answers a client's frames; a refusal never costs it the connection."""

    def __init__(
        self,
        identity: Identity,
        topics: Topics,
        registry: Registry,
        outbox: Outbox,
        authorize: Authorize,
    ) -> None:
        """Serve what `topics` and `registry` know."""
        self._identity = identity
        self._topics = topics
        self._registry = registry
        self._outbox = outbox
        self._authorize = authorize
        self._handlers: dict[type[Any], Callable[[Session, Caller, Any], None]] = {
            m.Hello: self._hello,
            m.Ping: self._ping,
            m.DescribeTopic: self._describe,
            m.ListTopics: self._list,
            m.CreateTopic: self._create,
            m.OpenProducer: self._open_producer,
            m.Positions: self._positions,
            m.Produce: self._produce,
            m.Fetch: self._fetch,
            m.Pull: self._pull,
            m.Ack: self._ack,
        }

    def handle(self, session: Session, frame: ClientFrame) -> None:
        """Serve one frame, or refuse it with a number."""
        caller = Caller(session.id, frame.opcode, frame.correlation)
        try:
            request = decode_request(frame)
            if not isinstance(request, m.Hello):
                session.check_welcomed()
            self._handlers[type(request)](session, caller, request)
        except Refused as error:
            self._outbox.refuse(caller, error)

    def _hello(self, session: Session, caller: Caller, request: m.Hello) -> None:
        me = self._identity
        if request.system not in (0, me.system):
            raise WrongSystem(f"this is system {me.system:x}, not {request.system:x}", me.system)
        session.welcomed = True
        welcome = m.Welcome(
            me.system, me.brokerset, me.node, me.shard, BATCH_BYTES_MAX, PIPELINE_WINDOW
        )
        self._outbox.reply(caller, welcome)

    def _ping(self, session: Session, caller: Caller, request: m.Ping) -> None:
        self._outbox.reply(caller, m.Pong())

    def _describe(self, session: Session, caller: Caller, request: m.DescribeTopic) -> None:
        topic = self._topics.named(request.name)
        self._authorize(session.principal, "describe", topic.full_name)
        self._outbox.reply(caller, self._registry.describe(topic))

    def _list(self, session: Session, caller: Caller, request: m.ListTopics) -> None:
        self._authorize(session.principal, "list", request.namespace)
        found = self._registry.catalog.topics(request.namespace)
        self._outbox.reply(caller, m.TopicList([self._registry.describe(t) for t in found]))

    def _create(self, session: Session, caller: Caller, request: m.CreateTopic) -> None:
        namespace, _ = split_name(request.name)
        self._authorize(session.principal, "create", namespace)
        self._registry.create(caller, request)

    def _open_producer(self, session: Session, caller: Caller, request: m.OpenProducer) -> None:
        self._registry.open_producer(caller, session.principal, request)

    def _positions(self, session: Session, caller: Caller, request: m.Positions) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "read", topic.full_name)
        self._outbox.reply(caller, partition.positions(request.stamp))

    def _produce(self, session: Session, caller: Caller, request: m.Produce) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "publish", topic.full_name)

        def own(header: Header) -> None:
            self._own(session, partition, header)

        partition.publish(caller, request, own)

    def _own(self, session: Session, partition: Partition, header: Header) -> None:
        """Raise unless the session's principal holds the producer id, in this very epoch."""
        producer, epoch = header.producer, header.epoch
        try:
            granted = self._registry.epoch_of(producer, session.principal)
        except ProducerExpired:
            known = partition.state.producers.known(producer)
            if known is None or known.epoch != epoch:
                raise
            return  # it was checked when it first wrote here, and has gone on since
        if epoch < granted:
            raise Fenced(f"producer {producer} goes on in epoch {granted}", granted)
        if epoch > granted:
            raise UnknownProducer(
                f"epoch {epoch} of producer {producer} was not granted: {granted} is the newest"
            )

    def _fetch(self, session: Session, caller: Caller, request: m.Fetch) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "read", topic.full_name)
        partition.fetch(caller, request)

    def _pull(self, session: Session, caller: Caller, request: m.Pull) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "consume", topic.full_name)
        partition.pull(caller, request)

    def _ack(self, session: Session, caller: Caller, request: m.Ack) -> None:
        topic, partition = self._topics.partition(request.address.group)
        self._authorize(session.principal, "consume", topic.full_name)
        partition.ack(caller, request)
