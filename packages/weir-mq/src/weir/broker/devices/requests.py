"""Requests of the device dialect, each to where it belongs.

Devices that come at once, each with hello and publishes, are served by partition, not one by one.
What is the same for all is looked at once. A device that needs more than that is served like any
other peer, with the same outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weir.broker.access.authorizer import Authorizer
from weir.broker.api.effects import Hangup, SignFrames
from weir.broker.api.settings import Identity
from weir.broker.audit.buffer import Seen
from weir.broker.devices.proofs import Proofs
from weir.broker.devices.receivers import Receivers
from weir.broker.devices.replacements import Replacements
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.forwarding.trunks import ShardTrunks
from weir.broker.partition.topics import Topics, publish_devices
from weir.broker.runtime.budget import Budget
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.session import ANONYMOUS, DeviceSession, Session
from weir.errors import (
    ErasedBoot,
    NoHello,
    NotAuthenticated,
    Refused,
    Unavailable,
    UnknownTopic,
)
from weir.model.ids import group_of, place_node
from weir.model.limits import BOOT_MAX
from weir.model.topic import Topic
from weir.order.clock import Time
from weir.protocol.device import (
    BY_HUB,
    DeviceAck,
    DeviceExtend,
    DeviceHello,
    DeviceNack,
    DeviceOpcode,
    DevicePing,
    DevicePublishes,
    DevicePull,
    DeviceRefused,
    DeviceRequest,
    DeviceSubscribe,
    encode_challenge,
    encode_code,
    encode_confirms,
    encode_proven,
    encode_welcome,
)
from weir.protocol.proof import Challenge, DeviceProof, DeviceProven, Proven
from weir.protocol.trunk import Arrival

_NOT_TOLD = Unavailable("the registry could not be told of a new device: connect again")


class DeviceArrivals:
    """Admits devices that come together, and takes what they publish."""

    __slots__ = (
        "_authorizer", "_forwarder", "_identity", "_outbox", "_proofs", "_sessions", "_time",
        "_topics",
    )  # fmt: skip

    def __init__(
        self, identity: Identity, sessions: dict[int, Session], topics: Topics, outbox: Outbox,
        authorizer: Authorizer, time: Time, forwarder: Forwarder, proofs: Proofs,
    ) -> None:  # fmt: skip
        """Serve requests about `topics`, or forward them; `sessions` keeps the connected hubs."""
        self._proofs = proofs
        self._identity = identity
        self._sessions = sessions
        self._topics = topics
        self._outbox = outbox
        self._authorizer = authorizer
        self._time = time
        self._forwarder = forwarder

    def take(self, arrivals: Sequence[Arrival], principal: str, place: int) -> list[Arrival]:
        """Serve devices that came at once; return those for which nothing was done yet."""
        left: list[Arrival] = []
        topics: dict[str, Topic | None] = {}
        groups: dict[int, list[Arrival]] = {}
        for one in arrivals:
            hello = one.hello
            if hello.topic not in topics:
                topics[hello.topic] = self._topic(hello.topic, principal or ANONYMOUS)
            topic = topics[hello.topic]
            partition = hello.partition
            if topic is not None and partition == BY_HUB:
                partition = topic.partition_of_hub(hello.hub)
            if topic is None or partition >= topic.partitions or hello.boot > BOOT_MAX:
                left.append(one)
                continue
            if self._proofs.concerns(hello.hub):
                left.append(one)
                continue
            group = group_of(topic.id, partition)
            if (batch := groups.get(group)) is None:
                groups[group] = [one]
            else:
                batch.append(one)
        for group, batch in groups.items():
            if not self._served(group, batch, principal, place):
                left += batch
        return left

    def _topic(self, name: str, principal: str) -> Topic | None:
        try:
            topic = self._topics.named(name)
        except Refused:
            return None
        return topic if self._authorizer.may_publish(principal, topic) else None

    def _served(self, group: int, batch: list[Arrival], principal: str, place: int) -> bool:
        """Serve a batch of one partition; False if nothing is done: it is not led here, or it is
        short of something, which is said to each by itself.
        """
        forwarder = self._forwarder
        sessions = self._begin(group, batch, principal, place)
        publishes = [one.publishes for one in batch]
        try:
            at = forwarder.routes.toward(group, place_node(place) != 0)
            if at != forwarder.shard:
                if not forwarder.device_batch(batch, principal or ANONYMOUS, at):
                    return False
                for (_, device), published in zip(sessions, publishes, strict=True):
                    device.in_flight, device.awaits_welcome = len(published.sns), True
            else:
                led = self._topics.find(group)
                if led is None or not led.leads:
                    return False
                devices = [device for _, device in sessions]
                publish_devices(led, [*zip(devices, publishes, strict=True)])
        except Refused:
            return False
        for session, _ in sessions:
            session.device_place = at
            self._sessions[session.id] = session
        self._outbox.opened_all([one.session for one in batch])
        if at == forwarder.shard:
            now_ms, system = self._time.monotonic_ms(), self._identity.system
            for one in batch:
                welcome = encode_welcome(one.hello.sn, 0, system)
                self._outbox.welcome(one.session, welcome, now_ms)
        return True

    def _begin(
        self, group: int, batch: list[Arrival], principal: str, place: int
    ) -> list[tuple[Session, DeviceSession]]:
        now_ms = self._time.monotonic_ms()
        found: list[tuple[Session, DeviceSession]] = []
        for one in batch:
            hello, number = one.hello, one.session
            session = Session.opened(number, now_ms, principal, place)
            session.device = device = DeviceSession(number, hello.hub, hello.boot, group)
            session.hub = hello.hub
            found.append((session, device))
        return found


class ConnectionQuotas(Protocol):
    """How many connections there may be."""

    def check_connection(self, session: Session, principal: str, namespace: str = "", /) -> None:
        """Count a peer that comes in. Raises `QuotaExceeded` if it is one too many."""


class Devices:
    """Answers a device's frames; errors are numbers, and never cost it the connection."""

    __slots__ = (
        "_authorizer", "_connections", "_identity", "_outbox", "_proofs", "_time", "_topics",
        "_trunks", "receivers", "replacements",
    )  # fmt: skip

    def __init__(
        self,
        identity: Identity,
        topics: Topics,
        outbox: Outbox,
        authorizer: Authorizer,
        time: Time,
        trunks: ShardTrunks,
        budget: Budget,
        in_hand: int,
        proofs: Proofs,
        replacements: Replacements,
        connections: ConnectionQuotas,
    ) -> None:
        """Serve what `topics` knows; pass on to `trunks` what is published to theirs. Hubs of
        fleets are let in by `proofs`, and wait in `replacements` if they are the first of their
        generation; as many come in as `connections` say. For `budget` and `in_hand` see
        `Receivers`.
        """
        self._connections = connections
        self._proofs = proofs
        #: Sessions that wait until their device counts as used.
        self.replacements = replacements
        self._trunks = trunks
        self._identity = identity
        self._topics = topics
        self._outbox = outbox
        self._authorizer = authorizer
        self._time = time
        self.receivers = Receivers(
            topics, outbox, authorizer, time, trunks.forwarder, budget, in_hand
        )

    def arrivals(self, sessions: dict[int, Session]) -> DeviceArrivals:
        """Return who serves those that come at once, and keeps them in `sessions`."""
        return DeviceArrivals(
            self._identity, sessions, self._topics, self._outbox, self._authorizer, self._time,
            self._trunks.forwarder, self._proofs,
        )  # fmt: skip

    def may_stay(self, session: Session) -> bool:
        """Return whether a hub that was let in would be now."""
        return self._proofs.may_stay(session)

    def handle(
        self, session: Session, request: DeviceRequest, final: bool = False, followed: bool = False
    ) -> bool:
        """Serve one frame, or the publishes of one read; a hello may be `followed` by such. See
        `Requests.handle` for the rest.
        """
        if isinstance(request, DeviceHello):
            return self._hello(session, request, final, followed)
        if isinstance(request, DeviceProof):
            return self._prove(session, request, final)
        if isinstance(request, DeviceProven):
            return self._take_proven(session, request, final, followed=followed)
        match request:
            case DevicePublishes():
                self._publish(session, request)
            case DevicePing(sn):
                code = NoHello.code if session.device is None else 0
                self._outbox.send(session.id, encode_code(DeviceOpcode.PING, sn, code))
            case DeviceSubscribe():
                self.receivers.subscribe(session, request)
            case DevicePull():
                self.receivers.pull(session, request)
            case DeviceAck() | DeviceNack() | DeviceExtend():
                self.receivers.change_grant(session, request)
            case DeviceRefused(sn, opcode, code):
                self._outbox.send(session.id, encode_code(opcode, sn, code))
        return True

    def _hello(self, session: Session, request: DeviceHello, final: bool, followed: bool) -> bool:
        try:
            if self._proofs.certifies(session, request.hub):
                return self._take_certified(session, request, final, followed)
            begun = self._begin(session, request)
        except UnknownTopic as error:
            if self._trunks.may_be_news() and not final:
                return False
            self._welcome(session, request.sn, self._trunks.certain(error).code, followed)
        except Refused as error:
            if isinstance(error, NotAuthenticated) and session.certified_device is not None:
                self._refuse_certified(session, request.sn, error)
            else:
                self._welcome(session, request.sn, error.code, followed)
        else:
            if isinstance(begun, Challenge):
                self._outbox.send(session.id, encode_challenge(request.sn, begun))
            elif not begun:
                self._welcome(session, request.sn, 0, followed)
        return True

    def _begin(self, session: Session, request: DeviceHello) -> Challenge | bool:
        """Return what a hub of a fleet has to answer; take the hello of another one, and return
        whether it was passed on to a shard that answers. Raises as `_seat`, and `NotAuthenticated`.
        """
        if request.boot > BOOT_MAX:
            raise ErasedBoot(f"boot {request.boot:#x} is what erased flash reads as")
        if self._proofs.concerns(request.hub):
            if session.passed:
                raise NotAuthenticated("a hub of a fleet connected without a proof")
            return self._proofs.challenge(session, request)
        if session.proven is not None and not session.passed:
            session.principal = ANONYMOUS  # it was a hub of a fleet before
        if session.principal == ANONYMOUS and session.device is None and not session.passed:
            self._trunks.cutoff.check()  # the set may be closed by now
        is_passed_on = self._seat(session, request, request)
        session.proven = None
        return is_passed_on

    def _welcome(self, session: Session, sn: int, code: int, followed: bool) -> None:
        welcome = encode_welcome(sn, code, self._identity.system)
        # What another shard confirms must not overtake a refusal that waits.
        if followed and not code:
            self._outbox.welcome(session.id, welcome, self._time.monotonic_ms())
        else:
            self._outbox.send(session.id, welcome)

    def _take_certified(
        self, session: Session, hello: DeviceHello, final: bool, followed: bool
    ) -> bool:
        """Let a hub of a fleet in whose certificate this connection has shown."""
        assert session.certified_device is not None
        hub, generation = session.certified_device
        proven = DeviceProven(hello.sn, hello, generation, None)
        if (stale := self._trunks.cutoff.why_stale()) is not None:
            if self._trunks.may_be_news() and not final:
                return False
            self._refuse_proven(session, proven, self._trunks.certain(stale))
            return True  # the device may have been replaced or revoked
        if self.replacements.is_first(hub, generation):
            if session.has_waited:
                session.has_waited = False
                self._refuse_proven(session, proven, _NOT_TOLD)
                return True
            session.has_waited = True
            self.replacements.wait(session.id, hub, generation)
            return False
        return self._take_proven(session, proven, final, followed=followed)

    def _prove(self, session: Session, request: DeviceProof, final: bool) -> bool:
        if (stale := self._trunks.cutoff.why_stale()) is not None:
            if self._trunks.may_be_news() and not final:
                return False
            self._refuse_proof(session, request.sn, self._trunks.certain(stale))
            return True  # the device may have been replaced or revoked
        try:
            proven, signs = self._proofs.check(session, request)
        except NotAuthenticated as error:
            refused: Refused = error
            hello = session.asked[0] if session.asked is not None else None
            if hello is not None and self._proofs.is_ahead(hello.hub, request.generation):
                if self._trunks.may_be_news() and not final:
                    return False
                refused = self._trunks.certain(refused)
            self._refuse_proof(session, request.sn, refused)
            return True
        except Refused as error:
            self._refuse_proof(session, request.sn, error)
            return True
        hub, generation = proven.hello.hub, proven.generation
        if self.replacements.is_first(hub, generation):
            if session.has_waited:
                session.has_waited = False
                self._refuse_proof(session, request.sn, _NOT_TOLD)
                return True
            session.has_waited = True
            self.replacements.wait(session.id, hub, generation)
            return False
        is_served = self._take_proven(session, proven, final, signs=signs)
        session.proven_by = request.key_version, request.level
        return is_served

    def _take_proven(
        self, session: Session, request: DeviceProven, final: bool, *, followed: bool = False,
        signs: SignFrames | None = None,
    ) -> bool:  # fmt: skip
        """Let a hub in whose proof or certificate was checked, here or by the shard that passes
        this on.
        """
        hello = request.hello
        try:
            if not self._proofs.is_current(hello.hub, request.generation):
                refused = NotAuthenticated("this hub was replaced or revoked")
                if not self._proofs.is_ahead(hello.hub, request.generation):
                    raise refused
                if self._trunks.may_be_news() and not final:
                    return False
                raise self._trunks.certain(refused)
            is_passed_on = self._seat(session, hello, request)
        except UnknownTopic as error:
            if self._trunks.may_be_news() and not final:
                return False
            self._refuse_proven(session, request, self._trunks.certain(error))
            return True
        except Refused as error:
            self._refuse_proven(session, request, error)
            return True
        session.asked, session.proven = None, (hello.hub, request.generation)
        session.has_waited, session.proven_by = False, None
        if not session.passed:  # other shards that it asks are told by whose rights
            session.principal = self._authorizer.principal_of(session)
        if signs is not None:  # before the reply, wherever that comes from
            self._outbox.put(signs)
        if request.proof is None and not is_passed_on:
            self._welcome(session, request.sn, 0, followed)
        elif request.proof is not None and not is_passed_on:
            proven = Proven(self._identity.system, request.proof)
            self._outbox.send(session.id, encode_proven(request.sn, proven))
        return True

    def _refuse_proven(self, session: Session, request: DeviceProven, error: Refused) -> None:
        if request.proof is not None:
            self._refuse_proof(session, request.sn, error)
        elif isinstance(error, NotAuthenticated):
            self._refuse_certified(session, request.sn, error)
        else:
            self._welcome(session, request.sn, error.code, followed=False)

    def _refuse_proof(self, session: Session, sn: int, error: Refused) -> None:
        """Send the code of the refusal, and close: an attacker must connect for each guess."""
        session.asked = None
        self._outbox.send(session.id, encode_code(DeviceOpcode.PROVE, sn, error.code))
        failed = isinstance(error, NotAuthenticated)
        if failed:
            version = self._authorizer.access.version
            self._authorizer.audit.add(
                Seen(
                    session.principal, session.address, "prove", "device", str(session.hub),
                    "refused", version,
                )
            )  # fmt: skip
        self._outbox.put(Hangup(session.id, str(error), failed))

    def _refuse_certified(self, session: Session, sn: int, error: NotAuthenticated) -> None:
        """Say that nobody comes in by this certificate, as the host does of one that is revoked."""
        self._outbox.send(session.id, encode_welcome(sn, error.code, 0))
        self._outbox.put(Hangup(session.id, str(error), failed=True))

    def _seat(
        self, session: Session, request: DeviceHello, passed_on: DeviceHello | DeviceProven
    ) -> bool:
        """Take a hub's hello, or pass it on; True if another shard answers.

        Raises `UnknownTopic`, `Unauthorized`, `BadRequest`, `QuotaExceeded`, and what passing on
        raises.
        """
        if request.boot > BOOT_MAX:
            raise ErasedBoot(f"boot {request.boot:#x} is what erased flash reads as")
        topic = self._topics.named(request.topic)
        is_proven = isinstance(passed_on, DeviceProven)
        self._authorizer.check_hub(session, topic, request.hub, is_proven)
        partition = request.partition
        if partition == BY_HUB:
            partition = topic.partition_of_hub(request.hub)
        elif partition >= topic.partitions:
            raise UnknownTopic(f"topic {topic.full_name} has no partition {partition}")
        group = group_of(topic.id, partition)
        forwarder = self._trunks.forwarder
        place = forwarder.routes.toward(group, session.foreign)
        if not session.greeted:
            principal = self._authorizer.principal_of_hub(session, request.hub, is_proven)
            self._connections.check_connection(session, principal, topic.namespace)
        proved: tuple[int, str] | None = None
        if isinstance(passed_on, DeviceProven):
            proved = passed_on.generation, self._proofs.tag_of(request.hub)
        session.begin_device(request.hub, request.boot, group, proved)
        session.hub, session.device_place = request.hub, place
        if place != forwarder.shard:
            forwarder.device(session, passed_on)
            return True
        return False

    def _publish(self, session: Session, publishes: DevicePublishes) -> None:
        device = session.device
        if device is None:
            self.refuse(session, publishes, NoHello("say hello first"))
            return
        forwarder = self._trunks.forwarder
        try:
            led = (
                self._topics.find(device.group) if session.device_place == forwarder.shard else None
            )
            if led is not None and led.leads:
                publish_devices(led, ((device, publishes),))
                return
            place = forwarder.routes.toward(device.group, session.foreign)
            if place != session.device_place:
                # The new leader knows nothing of this device, and the old one may still answer it.
                self._outbox.put(Hangup(session.id, "another node leads: connect again"))
                return
            if place != forwarder.shard:
                forwarder.device(session, publishes)
                return
            _, partition = self._topics.partition(device.group)
            publish_devices(partition, ((device, publishes),))
        except Refused as error:
            self.refuse(session, publishes, error)

    def refuse(self, session: Session, publishes: DevicePublishes, error: Refused) -> None:
        """Answer publishes by the code of `error`."""
        device = session.device
        if device is not None and device.awaits_replies:
            self._outbox.put(Hangup(session.id, str(error)))
            return
        codes = [code or error.code for code in publishes.codes]
        details = [max(error.detail, 0)] * len(codes)
        confirms = encode_confirms(publishes.sns, publishes.sequences, codes, details)
        self._outbox.send(session.id, confirms)
