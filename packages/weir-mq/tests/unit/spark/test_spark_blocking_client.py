"""One connection of a worker: what is sent ahead, what an older broker says, where leaders are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from weir.client.connection.system import SYSTEM
from weir.errors import Disconnected, RemoteProtocolError, UnknownOpcode, WrongSystem
from weir.model.ids import Address, group_of
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, decode_request, encode_reply
from weir.spark import blocking_client
from weir.spark.blocking_client import BlockingClient

HERE, THERE = Address(0, 0, group_of(1, 0), 1), Address(0, 1, group_of(1, 1), 2)
NODES = ((1, "one", 6800), (2, "two", 6801))
FETCHES = [m.Fetch(HERE, offset, 100, equal_stamps=True) for offset in range(3)]
Answer = Callable[[m.Request], m.Reply]


class Wire:
    """The socket of a broker that answers in turn, or whatever `answer` says."""

    def __init__(self, welcome: m.Welcome) -> None:
        self.greeting: m.Reply = welcome
        self.asked: list[m.Request] = []
        self.late: list[bytes] = []
        self.holds = False
        self.came = bytearray()
        self.closed = False
        self.answer: Answer = lambda request: m.Fetched(HERE, request.offset, 9, 9)  # type: ignore[attr-defined]

    def settimeout(self, value: float | None, /) -> None:
        pass

    def sendall(self, data: bytes, /) -> None:
        (frame,) = ClientStream().receive(data)
        request = decode_request(frame)
        self.asked.append(request)
        hello = isinstance(request, m.Hello)
        reply = self.greeting if hello else self.answer(request)
        found = b"".join(encode_reply(reply, frame.opcode, frame.correlation))
        if self.holds:
            self.late.append(found)
        else:
            self.came += found

    def recv_into(self, buffer: memoryview, /) -> int:
        size = min(len(buffer), len(self.came))
        buffer[:size] = self.came[:size]
        del self.came[:size]
        return size

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """What every connection of this process is."""
    made = Wire(m.Welcome(1, 1, 1, 0, 1 << 20, 64, ports=(7000, 7001), nodes=NODES))
    monkeypatch.setattr(blocking_client, "_kept", {})
    monkeypatch.setattr(blocking_client, "_nearest", {})
    before = SYSTEM.set(replace(SYSTEM.get(), dial=lambda *_: made, sleep=lambda _: None))
    yield made
    SYSTEM.reset(before)


def fetched(client: BlockingClient, fetch: m.Fetch) -> int:
    return client.fetch(fetch.address, fetch.offset, fetch.max_bytes).offset


def test_what_was_sent_ahead_is_not_sent_again(wire: Wire) -> None:
    client = BlockingClient("one", 1)
    client.begin(FETCHES[1])
    assert fetched(client, FETCHES[1]) == 1
    assert wire.asked[1:] == [FETCHES[1]]
    assert fetched(client, FETCHES[1]) == 1
    assert wire.asked[1:] == [FETCHES[1]] * 2, "its reply counts once"


def test_others_are_answered_in_between(wire: Wire) -> None:
    client = BlockingClient("one", 1)
    client.begin(FETCHES[0])
    assert fetched(client, FETCHES[2]) == 2
    assert fetched(client, FETCHES[0]) == 0
    assert wire.asked[1:] == [FETCHES[0], FETCHES[2]]


def test_what_nobody_asks_for_is_dropped(wire: Wire) -> None:
    client = BlockingClient("one", 1)
    for fetch in FETCHES:
        client.begin(fetch)
    assert fetched(client, FETCHES[2]) == 2
    assert fetched(client, FETCHES[0]) == 0
    assert wire.asked[1:] == [*FETCHES, FETCHES[0]]


def test_a_reply_that_nobody_waits_for_ends_the_connection(wire: Wire) -> None:
    client = BlockingClient("one", 1)
    wire.came += b"".join(encode_reply(m.Pong(1), 2, 77))
    with pytest.raises(RemoteProtocolError, match="answered another request"):
        fetched(client, FETCHES[0])
    assert wire.closed


def test_a_broker_that_resolves_no_cuts_is_asked_once(wire: Wire) -> None:
    client = BlockingClient("one", 1)
    wire.answer = lambda _: m.Refusal(UnknownOpcode.code, "not known here")
    assert [client.resolve_cut(m.ResolveCut(["t"])) for _ in range(3)] == [None] * 3
    assert len(wire.asked) == 2
    wire.answer = lambda _: m.ResolvedCut(5, [])
    assert BlockingClient("one", 1).resolve_cut(m.ResolveCut(["t"])) == m.ResolvedCut(5, [])


def test_another_system_is_no_answer(wire: Wire) -> None:
    wire.greeting = m.Refusal(WrongSystem.code, "this is system 2, not 1", 2)
    with pytest.raises(Disconnected, match="one:1 is another system"):
        BlockingClient("one", 1, system=1)
    assert wire.asked == [m.Hello("blocking", 1)]
    assert wire.closed


def test_a_leader_is_reached_by_itself(wire: Wire) -> None:
    client = BlockingClient("one", 1)
    assert client.place_of(HERE) is None
    assert client.place_of(THERE) == ("two", 6801)
    assert client.place_of(HERE._replace(shard=1)) == ("one", 7001)
    assert client.place_of(HERE._replace(shard=1, node=0)) == ("one", 7001)
    assert client.place_of(HERE._replace(shard=2)) is None
    assert client.place_of(HERE._replace(node=3)) is None
    hosts = (("one", 1), ("two", 6801))
    assert blocking_client.toward(hosts, HERE) == hosts
    assert blocking_client.toward(hosts, THERE) == (("two", 6801), ("one", 1))


def test_the_host_that_is_reached_soonest_comes_first(wire: Wire) -> None:
    clock = [0.0]
    takes = {"far": 0.5, "one": 0.2, "two": 0.1}

    def dial(host: str, port: int, timeout: float) -> Wire:
        if host == "gone":
            raise ConnectionRefusedError
        clock[0] += takes[host]
        return wire

    before = SYSTEM.set(replace(SYSTEM.get(), dial=dial, monotonic=lambda: clock[0]))
    try:
        hosts = (("far", 1), ("gone", 1))
        expected = (("two", 6801), ("one", 6800), ("far", 1))
        assert blocking_client.nearest(hosts) == expected
        wire.asked.clear()
        blocking_client.ask(expected, lambda client: client.close())
        assert [one.system for one in wire.asked if isinstance(one, m.Hello)] == [1]
        takes["far"] = 0.0
        assert blocking_client.nearest(hosts) == expected, "it is tried once a process"
    finally:
        SYSTEM.reset(before)
