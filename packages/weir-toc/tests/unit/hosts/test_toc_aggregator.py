"""The process of a switch: what is raised by its packets and by its timer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rigs.early_aggregator import EarlyAggregator
from rigs.loopback import Loopback, loopback
from rigs.programs import PATIENCE_SECONDS
from weir_toc.errors import XdpError, first_error
from weir_toc.hosts.batches import Train
from weir_toc.hosts.udp import BURST_READS, UdpSocket
from weir_toc.node import Effect, SwitchNode
from weir_toc.places import Place

BROKEN = XdpError("the kernel has not obeyed")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder: Path = tmp_path_factory.mktemp("network")
    with loopback(folder) as one:
        yield one


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_time_goes_on_after_an_error_of_one_packet(
    network: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    rang = 0
    tick = SwitchNode.tick

    def once_wrong(node: SwitchNode, now: int) -> list[Effect]:
        nonlocal rang
        rang += 1
        if rang == 1:
            raise IndexError("of one packet")
        return tick(node, now)

    monkeypatch.setattr(SwitchNode, "tick", once_wrong)
    until(lambda: rang > 3)
    assert not network.tasks["aggregator"].done()


@pytest.mark.parametrize("error", [BROKEN, OSError(100, "Network is down")])
def test_a_switch_ends_when_its_data_path_is_broken(
    network: Loopback, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(node: SwitchNode, now: int) -> list[Effect]:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(SwitchNode, "tick", broken)
        until(network.tasks["aggregator"].done)
        ended = network.tasks["aggregator"].exception()
        assert ended is not None
        assert first_error(ended) is error
    network.restart_aggregator()


def test_a_switch_ends_when_its_socket_is_broken(network: Loopback) -> None:
    """Packets come to it by the event loop, too, and not only by the timer."""
    aggregator = network.aggregator
    assert aggregator is not None

    def broken() -> list[object]:
        raise OSError(9, "Bad file descriptor")

    aggregator.socket.read = broken  # type: ignore[method-assign,assignment]
    until(network.tasks["aggregator"].done)
    ended = network.tasks["aggregator"].exception()
    assert ended is not None
    assert isinstance(first_error(ended), OSError)
    network.restart_aggregator()


@pytest.mark.parametrize(("place", "reads"), [(Place.HOST, True), (Place.XDP, False)])
def test_what_may_hold_beacons_is_read_before_time_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Place, reads: bool
) -> None:
    """A call of the kernel in each interval is for beacons: those of a programmable switch are not
    here."""
    ticks, read, tick = 0, 0, SwitchNode.tick

    def counted(node: SwitchNode, now: int) -> list[Effect]:
        nonlocal ticks
        ticks += 1
        return tick(node, now)

    class Socket(UdpSocket):
        def read(self, reads_max: int = BURST_READS) -> list[Train]:
            nonlocal read
            read += 1
            return super().read(reads_max)

    monkeypatch.setattr(SwitchNode, "tick", counted)
    with loopback(tmp_path, place=place, open_socket=Socket):
        until(lambda: ticks > 100)  # of both networks
        assert (read > 10) is reads
        assert reads or not read


@pytest.mark.parametrize(("waiting", "left"), [(5, 0), (40, 24)])
def test_bursts_that_wait_are_read_before_time_passes_up_to_a_limit(
    waiting: int, left: int
) -> None:
    """The switch was stopped for a while: what it reads in one call is not all that has come."""

    class Socket(UdpSocket):
        def read(self, reads_max: int = BURST_READS) -> list[Train]:
            return super().read(1)

    async def body() -> None:
        early = EarlyAggregator(Socket)
        early.damaged(waiting)
        early.rings()
        assert early.node.counters.damaged == waiting - left
        early.close()

    asyncio.run(body())
