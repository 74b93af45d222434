"""The controller forwards between processes: what it passes on, and who has failed."""

from __future__ import annotations

import pytest

from weir_toc import packet as wire
from weir_toc.controller.entries import NodeSilent, ProcessJoined
from weir_toc.controller.pacing import ANSWER_NS_MIN, Pacing
from weir_toc.controller.paths import (
    MEMBER_BYTES_MAX,
    PATHS_MAX,
    PERIOD_NS,
    CutPaths,
    Kind,
    check_forward,
)
from weir_toc.controller.records import Founded
from weir_toc.controller.state import ControllerState
from weir_toc.errors import ControlError
from weir_toc.packet import Packet
from weir_toc.topology import process_id

ANSWER = 1_000
A, B, C = 1, 2, 3
ALL = {A, B, C}


def of(opcode: int, source: int = A, to: int = B) -> bytes:
    return bytes(wire.encode(Packet(opcode, source, to)))


def test_a_receiver_that_does_not_answer_in_time_is_unreachable() -> None:
    paths = CutPaths(ANSWER)
    for now in range(100, 1_100, 250):
        assert paths.ask(now, A, B, 50)
        assert not paths.unreachable(now, ALL)
    assert not paths.unreachable(1_099, ALL)
    assert paths.unreachable(1_100, ALL) == {B}
    assert not paths.unreachable(1_101, ALL)


def test_one_that_answers_is_not_and_its_time_begins_again() -> None:
    paths = CutPaths(ANSWER)
    for now in range(100, 5_000, 250):
        paths.ask(now, A, B, 50)
        assert not paths.unreachable(now, ALL)
        paths.answered(A, B)
    assert paths.pairs == [(A, B)]
    paths.answered(B, A)  # nothing was asked of A
    paths.ask(5_000, A, B, 50)
    paths.ask(5_900, A, B, 50)
    assert not paths.unreachable(5_999, ALL)
    assert paths.unreachable(6_000, ALL) == {B}


def test_one_that_is_asked_no_more_has_been_reached_by_another_way() -> None:
    paths = CutPaths(ANSWER)
    paths.ask(100, A, B, 50)
    assert not paths.unreachable(599, ALL)
    assert paths.pairs
    assert not paths.unreachable(600, ALL)
    assert not paths.pairs
    assert not paths.unreachable(5_000, ALL)


@pytest.mark.parametrize("gone", [A, B])
def test_a_pair_is_forgotten_that_does_not_go_on(gone: int) -> None:
    paths = CutPaths(ANSWER)
    paths.ask(100, A, B, 50)
    assert not paths.unreachable(200, ALL - {gone})
    assert not paths.pairs


def test_a_member_lets_forward_so_many_bytes_in_a_period() -> None:
    paths = CutPaths(ANSWER)
    now = 10 * PERIOD_NS
    assert paths.ask(now, A, B, MEMBER_BYTES_MAX - 10)
    assert not paths.ask(now, A, C, 11)
    assert paths.pairs == [(A, B)]  # who was not asked owes nothing
    assert paths.ask(now, A, C, 10)
    assert paths.ask(now, B, C, 11)
    assert not paths.ask(now + PERIOD_NS - 1, A, B, 1)
    assert paths.ask(now + PERIOD_NS, A, B, 1)


def test_so_many_pairs_are_known() -> None:
    paths = CutPaths(ANSWER)
    for to in range(PATHS_MAX):
        assert paths.ask(100, A, to, 1)
    assert not paths.ask(100, A, PATHS_MAX, 1)
    assert paths.ask(100, A, 5, 1)


def test_requests_and_answers_are_told_apart() -> None:
    for opcode in (wire.DATA_R, wire.RECALL, wire.CONNECT):
        assert check_forward(A, B, [of(opcode)]) is Kind.REQUEST
    for opcode in (wire.ACK, wire.RECALL_ACK):
        assert check_forward(A, B, [of(opcode)]) is Kind.ANSWER
    asks = bytes(wire.encode(Packet(wire.ACK, A, B, flags=wire.CONFIRM)))
    assert check_forward(A, B, [of(wire.ACK), asks]) is Kind.QUESTION
    data = bytes(wire.encode(Packet(wire.DATA_R, A, B, flags=wire.BEGIN | wire.END)))
    assert check_forward(A, B, [data]) is Kind.REQUEST


@pytest.mark.parametrize(
    "packets",
    [[], [of(wire.DATA_R), of(wire.ACK)], [of(wire.DATA_BE)], [of(wire.BEACON)], [of(wire.FENCED)],
     [of(wire.DATA_R, source=C)], [of(wire.DATA_R), of(wire.DATA_R, source=C)],
     [of(wire.DATA_R, to=C)], [of(wire.DATA_R)[:-1]], [b""]],
)  # fmt: skip
def test_what_cannot_be_forwarded_is_refused(packets: list[bytes]) -> None:
    with pytest.raises(ControlError):
        check_forward(A, B, packets)


def test_who_does_not_answer_what_is_forwarded_is_declared_silent() -> None:
    state, pacing = ControllerState(), Pacing(1_000_000)
    state.apply(Founded(1, 0, 0, 1_000_000))
    a, b = process_id(0, 1), process_id(0, 2)
    assert state.failures is not None
    for process in (a, b):
        state.failures.apply(ProcessJoined(process))
    here = frozenset({a, b})
    assert not pacing.due(1, state, here)
    for at in range(10):
        now = 1 + at * ANSWER_NS_MIN // 10
        pacing.paths.ask(now, a, b, 50)
        assert not pacing.due(now, state, here)
    assert pacing.due(1 + ANSWER_NS_MIN, state, here) == [NodeSilent(b)]
