"""A simulated hub: several locks behind one connection in the device dialect."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from weir.errors import BY_CODE, BadChecksum, PartitionEnded, SequenceGap
from weir.model.columns import NO_SEQUENCE
from weir.protocol import device as d
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import MS
from weir_lab.sim.history import UNKNOWN, Confirmed, Operation, Publish
from weir_lab.sim.programs.program import TOPIC, Program
from weir_lab.sim.programs.scene import Scene

_NEXT = (0, 20 * MS)
_OFFSET_UNKNOWN = (1 << 64) - 1
_LOCKS = 3
_WINDOW = 4
_BAD_CHECK = 0.05
_RESEND = 0.1
_PLAIN = 0.1
_REBOOT = 0.03
#: How often what goes out is no frame at all: a broken radio.
_NOISE = 0.01
#: How often what is not confirmed goes out behind the hello, before there is an answer.
_AT_ONCE = 0.7


@dataclass(slots=True, eq=False)
class Value:
    """One message of a lock; it must go out again unless `under_way`."""

    publish: Publish
    sn: int
    operation: Operation
    under_way: bool = False

    @property
    def sequence(self) -> int:
        sequence = self.publish.sequence
        return NO_SEQUENCE if sequence is None else sequence


class Hub(Program):
    """Publishes with a sequence for each lock, sends again what is not confirmed, and reboots."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        hub: int,
        partition: int,
        messages: int,
    ) -> None:
        """Publish so many messages, then be finished."""
        super().__init__(scene, name)
        self._hub = hub
        self._partition = partition
        self._left = messages
        self._boot = 1
        self._serial = 0
        self._replies = d.DeviceReplies()
        self._welcome = False
        self._running = False
        self._next_sequence = [0] * _LOCKS
        self._held: list[list[Value]] = [[] for _ in range(_LOCKS)]
        self._last: list[Value | None] = [None] * _LOCKS
        #: Publishes without a sequence that wait for their replies, which come in order.
        self._plain: deque[Value] = deque()

    @property
    def finished(self) -> bool:
        """Whether all that was begun is confirmed."""
        return not any(self._held)

    @property
    def hub(self) -> int:
        """Its number."""
        return self._hub

    @property
    def epoch(self) -> int:
        """What its sequences are counted in."""
        return self._boot

    def opened(self) -> None:
        """Name the hub, its boot count, and where its messages go."""
        self._replies = d.DeviceReplies()
        self._greet()
        self.expect(lambda: not self._welcome)

    def closed(self) -> None:
        """What was under way may or may not have happened."""
        self._welcome = False
        for operation in (value.operation for value in self._plain):
            operation.ended = self.world.now
        self._plain.clear()
        for held in self._held:
            for value in held:
                value.under_way = False
        if not self.ending and self.world.chance(_REBOOT * 5):
            self._reboot()

    def received(self, link: Link, data: bytes) -> None:
        """Take replies."""
        if link is not self.link:
            return
        for reply in self._replies.receive(data):
            self.world.note(self.name, reply.opcode, reply.code)
            self.take(reply)

    def take(self, reply: d.DeviceReply) -> None:
        """Take one reply."""
        if reply.opcode == d.DeviceOpcode.HELLO:
            self._greeted(reply)
        elif reply.sequence != NO_SEQUENCE:
            self._answered(reply)
        elif reply.opcode == d.DeviceOpcode.PUBLISH:
            self._answered_plain(reply)

    def _greeted(self, reply: d.DeviceReply) -> None:
        if reply.code:  # the topic is not there yet
            for held in self._held:
                for value in held:
                    value.under_way = False
            self.soon(self._again, self.link)
            return
        self._welcome = True
        self._send_all()
        self._run()

    def _again(self, link: Link | None) -> None:
        if link is self.link and link is not None:
            self._greet()

    def _greet(self) -> None:
        self._send(d.hello(self._hub, self._boot, TOPIC, self._partition))
        if self.world.chance(_AT_ONCE):
            self._send_all()

    def _run(self) -> None:
        if not self._running:
            self._running = True
            self.world.after(self.rhythm(_NEXT), self._next)

    def _next(self) -> None:
        self._running = False
        if not self._welcome or self.ending or not self._left:
            return
        dice = self.world.dice
        sn = dice.randrange(_LOCKS)
        if self.world.chance(_PLAIN):
            self._publish_plain(sn)
        elif len(self._held[sn]) < _WINDOW:
            self._left -= 1
            self._held[sn].append(self._value(sn, self._next_sequence[sn]))
            self._next_sequence[sn] += 1
            self._send_all()
        if self.world.chance(_NOISE):
            self._send(b"\xee" * 12)
        last = self._last[sn]
        if last is not None and self.world.chance(_RESEND):
            self._transmit(last)
        if self.world.chance(_REBOOT) and self.link is not None:
            self._restart(self.link)
        self._run()

    def _restart(self, link: Link) -> None:
        """Reboot amid a connection, which is gone with all else: a confirm that comes late on it
        names no boot, and would be taken for that of a message of the next one.
        """
        link.cut(self)
        self.lost(link)
        self._reboot()

    def _reboot(self) -> None:
        """Forget everything but the boot count, as a hub without a battery does."""
        self._boot += 1
        self.forget()

    def forget(self) -> None:
        """Forget what is not confirmed: it may be there or not."""
        for held in self._held:
            for value in held:
                value.operation.ended = self.world.now
            held.clear()
        self._last = [None] * _LOCKS
        self._next_sequence = [0] * _LOCKS

    def _value(self, sn: int, sequence: int | None) -> Value:
        self._serial += 1
        value = f"{self.name}.{self._boot}.{self._serial}".encode()
        publish = Publish(
            self._partition,
            ("device", self._hub, sn, self.epoch),
            sequence,
            (value,),
            self.world.now,
        )
        self.history.publishes.append(publish)
        operation = self.history.begin(f"{self.name}: {sn}/{sequence}", self.world.now)
        return Value(publish, sn, operation)

    def _publish_plain(self, sn: int) -> None:
        value = self._value(sn, None)
        self._plain.append(value)
        self._transmit(value)

    def _send_all(self) -> None:
        for held in self._held:
            for value in held:
                if not value.under_way:
                    self._transmit(value, spoil=self.world.chance(_BAD_CHECK))

    def _transmit(self, value: Value, spoil: bool = False) -> None:
        value.under_way = True
        value.publish.sends += 1
        self.expect(lambda: value.under_way and not value.publish.confirms)
        data = d.publish(value.sn, value.publish.values[0], value.sequence)
        self._send(data[:-1] + bytes((data[-1] ^ 0x55,)) if spoil else data)

    def _send(self, data: bytes) -> None:
        if self.link is not None:
            self.link.to_host(data)

    def _answered(self, reply: d.DeviceReply) -> None:
        held = self._held[reply.sn]
        value = next((v for v in held if v.sequence == reply.sequence), None)
        last = self._last[reply.sn]
        if value is None and last is not None and last.sequence == reply.sequence:
            value = last
        if value is None:
            return  # of an older repeat
        if reply.code == 0:
            offset = UNKNOWN if reply.offset == _OFFSET_UNKNOWN else reply.offset
            value.publish.confirms.append(Confirmed(self.world.now, offset, 0))
            value.operation.ended = self.world.now
            if value in held:
                held.remove(value)
                self._last[reply.sn] = value
        elif value in held:
            self._refused(value, reply)

    def _refused(self, value: Value, reply: d.DeviceReply) -> None:
        if not self._welcome:  # it was sent behind a hello that was refused, too
            return
        kind = BY_CODE.get(reply.code)
        if kind is PartitionEnded:
            self._give_up(value)
            return
        if kind is None or not (kind.retryable or kind in (SequenceGap, BadChecksum)):
            text = f"{value.publish.producer} {value.sequence} was refused: {reply.code}"
            self.history.complaints.append(("OneOffset", f"{self.name}: {text}"))
            return
        for later in self._held[value.sn]:
            if later.sequence >= value.sequence:
                later.under_way = False
        self.soon(self._send_again, self.link)

    def _give_up(self, value: Value) -> None:
        """The partition has ended: it took nothing of a lock from this value on, and never will."""
        held = self._held[value.sn]
        first = held.index(value)
        for later in held[first:]:
            later.publish.ended = True
            later.operation.ended = self.world.now
        del held[first:]
        self._left = 0

    def _send_again(self, link: Link | None) -> None:
        if self._welcome and link is self.link:
            self._send_all()

    def _answered_plain(self, reply: d.DeviceReply) -> None:
        if not self._plain:
            self.history.complaints.append(("Honest", f"{self.name}: a reply to nothing"))
            return
        value = self._plain.popleft()
        value.operation.ended = self.world.now
        if reply.code == 0:
            value.publish.confirms.append(Confirmed(self.world.now, reply.offset, 0))
