"""Requests of the device dialect, each to where it belongs."""

from __future__ import annotations

from weir.broker.api.effects import Hangup
from weir.broker.api.identity import Identity
from weir.broker.devices.arrivals import Arriving
from weir.broker.devices.receivers import Receivers
from weir.broker.forwarding.trunks import Neighbours
from weir.broker.partition.topics import Topics
from weir.broker.runtime.admission import Authorize, Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.session import Session
from weir.errors import ErasedBoot, NoHello, Refused, UnknownTopic
from weir.model.ids import group_of
from weir.model.limits import BOOT_MAX
from weir.order.clock import Time
from weir.protocol.device.codec import (
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
from weir.protocol.device.deliveries import (
    BY_HUB,
    DeviceAck,
    DeviceExtend,
    DeviceNack,
    DevicePull,
    DeviceSubscribe,
)


class Devices:
    """Answers a device's frames; errors are numbers, and never cost it the connection."""

    __slots__ = ("_authorize", "_identity", "_neighbours", "_outbox", "_time", "_topics",
                 "receivers")  # fmt: skip

    def __init__(
        self,
        identity: Identity,
        topics: Topics,
        outbox: Outbox,
        authorize: Authorize,
        time: Time,
        neighbours: Neighbours,
        budget: Budget,
        in_hand: int,
    ) -> None:
        """Serve what `topics` knows; pass on to `neighbours` what is published to theirs. For
        `budget` and `in_hand` see `Receivers`.
        """
        self._neighbours = neighbours
        self._identity = identity
        self._topics = topics
        self._outbox = outbox
        self._authorize = authorize
        self._time = time
        self.receivers = Receivers(
            topics, outbox, authorize, time, neighbours.passing, budget, in_hand
        )

    def arriving(self, sessions: dict[int, Session]) -> Arriving:
        """Return who serves those that come at once, and keeps them in `sessions`."""
        return Arriving(
            self._identity, sessions, self._topics, self._outbox, self._authorize, self._time,
            self._neighbours.passing,
        )  # fmt: skip

    def handle(
        self, session: Session, request: DeviceRequest, final: bool = False, followed: bool = False
    ) -> bool:
        """Serve one frame, or the publishes of one read; a hello may be `followed` by such. See
        `Requests.handle` for the rest.
        """
        if isinstance(request, DeviceHello):
            return self._hello(session, request, final, followed)
        match request:
            case DevicePublishes():
                self._publish(session, request)
            case DevicePing(sn):
                code = NoHello.code if session.seat is None else 0
                self._outbox.send(session.id, encode_code(DeviceOpcode.PING, sn, code))
            case DeviceSubscribe():
                self.receivers.subscribe(session, request)
            case DevicePull():
                self.receivers.pull(session, request)
            case DeviceAck() | DeviceNack() | DeviceExtend():
                self.receivers.settle(session, request)
            case DeviceRefused(sn, opcode, code):
                self._outbox.send(session.id, encode_code(opcode, sn, code))
        return True

    def _hello(self, session: Session, request: DeviceHello, final: bool, followed: bool) -> bool:
        code = 0
        try:
            if request.boot > BOOT_MAX:
                raise ErasedBoot(f"boot {request.boot:#x} is what erased flash reads as")
            topic = self._topics.named(request.topic)
            self._authorize(session.principal, "publish", topic.full_name)
            partition = request.partition
            if partition == BY_HUB:
                partition = topic.partition_of_hub(request.hub)
            elif partition >= topic.partitions:
                raise UnknownTopic(f"topic {topic.full_name} has no partition {partition}")
            group = group_of(topic.id, partition)
            passing = self._neighbours.passing
            place = passing.routes.toward(group, session.foreign)
            session.sit(request.hub, request.boot, group)
            session.hub, session.seated = request.hub, place
            if place != passing.shard:
                passing.device(session, request)
                return True
        except UnknownTopic as error:
            if self._neighbours.may_be_news() and not final:
                return False
            code = self._neighbours.certain(error).code
        except Refused as error:
            code = error.code
        welcome = encode_welcome(request.sn, code, self._identity.system)
        # What another shard confirms must not overtake a refusal that waits.
        if followed and not code:
            self._outbox.welcome(session.id, welcome, self._time.monotonic_ms())
        else:
            self._outbox.send(session.id, welcome)
        return True

    def _publish(self, session: Session, publishes: DevicePublishes) -> None:
        seat = session.seat
        if seat is None:
            self._refuse(session, publishes, NoHello("say hello first"))
            return
        passing = self._neighbours.passing
        try:
            led = self._topics.find(seat.group) if session.seated == passing.shard else None
            if led is not None and led.leads:
                led.publish_devices(((seat, publishes),))
                return
            place = passing.routes.toward(seat.group, session.foreign)
            if place != session.seated:
                # Who leads now knows nothing of this device, and who led may still answer it.
                self._outbox.put(Hangup(session.id, "another node leads: connect again"))
                return
            if place != passing.shard:
                passing.device(session, publishes)
                return
            _, partition = self._topics.partition(seat.group)
            partition.publish_devices(((seat, publishes),))
        except Refused as error:
            self._refuse(session, publishes, error)

    def _refuse(self, session: Session, publishes: DevicePublishes, error: Refused) -> None:
        if session.seat is not None and session.seat.in_flight:
            # Their confirms come later, and a refusal must not overtake them.
            self._outbox.put(Hangup(session.id, str(error)))
            return
        codes = [code or error.code for code in publishes.codes]
        details = [max(error.detail, 0)] * len(codes)
        confirms = encode_confirms(publishes.sns, publishes.sequences, codes, details)
        self._outbox.send(session.id, confirms)
