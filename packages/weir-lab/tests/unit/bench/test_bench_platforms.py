"""The dormitory experiment's parts that need no database: who may be compared, what held it up."""

from __future__ import annotations

import asyncio
import os

import pytest

from weir.errors import Reject
from weir_lab.bench.comparison.compare import Comparison, Settings, unit_of
from weir_lab.bench.comparison.round import Round, Row
from weir_lab.bench.consumers.dormitory.breakfast import held_back
from weir_lab.bench.consumers.dormitory.consuming import Subscriber
from weir_lab.bench.consumers.dormitory.ledger import number_of
from weir_lab.bench.consumers.dormitory.serving import Door, Keeping
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.sides.devices import VALUE_BYTES, maker


class Ledger:
    """Keeps records in memory, and has no room for that of lock 13."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    async def keep_value(self, value: bytes) -> None:
        if number_of(value) == 13:
            raise ConnectionError("no room")
        self.kept.append(number_of(value))


class Wire(asyncio.Transport):
    """What was written to a connection."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data


def record(number: int) -> bytes:
    (value,) = Block(VALUE_BYTES, 1).values_of(number, 0, 1)
    return value


async def all_kept(keeping: Keeping) -> None:
    while keeping.under_way:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(["redis"], "dormitory"),
        Settings(["direct", "nats"], "dormitory"),
        Settings(["direct"], "dormitory", replicas=3),
    ],
)
def test_only_these_are_compared_and_on_one_node(settings: Settings) -> None:
    with pytest.raises(ValueError, match="its peers are direct, activemq, each on one node"):
        settings.check()


def test_there_is_no_direct_way_to_do_without_a_broker_in_other_shapes() -> None:
    with pytest.raises(ValueError, match="no peer 'direct'"):
        Settings(["direct"], "burst").check()


def test_a_record_names_its_lock_unless_it_was_changed() -> None:
    assert number_of(record(7_999)) == 7_999
    with pytest.raises(Reject):
        number_of(record(7)[:-1] + b"?")
    with pytest.raises(Reject):
        number_of(record(7)[:-1])


def test_a_server_answers_each_record_that_is_kept_however_it_comes() -> None:
    async def run() -> None:
        ledger, wire = Ledger(), Wire()
        keeping = Keeping(ledger)
        door = Door(keeping)
        door.connection_made(wire)
        said = record(1) + record(13) + record(2)
        for at in range(0, len(said), 10):
            door.data_received(said[at : at + 10])
        await all_kept(keeping)
        assert sorted(ledger.kept) == [1, 2]
        assert keeping.result().problems == {"no room": 1}
        speaker, message = maker("direct", "unlocks")(1)
        assert message == record(1)
        speaker.receive(wire.written)
        assert speaker.confirmed == 2

    asyncio.run(run())


def test_a_consumer_acks_each_message_by_its_own_id_once_it_is_kept() -> None:
    async def run() -> None:
        ledger, wire = Ledger(), Wire()
        keeping = Keeping(ledger)
        subscriber = Subscriber(keeping)
        subscriber.connection_made(wire)
        subscriber.data_received(b"CONNECTED\nversion:1.1\n\n\0")
        assert b"ack:client-individual\n" in wire.written
        wire.written = b""
        heads = [b"MESSAGE\ndestination:/queue/unlocks\nmessage-id:ID%d\n\n" % n for n in (5, 13)]
        values = [record(5), record(13)]
        said = b"".join(h + v + b"\0\n" for h, v in zip(heads, values, strict=True))
        for at in range(0, len(said), 7):
            subscriber.data_received(said[at : at + 7])
        await all_kept(keeping)
        assert wire.written == b"ACK\nsubscription:1\nmessage-id:ID5\n\n\0"
        subscriber.data_received(b"ERROR\nmessage:gone\n\n\0")
        assert [*keeping.result().problems] == [
            "no room",
            "activemq refused: ERROR message:gone \0",
        ]
        assert not subscriber.ended.done()

    asyncio.run(run())


def test_what_a_peer_loses_is_a_finding_and_what_weir_loses_a_failure() -> None:
    def compared(own: bool, peer: bool, error: str | None = None) -> bool:
        rows = [
            Row("weir", "1", "", True, 8, 1.0, own, None, {}),
            Row("direct", "1", "", True, 8, 2.0, peer, error, {}),
        ]
        rounds = [Round(8, 1.0, 2.0, "direct", 2.0, "direct", rows)]
        return Comparison(unit_of("dormitory"), 2.0, 2.0, rounds).clean

    assert compared(True, False)
    assert not compared(False, True)
    assert not compared(True, False, "it did not start")


def test_what_was_used_up_is_said() -> None:
    cores = len(os.sched_getaffinity(0))
    assert held_back(1.0, 0.95, {"broker": 0.1}).startswith("client: the locks (")
    full = {"broker": 0.3 * cores, "back end": 0.6 * cores}
    assert f"all {cores} cores, most of all the back end" in held_back(1.0, 0.1, full)
    assert held_back(2.0, 0.1, {"broker": 0.1}).startswith("waiting for the disk")
