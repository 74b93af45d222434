"""A network of TCP proxies: bytes are late and counted, cuts hold them back, places are known."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.testing.nodes import HOST, free_ports
from weir_lab.network.carriers import CarrierProcess, all_pairs
from weir_lab.network.emulated import ProxiedNetwork
from weir_lab.network.links import Link
from weir_lab.network.namespaces import NoNetwork
from weir_lab.network.switch import Tell, Told

_ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("up", flush=True)
    while True:
        one, _ = server.accept()
        with one:
            while data := one.recv(2000):
                one.sendall(data)
"""
#: Connects, sends what it is told, and prints how many bytes come back.
_ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as one:
    one.sendall(bytes(int(sys.argv[3])))
    print(len(one.recv(2000)))
"""
#: Complains more than fits a pipe, and then answers two lines.
_LOUD = """
import sys
for _ in range(2):
    sys.stdin.readline()
    sys.stderr.write("a complaint" * 100_000)
    print("{}", flush=True)
sys.exit("the last word")
"""
#: As `_ASK`, by 30 connections that are made at once.
_ASK_MANY = """
import socket, sys
at = sys.argv[1], int(sys.argv[2])
made = [socket.create_connection(at) for _ in range(30)]
for one in made:
    one.sendall(b"x")
    print(len(one.recv(2000)), end="")
    one.close()
"""
PLACES = ["here", "there", "elsewhere"]


@pytest.fixture
def network() -> Iterator[ProxiedNetwork]:
    links = all_pairs(PLACES, lambda one, other: Link(delay_ms=10, loss=0.5))
    with ProxiedNetwork(PLACES, links) as found:
        yield found


@pytest.fixture
def port(network: ProxiedNetwork) -> Iterator[int]:
    """A port at which what is said is echoed in the place `there`."""
    (port,) = free_ports(1)
    at = network.listen("there", port)
    words = [*network.before("there"), sys.executable, "-c", _ECHO, HOST, str(at)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as echo:
        assert echo.stdout is not None
        echo.stdout.readline()
        yield port
        echo.kill()


def test_bytes_are_late_and_never_lost_and_cuts_hold_them_back(
    network: ProxiedNetwork, port: int
) -> None:
    with socket.create_connection((HOST, port)) as one:
        one.settimeout(10)
        began = time.monotonic()
        for _ in range(10):
            one.sendall(bytes(100))
            assert len(one.recv(2_000)) == 100, "a share of packets would be lost"
        assert time.monotonic() - began >= 10 * 0.02
        network.cut([("there", "here")])
        one.sendall(bytes(7))
        while network.counts()["here", "there"].bytes < 1_007:
            time.sleep(0.01)
        one.settimeout(0.05)
        with pytest.raises(TimeoutError):
            one.recv(2_000)
        network.heal([("there", "here")])
        one.settimeout(10)
        assert len(one.recv(2_000)) == 7
        one.sendall(bytes(3))
        network.cut([("here", "there")])  # what is on its way waits as well
        one.settimeout(0.05)
        with pytest.raises(TimeoutError):
            one.recv(2_000)
        assert network.counts()["here", "there"].bytes == 1_007
        network.heal([("here", "there")])
        one.settimeout(10)
        assert len(one.recv(2_000)) == 3
    counts = network.counts()
    assert counts["here", "there"].bytes == counts["there", "here"].bytes == 1_010
    assert counts["elsewhere", "there"].bytes == 0


def test_each_process_is_in_the_place_that_it_was_started_in(
    network: ProxiedNetwork, port: int
) -> None:
    words = [sys.executable, "-c", _ASK, HOST, str(port)]
    for place, size in (("elsewhere", 30), ("here", 20), ("there", 10)):
        done = subprocess.run(
            [*network.before(place), *words, str(size)], capture_output=True, check=True, timeout=20
        )
        assert int(done.stdout) == size
    counts = network.counts()
    assert counts["elsewhere", "there"].bytes == 30
    assert counts["here", "there"].bytes == 20
    assert sum(one.bytes for one in counts.values()) == 2 * 50, "nothing links a place to itself"
    with pytest.raises(NoNetwork, match="address already in use"):
        network.listen("there", port)


def test_the_places_of_many_who_connect_at_once_are_found(
    network: ProxiedNetwork, port: int
) -> None:
    words = [*network.before("elsewhere"), sys.executable, "-c", _ASK_MANY, HOST, str(port)]
    done = subprocess.run(words, capture_output=True, check=True, timeout=20)
    assert done.stdout == b"1" * 30
    assert network.counts()["elsewhere", "there"].bytes == 30


def test_what_carries_bytes_may_complain_as_much_as_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud.py").write_text(_LOUD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with CarrierProcess("loud", {}, "it does not start") as loud:
        assert loud.ask(Tell()) == Told()
        with pytest.raises(NoNetwork, match="the last word"):
            loud.ask(Tell())
