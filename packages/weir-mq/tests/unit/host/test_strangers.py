"""Who has not said who he is: what he may bring, for how long, and all of them together."""

from __future__ import annotations

import logging

import pytest

from weir.host.strangers import Strangers
from weir.model.limits import STRANGER_BYTES_MAX, STRANGER_SECONDS
from weir.protocol.client.access import Login
from weir.protocol.client.messages import Hello, opcode_of
from weir.protocol.frame import ClientFrame


class Peer:
    def __init__(self, session: int, address: str = "10.0.0.7") -> None:
        self.session = session
        self.address = address
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True


def made(limit: int = 1 << 20) -> Strangers[Peer]:
    return Strangers(limit, logging.getLogger("test"))


def test_one_may_bring_16_kib() -> None:
    strangers, one = made(), Peer(1)
    assert strangers.brought(one, STRANGER_BYTES_MAX - 1)
    assert strangers.brought(one, 1)
    assert not strangers.brought(one, 1)
    assert strangers.used == STRANGER_BYTES_MAX + 1
    strangers.left(one)
    assert strangers.used == len(strangers) == 0


def test_those_that_are_silent_longest_go_first() -> None:
    strangers = made(limit=1_000)
    peers = [Peer(n) for n in range(4)]
    for one in peers[:3]:
        assert strangers.brought(one, 300)
    assert strangers.brought(peers[0], 50)  # it speaks again
    assert strangers.brought(peers[3], 300)
    assert [one.is_cut for one in peers] == [False, True, False, False]
    assert strangers.used == 950
    assert strangers.brought(peers[3], 600)
    assert [one.is_cut for one in peers] == [True, True, True, False]
    assert strangers.used == 900


def test_who_brings_most_alone_is_not_cut_for_others() -> None:
    strangers, one = made(limit=100), Peer(1)
    assert strangers.brought(one, 200)
    assert not one.is_cut


def test_a_handshake_has_10_s_once_it_is_served() -> None:
    strangers = made()
    early, waiting, late = Peer(1), Peer(2), Peer(3)
    strangers.shakes(early, 0.0)
    strangers.shakes(waiting, 0.0)
    strangers.waits(waiting)
    strangers.shakes(late, 5.0)
    strangers.shakes(early, 9.0)  # a second step begins no new time
    strangers.cut_late(STRANGER_SECONDS)
    assert not early.is_cut
    strangers.cut_late(STRANGER_SECONDS + 0.1)
    assert (early.is_cut, waiting.is_cut, late.is_cut) == (True, False, False)
    strangers.shakes(waiting, 30.0)
    strangers.shaken(late)
    strangers.cut_late(40.1)
    assert (waiting.is_cut, late.is_cut) == (True, False)
    assert not strangers.used


def test_what_is_known_of_one_goes_with_it() -> None:
    strangers, one = made(), Peer(1)
    strangers.refusals[one] = "no"
    strangers.unopened.add(one)
    strangers.brought(one, 10)
    strangers.shakes(one, 0.0)
    strangers.shaken(one)
    assert strangers.refusals == {one: "no"}, "a refusal waits for its hello"
    strangers.left(one)
    assert not strangers.refusals
    assert not strangers.unopened
    strangers.cut_late(100.0)
    assert not one.is_cut


def frame(opcode: int) -> ClientFrame:
    return ClientFrame(0, opcode, 1, memoryview(b""))


@pytest.mark.parametrize(
    ("address", "private"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True),
     ("10.0.0.7", False), ("::ffff:10.0.0.7", False), ("fe80::1%lo", False), ("::2", False),
     ("1270.0.0.1", False), ("127.0.0.1.example", False), ("localhost.example", False)],
)  # fmt: skip
def test_who_can_be_overheard_does_not_log_in(address: str, private: bool) -> None:
    strangers, one = made(), Peer(1, address)
    assert strangers.may_log_in(one, frame(opcode_of(Login))) == private
    assert not strangers.may_log_in(one, frame(opcode_of(Hello)))
    strangers.encrypted.add(one)
    assert strangers.may_log_in(one, frame(opcode_of(Login)))
    strangers.left(one)
    assert strangers.may_log_in(one, frame(opcode_of(Login))) == private
