"""Publishes to the audit topic: where the registry is led the changes, and at each shard what it
has seen of logins, denials and first uses.

Changes lie in the registry's state until the topic has them (`metadata.audit`). They go one by one,
each a batch of its own, under the sequence that the state gives it. A leader that takes over sends
again what it does not know to be there: the partition has seen that sequence, and answers as it did
the first time. What a shard has seen goes under the producer id of that shard, once a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from weir.broker.audit.buffer import AuditBuffer, Seen
from weir.broker.forwarding.forwarder import Forwarder
from weir.broker.metadata.audit import AuditTrail
from weir.broker.metadata.catalog import Catalog
from weir.broker.metadata.registry import Registry
from weir.broker.partition.partition import DeviceProducer
from weir.broker.partition.topics import Topics, open_batch, publish
from weir.broker.records.audit import AuditPublished, encode_event
from weir.broker.runtime.outbox import TO_SHARD, Caller, Outbox
from weir.errors import ProducerExpired, Refused, Unavailable
from weir.model.batch_builder import encode
from weir.model.ids import Address, group_of
from weir.order.clock import Time
from weir.protocol.client.codec import decode_reply
from weir.protocol.client.messages import Confirm, Produce, Refusal, Reply
from weir.protocol.frame import ClientFrame
from weir.protocol.trunk import OWN_SESSION

#: So many changes are on their way at once; far fewer than the partition remembers of a producer.
_CHANGES_AT_ONCE = 16
#: What was refused, or not answered, is sent again after so long.
_AGAIN_MS, _SILENT_MS = 250, 2_000
#: Changes wait once those before them have not been published for so long.
_STALLED_MS = 1_000
#: How often what was seen is published, and how much at once.
_EVENTS_EVERY_MS, _EVENTS_AT_ONCE = 1_000, 500
#: A shard says that it runs, so that silence means something, and its producer id does not expire.
_RUNS_EVERY_MS = 24 * 3600 * 1000
#: How long a shard that stops tries to publish what it has seen last; and, where it leads the
#: topic, takes what other shards of its node have, which stop at about the same time.
_LAST_MS, _LAST_OF_OTHERS_MS = 1_000, 250
_SILENT = "the leader of its partition does not answer"


class AuditTopic:
    """Sends batches to partition 0 of the audit topic, wherever that is led."""

    __slots__ = ("_forwarder", "_number", "_topics", "answers", "own_answers")

    def __init__(self, topics: Topics, forwarder: Forwarder, outbox: Outbox) -> None:
        """Nothing was sent yet."""
        self._topics = topics
        self._forwarder = forwarder
        self._number = 0
        #: What another shard, and this one, has answered that nobody has taken yet, by number.
        self.answers: deque[tuple[int, Reply]] = deque()
        self.own_answers = outbox.own
        forwarder.listen(self, Produce)

    @property
    def is_led_here(self) -> bool:
        """Whether this shard leads its partition, as far as it knows."""
        topic = self._topics.catalog.audit_topic
        if topic is None:
            return False
        return self._forwarder.routes.toward(group_of(topic.id, 0)) == self._forwarder.shard

    def send(self, values: Sequence[bytes], at_ms: int, producer: int, sequence: int) -> int:
        """Send messages as a batch, which is the same each time; return the number that its answer
        has. Raises `Refused`.
        """
        topic = self._topics.catalog.audit_topic
        if topic is None:
            raise Unavailable("it is not there yet")
        group = group_of(topic.id, 0)
        data = encode(
            values, group=group, producer=producer, sequence=sequence, base_time=at_ms * 1_000
        )
        request = Produce(Address(0, 0, group), 0, memoryview(data))
        place = self._forwarder.routes.toward(group)
        self._number += 1
        if place != self._forwarder.shard:
            self._forwarder.ask_own(place, request, self._number)
            return self._number
        _, partition = self._topics.partition(group)
        caller = Caller(OWN_SESSION, TO_SHARD, self._number)
        publish(partition, caller, request, open_batch(partition, caller, request))
        return self._number

    def answered(self, frame: ClientFrame) -> None:
        """Another shard answers."""
        self.answers.append((frame.correlation, decode_reply(frame)))

    def take_answers(self) -> list[tuple[int, Reply]]:
        """Return what was answered since the last call, by number."""
        found = [*self.own_answers, *self.answers]
        self.own_answers.clear()
        self.answers.clear()
        return found


class ChangePublisher:
    """Publishes the trail of changes, while the registry is led here."""

    __slots__ = ("_again_ms", "_asked", "_first", "_moved_ms", "_next", "_producer", "_published",
                 "_since_ms", "_step", "_step_ms", "_time", "_told", "_topic", "registry",
                 "why")  # fmt: skip

    def __init__(self, topic: AuditTopic, registry: Registry, time: Time) -> None:
        """Send what `registry` knows to `topic`."""
        self._topic = topic
        self.registry = registry
        self._time = time
        #: By number what was sent and is not answered: the sequence behind it.
        self._asked: dict[int, int] = {}
        #: The producer of what is sent, 0 while nothing is; what is sent next, what is known to be
        #: published, and how much of that an entry says.
        self._producer = self._next = self._published = self._told = 0
        #: The first of the trail, and since when it is.
        self._first = self._since_ms = 0
        #: When something was sent or answered last, and when to send again what was refused.
        self._moved_ms = self._again_ms = 0
        #: What was proposed last of what is missing, and when.
        self._step, self._step_ms = "", 0
        #: Why nothing was taken the last time; "": it was.
        self.why = ""

    @property
    def has_work(self) -> bool:
        """Whether `proceed` may find something to do, where the registry is led, and audited."""
        trail = self.registry.catalog.audit
        if self._missing != self._step:
            return True
        if not (len(trail) and trail.producer) or self._time.monotonic_ms() < self._again_ms:
            return False
        return self._producer != trail.producer or (
            self._next < trail.first + len(trail) and len(self._asked) < _CHANGES_AT_ONCE
        )

    @property
    def stalled_ms(self) -> int:
        """For how long the oldest change has waited, where the registry is led; 0 if none does."""
        if not (self.registry.ready and len(self.registry.catalog.audit)):
            return 0
        return self._time.monotonic_ms() - self._since_ms

    def proceed(self) -> None:
        """Let there be what is missing, and send what was not sent."""
        registry, now = self.registry, self._time.monotonic_ms()
        trail = registry.catalog.audit
        if not registry.ready:
            self._producer, self._since_ms = 0, now
            self._asked.clear()
            return
        self._supply(now)
        if not len(trail) or trail.first != self._first:
            self._first, self._since_ms = trail.first, now
        if not trail.producer or now < self._again_ms:
            return
        if self._producer != trail.producer:
            self._begin(trail)
        while self._next < trail.first + len(trail) and len(self._asked) < _CHANGES_AT_ONCE:
            at_ms, value = trail.get(self._next)
            self._moved_ms = now
            try:
                number = self._topic.send((value,), at_ms, trail.producer, self._next)
            except Refused as error:
                self._again_ms, self.why = now + _AGAIN_MS, str(error)
                return
            self._next += 1
            self._asked[number] = self._next

    def check_deadlines(self) -> None:
        """Send again what was not answered, and let changes wait or go on."""
        if self._asked and self._time.monotonic_ms() - self._moved_ms >= _SILENT_MS:
            self._send_again(_SILENT)
        self.proceed()
        self._tell()
        stalled = self.stalled_ms >= _STALLED_MS
        self.registry.administration.audit.closed_by = (self.why or _SILENT) if stalled else ""

    def answered(self, number: int, reply: Reply) -> None:
        """Take the answer to a change, if it is one."""
        behind = self._asked.pop(number, None)
        if behind is None:
            return
        self._moved_ms = self._time.monotonic_ms()
        if isinstance(reply, Confirm):
            self.why = ""
            self._published = max(self._published, behind)
            self._tell()
            return
        expired = self._producer
        self._send_again(reply.message if isinstance(reply, Refusal) else _SILENT)
        if isinstance(reply, Refusal) and reply.code == ProducerExpired.code:
            try:
                self.registry.open_audit(expired)
            except Refused as error:
                self.why = str(error)

    # -- steps -------------------------------------------------------------------------------

    @property
    def _missing(self) -> str:
        """What an audited set does not have yet, and needs; "" if it has all."""
        catalog = self.registry.catalog
        if catalog.audit_topic is None:
            return "the topic"
        return "its producer" if len(catalog.audit) and not catalog.audit.producer else ""

    def _supply(self, now: int) -> None:
        """Propose what is missing, now and then."""
        registry = self.registry
        if not registry.catalog.is_audited:
            return
        missing = self._missing
        if not missing or (missing == self._step and now - self._step_ms < _AGAIN_MS):
            self._step = missing
            return
        self._step, self._step_ms = missing, now
        try:
            if missing == "the topic":
                registry.create_audit_topic()
            else:
                registry.open_audit(0)
        except Refused as error:
            self.why = str(error)

    def _begin(self, trail: AuditTrail) -> None:
        """Send from the first one on."""
        self._asked.clear()
        self._producer = trail.producer
        self._next = self._published = self._told = trail.first

    def _send_again(self, why: str) -> None:
        """Send all that is not confirmed again, after a pause."""
        self.why, self._producer = why, 0
        self._asked.clear()
        self._again_ms = self._time.monotonic_ms() + _AGAIN_MS

    def _tell(self) -> None:
        """Let an entry say what the topic has: now and then, and once it has all that was sent."""
        producer, published = self._producer, self._published
        if not (self.registry.ready and producer == self.registry.catalog.audit.producer):
            return
        if published <= self._told or (self._asked and published - self._told < _CHANGES_AT_ONCE):
            return
        try:
            self.registry.propose(AuditPublished(producer, published))
        except Refused as error:
            self.why = str(error)  # it is said again with the next tick
        else:
            self._told = published


class EventPublisher:
    """Publishes what a shard has seen, a batch after the other."""

    __slots__ = ("_again_ms", "_asked", "_batch", "_batch_ms", "_catalog", "_events_ms",
                 "_moved_ms", "_own", "_principal", "_runs_ms", "_sequence", "_time", "_topic",
                 "buffer", "why")  # fmt: skip

    def __init__(
        self, topic: AuditTopic, buffer: AuditBuffer, catalog: Catalog, principal: str,
        own: DeviceProducer, time: Time,
    ) -> None:  # fmt: skip
        """Send what `buffer` has to `topic`, under the `own` producer id of the shard that is
        `principal`.
        """
        self.buffer = buffer
        self._topic = topic
        self._catalog = catalog
        self._principal = principal
        self._own = own
        self._time = time
        #: The sequence of the batch that is next, or under way; it stays as it is.
        self._sequence = 0
        self._batch: list[bytes] = []
        self._batch_ms = 0
        #: The number of the batch under way; 0: none is.
        self._asked = 0
        #: When it was sent, when to send it again, and when events were gathered last.
        self._moved_ms = self._again_ms = self._events_ms = 0
        self._runs_ms = -_RUNS_EVERY_MS
        #: Why nothing was taken the last time; "": it was.
        self.why = ""

    @property
    def is_published(self) -> bool:
        """Whether all that was seen is published, as far as it can be."""
        is_empty = not (self._batch or len(self.buffer))
        return is_empty or not (self._own.id and self._catalog.is_audited)

    def check_deadlines(self, is_last: bool = False) -> None:
        """Send what was seen since the last time, or again what is not confirmed. Once a second, or
        at once if `is_last`.
        """
        now = self._time.monotonic_ms()
        if self._asked and now - self._moved_ms >= _SILENT_MS:
            self._asked, self.why = 0, _SILENT
        if self._asked or not self._own.id or not self._catalog.is_audited or now < self._again_ms:
            return
        if not self._batch and (is_last or now - self._events_ms >= _EVENTS_EVERY_MS):
            self._gather(now)
        if not self._batch:
            return
        self._moved_ms = now
        try:
            self._asked = self._topic.send(
                self._batch, self._batch_ms, self._own.id, self._sequence
            )
        except Refused as error:
            self._again_ms, self.why = now + _AGAIN_MS, str(error)

    def answered(self, number: int, reply: Reply) -> None:
        """Take the answer to a batch of events, if it is one."""
        if number != self._asked:
            return
        self._asked = 0
        if isinstance(reply, Confirm):
            self.why = ""
            self._sequence += len(self._batch)
            self._batch = []
        else:
            self.why = reply.message if isinstance(reply, Refusal) else _SILENT
            self._again_ms = self._time.monotonic_ms() + _AGAIN_MS

    def _gather(self, now: int) -> None:
        self._events_ms, who = now, self._principal
        if now - self._runs_ms >= _RUNS_EVERY_MS:
            self._runs_ms = now
            version = self._catalog.access.version
            self.buffer.add(Seen(who, "", "run", "shard", who, "allowed", version))
        if len(self.buffer):
            source = f"{who}:{self._own.id}"
            events = self.buffer.take(_EVENTS_AT_ONCE, source, self._sequence)
            self._batch = [encode_event(event) for event in events]
            self._batch_ms = self._time.wall_ms()


class Auditor:
    """What a shard does for the audit topic."""

    __slots__ = ("_has_stopped", "_is_alone", "_stopped_ms", "_stops", "_time", "changes", "events",
                 "topic")  # fmt: skip

    def __init__(
        self, topic: AuditTopic, changes: ChangePublisher, events: EventPublisher, time: Time,
        is_alone: bool,
    ) -> None:  # fmt: skip
        """Hand the answers of `topic` to both; `is_alone` on a node that has no other shard."""
        self.topic = topic
        self._time = time
        self._is_alone = is_alone
        self._stopped_ms = 0
        self._stops = self._has_stopped = False
        self.changes = changes
        self.events = events

    def stop(self) -> None:
        """Publish what was seen last, until `has_stopped`."""
        self._stops, self._stopped_ms = True, self._time.monotonic_ms()
        self.events.check_deadlines(is_last=True)

    @property
    def has_stopped(self) -> bool:
        """Whether what was seen last is published, behind `stop`, or was tried for long enough."""
        if not self._has_stopped:
            since_ms = self._time.monotonic_ms() - self._stopped_ms
            waits_for_others = (
                not self._is_alone and since_ms < _LAST_OF_OTHERS_MS and self.topic.is_led_here
            )
            is_done = self.events.is_published and not waits_for_others
            self._has_stopped = is_done or since_ms >= _LAST_MS
        return self._has_stopped

    def proceed(self) -> None:
        """Take answers, and publish changes."""
        for number, reply in self.topic.take_answers():
            self.changes.answered(number, reply)
            self.events.answered(number, reply)
            if self._stops:
                self.events.check_deadlines(is_last=True)
        self.changes.proceed()

    def check_deadlines(self) -> None:
        """Go on with both."""
        self.changes.check_deadlines()
        self.events.check_deadlines(self._stops)
