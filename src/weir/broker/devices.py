"""Requests of the device dialect, each to where it belongs."""

from __future__ import annotations

from weir.broker.admission import Authorize
from weir.broker.identity import Identity
from weir.broker.outbox import Outbox
from weir.broker.sessions import Session
from weir.broker.topics import Topics
from weir.codec.fields import U64
from weir.errors import NoHello, Refused, UnknownTopic
from weir.model.ids import group_of
from weir.model.topic import partition_for
from weir.wire.device import (
    BY_HUB,
    DeviceHello,
    DeviceOpcode,
    DevicePing,
    DevicePublishes,
    DeviceRefused,
    DeviceRequest,
    encode_code,
    encode_confirms,
    encode_welcome,
)


class Devices:
    """Answers a device's frames; errors are numbers, and never cost it the connection."""

    __slots__ = ("_authorize", "_identity", "_outbox", "_topics")

    def __init__(
        self, identity: Identity, topics: Topics, outbox: Outbox, authorize: Authorize
    ) -> None:
        """Serve what `topics` knows."""
        self._identity = identity
        self._topics = topics
        self._outbox = outbox
        self._authorize = authorize

    def handle(self, session: Session, request: DeviceRequest) -> None:
        """Serve one frame, or the publishes of one read."""
        match request:
            case DevicePublishes():
                self._publish(session, request)
            case DevicePing(sn):
                code = NoHello.code if session.seat is None else 0
                self._outbox.send(session.id, encode_code(DeviceOpcode.PING, sn, code))
            case DeviceHello():
                self._hello(session, request)
            case DeviceRefused(sn, opcode, code):
                self._outbox.send(session.id, encode_code(opcode, sn, code))

    def _hello(self, session: Session, request: DeviceHello) -> None:
        code = 0
        try:
            topic = self._topics.named(request.topic)
            self._authorize(session.principal, "publish", topic.full_name)
            partition = request.partition
            if partition == BY_HUB:
                partition = partition_for(U64.pack(request.hub), topic.partitions)
            elif partition >= topic.partitions:
                raise UnknownTopic(f"topic {topic.full_name} has no partition {partition}")
            session.sit(request.hub, request.boot, group_of(topic.id, partition))
        except Refused as error:
            code = error.code
        self._outbox.send(session.id, encode_welcome(request.sn, code, self._identity.system))

    def _publish(self, session: Session, publishes: DevicePublishes) -> None:
        seat = session.seat
        if seat is None:
            self._refuse(session, publishes, NoHello("say hello first"))
            return
        try:
            _, partition = self._topics.partition(seat.group)
            partition.publish_devices(seat, publishes)
        except Refused as error:
            self._refuse(session, publishes, error)

    def _refuse(self, session: Session, publishes: DevicePublishes, error: Refused) -> None:
        codes = [code or error.code for code in publishes.codes]
        details = [max(error.detail, 0)] * len(codes)
        confirms = encode_confirms(publishes.sns, publishes.sequences, codes, details)
        self._outbox.send(session.id, confirms)
