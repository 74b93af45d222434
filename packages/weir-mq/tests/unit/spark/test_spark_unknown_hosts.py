"""Names of hosts that have no address are told of at once; those that had one get time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from weir.client.connection import system
from weir.client.connection.system import REAL, SYSTEM, dial
from weir.errors import Disconnected
from weir.spark import blocking_client
from weir.spark.blocking_client import NAME_TIMEOUT, BlockingClient, ask

MISSPELT = (("brokre", 6800),)
BOTH = (("brokre", 6800), ("broker", 6800))


class Names:
    """Dials nobody; `known` names have an address where nobody listens."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self.now = 0.0
        self.dialled: list[str] = []
        #: How long it takes to learn that a name has no address.
        self.slow = 0.0

    def dial(self, host: str, port: int, timeout: float) -> Any:
        self.dialled.append(host)
        if host not in self.known:
            self.now += self.slow
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        raise ConnectionRefusedError("Connection refused")

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    found = Names()
    monkeypatch.setattr(blocking_client, "_kept", {})
    monkeypatch.setattr(blocking_client, "_met", set())
    before = SYSTEM.set(
        replace(REAL, dial=found.dial, sleep=found.sleep, monotonic=lambda: found.now)
    )
    try:
        yield found
    finally:
        SYSTEM.reset(before)


def never(_: BlockingClient) -> None:
    raise AssertionError("there is no connection")


def test_a_misspelt_host_is_named_within_a_second(names: Names) -> None:
    with pytest.raises(Disconnected, match=r"brokre has no address .*check the option url"):
        ask(MISSPELT, never)
    assert names.now < NAME_TIMEOUT
    assert len(names.dialled) > 1, "name servers falter"


def test_one_host_with_an_address_is_waited_for(names: Names) -> None:
    names.known = ("broker",)
    with pytest.raises(Disconnected):
        ask(BOTH, never)
    assert 20 < names.now <= 30
    assert {*names.dialled} == {"brokre", "broker"}


def test_all_hosts_are_tried_before_it_is_given_up(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    names.slow = 4.0

    def connected(host: str, port: int, timeout: float, name: str, system: int, _: None) -> Any:
        return "a client" if host == "broker" else BlockingClient(host, port, timeout, name)

    monkeypatch.setattr(blocking_client, "BlockingClient", connected)
    assert ask(BOTH, lambda client: client) == "a client"


def test_a_host_that_was_met_is_waited_for(names: Names) -> None:
    blocking_client._met.add(MISSPELT)
    with pytest.raises(Disconnected, match="brokre has no address"):
        ask(MISSPELT, never)
    assert 20 < names.now <= 30


def test_who_is_connected_to_counts_as_met(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_client, "BlockingClient", lambda *_: "a client")
    assert ask(MISSPELT, lambda client: client) == "a client"
    assert {MISSPELT} == blocking_client._met


def test_a_name_server_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    answered = threading.Event()

    def silent(host: str, *_: object, **__: object) -> list[Any]:
        asked.append(host)
        answered.wait(10)
        return []

    monkeypatch.setattr(system, "_LOOKUP_TIMEOUT", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", silent)
    with pytest.raises(socket.gaierror, match=r"no name server answered in 0\.05 s"):
        dial("brokre", 6800, 10)
    assert asked == ["brokre"]
    answered.set()


def test_dialling_goes_through_the_addresses_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens there
        stream = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        places = [closed.getsockname(), server.getsockname()]
        found = [(*stream, place) for place in places]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        dial("broker", 1, 5).close()
        found.pop()
        with pytest.raises(ConnectionRefusedError):
            dial("broker", 1, 5)
        found.clear()
        with pytest.raises(socket.gaierror):
            dial("broker", 1, 5)


@pytest.mark.parametrize("name", ["x" * 64 + ".org", "a..b"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(socket.gaierror):
        dial(name, 6800, 5)
