"""When the sending end of a link asks whether anybody is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weir.host.lanes import OutLane
from weir.protocol.link import PING, LinkStream, encode

BEAT = encode(0x40, 1, b"beat")


class Transport:
    """Keeps each write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def writelines(self, buffers: Any) -> None:
        self.written.append(b"".join(buffers))

    def get_write_buffer_size(self) -> int:
        return 0


def kinds(written: list[bytes]) -> list[list[str]]:
    """Return what each write held."""
    stream = LinkStream()
    return [["ping" if f.kind == PING else "beat" for f in stream.receive(d)] for d in written]


def lane(*, quick: bool = True) -> tuple[OutLane, Transport]:
    local: Any = SimpleNamespace(time=lambda: 0.0)
    transport: Any = Transport()
    return OutLane(local, transport, quick, lambda why: pytest.fail(why)), transport


def test_a_lane_with_nothing_to_say_asks_every_other_tick() -> None:
    one, transport = lane()
    assert kinds(transport.written) == [["ping"]]
    for _ in range(8):
        one.check_silence()
    assert kinds(transport.written) == [["ping"]] * 4


def test_pings_go_with_the_beats_of_their_tick() -> None:
    one, transport = lane()
    transport.written.clear()
    one.check_silence()
    for _ in range(4):
        one.check_silence()
        one.write(BEAT)
        one.check_silence()
    assert kinds(transport.written) == [["ping", "beat"]] * 4


def test_a_busy_lane_asks_no_more_often() -> None:
    one, transport = lane()
    transport.written.clear()
    for _ in range(8):
        for _ in range(10):
            one.write(BEAT)
        one.check_silence()
    asked = sum(held.count("ping") for held in kinds(transport.written))
    assert asked == 3


def test_a_lane_for_large_frames_asks_nothing() -> None:
    one, transport = lane(quick=False)
    for _ in range(4):
        one.write(BEAT)
        one.check_silence()
    assert kinds(transport.written) == [["beat"]] * 4
