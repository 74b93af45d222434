"""What a process reads at once: packets in pieces, and no more than beacons can wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from rigs.early_process import EarlyProcess
from weir_toc import packet as wire
from weir_toc.endpoint.events import EndpointConfig
from weir_toc.endpoint.flow import RUN_PACKETS_MAX
from weir_toc.hosts.rack_link import Piece, RackLink, gathered
from weir_toc.hosts.udp import UdpSocket
from weir_toc.places import Place


def packets(pieces: Sequence[Piece]) -> list[bytes]:
    return [bytes(one) for data, size in pieces for one in wire.split(data, size)]


def test_packets_of_one_size_that_follow_each_other_come_in_one_piece() -> None:
    pieces = [(b"abc", 3), (b"defghi", 3), (b"jk", 2), (b"l", 1), (b"m", 1), (b"nopq", 3)]
    assert gathered(pieces) == [(b"abcdefghi", 3), (b"jk", 2), (b"lm", 1), (b"nopq", 3)]
    assert gathered([(b"nopq", 3), (b"rst", 3), (b"uvw", 3)]) == [(b"nopq", 3), (b"rstuvw", 3)]
    assert gathered([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_pieces_hold_the_same_packets_in_the_same_order_and_are_small(seed: int) -> None:
    dice = Random(seed)
    pieces: list[Piece] = []
    for _ in range(300):
        size = dice.choice((3, 3, 3, 4))
        length = dice.choice((1, 1, 1, 2, 40)) * size - dice.choice((0, 0, 0, 1))
        pieces.append((dice.randbytes(length), size))
    found = gathered(pieces)
    assert packets(found) == packets(pieces)
    assert len(found) < len(pieces)
    assert max(len(data) // size for data, size in found) <= RUN_PACKETS_MAX


def test_a_link_gives_what_came_one_by_one_in_one_piece() -> None:
    switch = UdpSocket(("127.0.0.1", 0))
    link = RackLink(switch.address, Place.HOST, UdpSocket)
    link.send([(b"hello", 5)])
    (found,) = switch.read()
    for number in range(9):
        switch.socket.sendto(b"%05d" % number, found.address)
    whole = b"".join(b"%05d" % number for number in range(9))
    assert link.read() == [(whole, 5)]
    switch.close()
    link.close()


def test_a_beacon_does_not_wait_until_all_is_read() -> None:
    """More comes than can be read, and each burst takes most of an interval."""

    async def body() -> None:
        busy = EarlyProcess()
        try:
            busy.admitted()
            clock = [busy.deadline]
            bursts: list[int] = []

            def read() -> list[Piece]:
                bursts.append(clock[0])
                clock[0] += EndpointConfig().interval * 3 // 4
                return [(b"damaged", 7)]

            assert busy.ticks(read, lambda: clock[0]) == 1
            assert len(bursts) == busy.process.describe()["damaged"] == 2
        finally:
            busy.close()

    asyncio.run(body())
