"""Devices that come at once, each with hello and publishes: served by partition, not one by one.

What is the same for all is looked at once. Whoever needs more than that is left to be served as any
other peer is, with the same outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.broker.api.identity import Identity
from weir.broker.forwarding.forwarder import Passing
from weir.broker.partition.topics import Topics
from weir.broker.runtime.admission import ANONYMOUS, Authorize
from weir.broker.runtime.outbox import Outbox
from weir.broker.runtime.session import Seat, Session
from weir.errors import Refused
from weir.model.ids import group_of, place_node
from weir.model.limits import BOOT_MAX
from weir.model.topic import Topic
from weir.order.clock import Time
from weir.protocol.device.codec import encode_welcome
from weir.protocol.device.deliveries import BY_HUB
from weir.protocol.trunk import Arrival


class Arriving:
    """Lets crowds of devices in, and takes what they publish."""

    __slots__ = ("_authorize", "_identity", "_outbox", "_passing", "_sessions", "_time", "_topics")

    def __init__(
        self, identity: Identity, sessions: dict[int, Session], topics: Topics, outbox: Outbox,
        authorize: Authorize, time: Time, passing: Passing,
    ) -> None:  # fmt: skip
        """Serve what `topics` knows, or pass it on; who is there is kept in `sessions`."""
        self._identity = identity
        self._sessions = sessions
        self._topics = topics
        self._outbox = outbox
        self._authorize = authorize
        self._time = time
        self._passing = passing

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
            group = group_of(topic.id, partition)
            if (crowd := groups.get(group)) is None:
                groups[group] = [one]
            else:
                crowd.append(one)
        for group, crowd in groups.items():
            if not self._served(group, crowd, principal, place):
                left += crowd
        return left

    def _topic(self, name: str, principal: str) -> Topic | None:
        try:
            topic = self._topics.named(name)
            self._authorize(principal, "publish", topic.full_name)
        except Refused:
            return None
        return topic

    def _served(self, group: int, crowd: list[Arrival], principal: str, place: int) -> bool:
        """Serve a crowd of one partition; False if nothing is done: it is not led here, or it is
        short of something, which is said to each by itself.
        """
        passing = self._passing
        sessions = self._begin(group, crowd, principal, place)
        publishes = [one.publishes for one in crowd]
        try:
            at = passing.routes.toward(group, place_node(place) != 0)
            if at != passing.shard:
                if not passing.crowd(crowd, principal or ANONYMOUS, at):
                    return False
                for (_, seat), published in zip(sessions, publishes, strict=True):
                    seat.in_flight = len(published.sns)
            else:
                led = self._topics.find(group)
                if led is None or not led.leads:
                    return False
                seats = [seat for _, seat in sessions]
                led.publish_devices([*zip(seats, publishes, strict=True)])
        except Refused:
            return False
        for session, _ in sessions:
            session.seated = at
            self._sessions[session.id] = session
        self._outbox.opened_all([one.session for one in crowd])
        if at == passing.shard:
            now_ms, system = self._time.monotonic_ms(), self._identity.system
            for one in crowd:
                welcome = encode_welcome(one.hello.sn, 0, system)
                self._outbox.welcome(one.session, welcome, now_ms)
        return True

    def _begin(
        self, group: int, crowd: list[Arrival], principal: str, place: int
    ) -> list[tuple[Session, Seat]]:
        now_ms = self._time.monotonic_ms()
        found: list[tuple[Session, Seat]] = []
        for one in crowd:
            hello, number = one.hello, one.session
            session = Session.opened(number, now_ms, principal, place)
            session.seat = seat = Seat(number, hello.hub, hello.boot, group)
            session.hub = hello.hub
            found.append((session, seat))
        return found
