"""The device client against a small broker in a thread that damages, refuses and cuts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from rigs.device_broker import DeviceBroker
from weir.device.client import Client
from weir.errors import (
    BadChecksum,
    BadRequest,
    Disconnected,
    Overloaded,
    SequenceGap,
    SequenceReused,
    Unauthorized,
    UnknownTopic,
)
from weir.model.columns import NO_SEQUENCE
from weir.model.limits import DEVICE_WINDOW
from weir.protocol import device as wire
from weir.protocol.device import (
    DeviceHello,
    DevicePing,
    DevicePublishes,
    DeviceRefused,
    DeviceStream,
)


class FakeBroker(DeviceBroker):
    """One thread; takes connections one after the other, dedupes by (hub, boot, sn)."""

    def __init__(self) -> None:
        self.values: list[tuple[int, int, bytes]] = []  # hub, sn, value
        self.hellos: list[DeviceHello] = []
        self.script: Callable[[int, bytes], int | str] = lambda _, __: 0
        self.hello_code = 0
        self._next: dict[tuple[int, int, int], list[int]] = {}
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        stream = DeviceStream()
        hello: DeviceHello | None = None
        for data in self.pieces(connection):
            for request in stream.receive(data):
                if isinstance(request, DeviceHello):
                    hello = request
                    self.hellos.append(request)
                    connection.sendall(wire.encode_welcome(request.sn, self.hello_code, 77))
                elif isinstance(request, DevicePing):
                    connection.sendall(wire.encode_code(4, request.sn, 0))
                elif isinstance(request, DeviceRefused):
                    connection.sendall(wire.encode_code(request.opcode, request.sn, request.code))
                else:
                    assert hello is not None
                    if not self._publishes(request, hello, connection):
                        return

    def _publishes(
        self, request: DevicePublishes, hello: DeviceHello, connection: socket.socket
    ) -> bool:
        rows = zip(request.sns, request.sequences, request.values, request.codes, strict=True)
        for sn, sequence, value, code in rows:
            order = code or self.script(sequence, value)
            if order == "cut":
                return False
            offset = 0
            if order in (0, "cut after"):
                order, offset = self._land(hello, sn, sequence, value), len(self.values) - 1
                if order == 0 and sequence != NO_SEQUENCE:
                    offset = self._next[hello.hub, hello.boot, sn][sequence]
                if order == SequenceGap.code:
                    offset = len(self._next[hello.hub, hello.boot, sn])
                if self.script(sequence, value) == "cut after":
                    return False
            assert isinstance(order, int)
            connection.sendall(wire.encode_confirms([sn], [sequence], [order], [offset]))
        return True

    def _land(self, hello: DeviceHello, sn: int, sequence: int, value: bytes) -> int:
        offsets = self._next.setdefault((hello.hub, hello.boot, sn), [])
        if sequence != NO_SEQUENCE:
            if sequence > len(offsets):
                return SequenceGap.code
            if sequence < len(offsets):
                return 0
            offsets.append(len(self.values))
        self.values.append((hello.hub, sn, value))
        return 0


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    yield broker
    broker.end()


def client(broker: FakeBroker, boot: int = 1, timeout: float = 5.0) -> Client:
    return Client("127.0.0.1", broker.port, hub=5, boot=boot, topic="doors", timeout=timeout)


def test_hello_names_hub_boot_topic_and_partition(broker: FakeBroker) -> None:
    with client(broker) as device:
        device.ping()
    with Client("127.0.0.1", broker.port, 6, 2, "doors", partition=3) as device:
        device.ping()
    assert broker.hellos == [
        DeviceHello(0, 5, 1, wire.BY_HUB, "doors"),
        DeviceHello(0, 6, 2, 3, "doors"),
    ]


def test_publish_with_and_without_a_sequence(broker: FakeBroker) -> None:
    with client(broker) as device:
        assert device.publish(b"a", sn=9).offset == 0
        assert device.publish_sequenced(b"b", sn=9).sequence == 0
        confirm = device.publish_sequenced(b"c", sn=9)
        assert (confirm.sn, confirm.sequence, confirm.offset) == (9, 1, 2)
        assert device.publish_sequenced(b"d", sn=8).sequence == 0
    assert broker.values == [(5, 9, b"a"), (5, 9, b"b"), (5, 9, b"c"), (5, 8, b"d")]


def test_damaged_frames_are_sent_again(broker: FakeBroker) -> None:
    orders = [BadChecksum.code, BadChecksum.code]
    broker.script = lambda _, __: orders.pop() if orders else 0
    with client(broker) as device:
        assert device.publish(b"a").code == 0
        orders[:] = [BadChecksum.code]
        assert device.publish_sequenced(b"b").code == 0
    assert [value for _, _, value in broker.values] == [b"a", b"b"]


@pytest.mark.parametrize("cut", ["cut", "cut after"])
def test_many_values_land_once_and_in_order_over_cuts_and_damage(
    broker: FakeBroker, cut: str
) -> None:
    values = [b"%d" % i for i in range(300)]
    orders: dict[bytes, int | str] = {b"3": cut, b"50": BadChecksum.code, b"120": cut, b"299": cut}
    seen: dict[bytes, int] = {}

    def script(_: int, value: bytes) -> int | str:
        seen[value] = seen.get(value, 0) + 1
        # "cut after" is asked for twice: before and after the value has landed.
        return orders.get(value, 0) if seen[value] <= (2 if cut == "cut after" else 1) else 0

    broker.script = script
    with client(broker) as device:
        confirms = device.send_many(values, sn=2, window=16)
        assert [confirm.offset for confirm in confirms] == [*range(300)]
        assert [confirm.sequence for confirm in device.send_many([b"x"], sn=2)] == [300]
    assert [value for _, _, value in broker.values] == [*values, b"x"]
    assert len(broker.hellos) == 4


def test_no_more_is_under_way_than_the_broker_can_tell_apart(broker: FakeBroker) -> None:
    """A repeat of an older one would be refused for good."""
    for window in (1_000, DEVICE_WINDOW):
        broker.script = lambda sequence, _: (
            SequenceReused.code if sequence >= DEVICE_WINDOW else BadChecksum.code
        )
        with client(broker, timeout=0.8) as device, pytest.raises(Disconnected):
            device.send_many([b"v"] * 100, window=window)
    assert broker.values == []


def test_a_timeout_says_what_the_broker_refused_with(broker: FakeBroker) -> None:
    broker.script = lambda _, __: Overloaded.code
    with client(broker, timeout=0.8) as device:
        for call in (device.publish, device.publish_sequenced):
            with pytest.raises(Disconnected) as refused:
                call(b"v")
            assert f"with code {Overloaded.code} (Overloaded)" in str(refused.value)
            assert "see what the broker logs" in str(refused.value)
            assert "check that a broker runs" not in str(refused.value)
            assert str(refused.value).count("nothing confirmed") == 1
    broker.end()
    with pytest.raises(Disconnected) as refused:
        client(broker, timeout=0.8)
    assert "check that a broker runs there" in str(refused.value)
    assert str(refused.value).count("nothing confirmed") == 1


def test_the_sequences_of_a_boot_come_to_an_end(broker: FakeBroker) -> None:
    with client(broker) as device:
        device._next[3] = 0xFFFFFFFE
        with pytest.raises(BadRequest, match="higher boot"):
            device.send_many([b"last", b"one too many"], sn=3)
        broker.script = lambda sequence, _: Unauthorized.code if sequence == 0xFFFFFFFE else 0
        with pytest.raises(Unauthorized):
            device.publish_sequenced(b"last", sn=3)
    assert broker.values == []


def test_a_new_boot_begins_new_sequences(broker: FakeBroker) -> None:
    for boot in (1, 2):
        with client(broker, boot) as device:
            assert device.publish_sequenced(b"%d" % boot).sequence == 0
    assert [value for _, _, value in broker.values] == [b"1", b"2"]


def test_refusals_are_raised(broker: FakeBroker) -> None:
    with client(broker) as device:
        broker.script = lambda _, __: Unauthorized.code
        with pytest.raises(Unauthorized):
            device.publish(b"a")
        with pytest.raises(Unauthorized):
            device.publish_sequenced(b"b")
        with pytest.raises(BadRequest):
            device.send_many([bytes(65_536)])
        broker.script = lambda _, __: 0
        # What was refused was raised, so it is not sent behind the caller's back.
        assert device.publish_sequenced(b"c").sequence == 0
    assert [value for _, _, value in broker.values] == [b"c"]
    broker.hello_code = UnknownTopic.code
    with pytest.raises(UnknownTopic):
        client(broker)


def test_everything_ends_in_time(broker: FakeBroker) -> None:
    with client(broker, timeout=0.8) as device:
        broker.script = lambda _, __: "cut"
        with pytest.raises(Disconnected):
            device.publish(b"maybe")
        with pytest.raises(Disconnected, match="nothing confirmed"):
            device.send_many([b"a", b"b"])
        broker.script = lambda _, __: 0
        assert device.publish_sequenced(b"c").sequence == 2
    assert [value for _, _, value in broker.values] == [b"a", b"b", b"c"]
    broker.end()
    with pytest.raises(Disconnected, match="check that a broker runs there"):
        client(broker, timeout=0.2)
