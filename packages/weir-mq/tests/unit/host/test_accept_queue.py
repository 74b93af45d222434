"""The accept queue lets a burst in, then so many a second, in turn."""

from __future__ import annotations

import logging
from typing import Any

from weir.host.accept_queue import AcceptQueue, ConnectionLimits
from weir.host.strangers import Strangers

NOBODY: Strangers[Any] = Strangers(0, logging.getLogger("test"))


class FakePeer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.gone = False
        self.was_cut = False

    def cut(self) -> None:
        self.was_cut = True


def peer(name: str) -> Any:
    return FakePeer(name)


def made(per_second: float, burst: int) -> AcceptQueue[Any]:
    limits = ConnectionLimits(accepts_per_second=per_second, accept_burst=burst)
    return AcceptQueue(limits, 0, NOBODY)


def names(peers: list[Any]) -> list[str]:
    return [peer.name for peer in peers]


def test_a_burst_enters_at_once_and_the_rest_in_turn() -> None:
    queue = made(per_second=2, burst=3)
    assert [queue.may_enter(peer(name), 0) for name in "abcde"] == [True] * 3 + [False] * 2
    assert queue.entering(0.4) == []
    assert names(queue.entering(0.5)) == ["d"]
    assert not queue.may_enter(peer("f"), 10), "e came first"
    assert names(queue.entering(10)) == ["e", "f"]
    assert queue.may_enter(peer("g"), 10)


def test_those_who_hang_up_while_they_wait_take_no_token() -> None:
    queue = made(per_second=2, burst=3)
    waiting = [peer(name) for name in "abcdefgh"]
    assert sum(queue.may_enter(one, 0) for one in waiting) == 3
    for one in waiting[3:7]:
        one.gone = True
    assert names(queue.entering(0.5)) == ["h"], "the first who is there"
    assert [one.was_cut for one in waiting] == [False] * 3 + [True] * 4 + [False]


def test_nobody_enters_while_the_shard_is_not_there() -> None:
    queue = made(per_second=2, burst=3)
    queue.closed = True
    assert not queue.may_enter(peer("early"), 0)
    assert queue.entering(9) == []
    queue.closed = False
    assert not queue.may_enter(peer("late"), 9), "one came first"
    assert names(queue.entering(9)) == ["early", "late"]


def test_a_quiet_hour_saves_no_more_than_a_burst() -> None:
    queue = made(per_second=1, burst=3)
    assert [queue.may_enter(peer("p"), 3_600) for _ in range(5)] == [True] * 3 + [False] * 2


def test_who_waits_for_failures_of_its_address_holds_up_nobody() -> None:
    queue = made(per_second=2, burst=3)
    queue.let_wait(peer("slow"), 5.0)
    queue.let_wait(peer("less slow"), 3.0)
    assert queue.slowed == 2
    assert queue.may_enter(peer("honest"), 1.0)
    assert queue.entering(2.9) == []
    assert names(queue.entering(3.0)) == ["less slow"]
    assert names(queue.entering(9.0)) == ["slow"]
    assert queue.slowed == 0


def test_those_who_hang_up_while_they_wait_for_their_address_leave_at_once() -> None:
    """Counterexample: they kept their sockets until their time came, for up to 10 s."""
    queue = made(per_second=2, burst=3)
    waiting = [peer(str(number)) for number in range(200)]
    for number, one in enumerate(waiting):
        queue.let_wait(one, 10.0 + number % 7)
    leaving = [one for number, one in enumerate(waiting) if number % 3]
    for one in leaving:
        one.gone = True
    for step in range(8):
        assert queue.entering(step / 100) == []
    assert all(one.was_cut for one in leaving)
    assert queue.slowed == len(waiting) - len(leaving)
    assert not any(one.was_cut for one in waiting if one not in leaving)
    in_order = [one.name for one in sorted(waiting, key=lambda one: int(one.name) % 7)
                if one not in leaving]  # fmt: skip
    entered: list[str] = []
    for second in range(20, 120):
        entered += names(queue.entering(float(second)))
    assert entered == in_order, "all others come in in their turns"


def test_a_few_are_looked_at_each_time() -> None:
    """Each look is a call of the system."""

    class Looked(FakePeer):
        looks = 0

        @property  # type: ignore[override]
        def gone(self) -> bool:
            Looked.looks += 1
            return False

        @gone.setter
        def gone(self, value: bool) -> None:
            pass

    queue = made(per_second=2, burst=3)
    for number in range(1_000):
        queue.let_wait(Looked(str(number)), 10.0)
    queue.entering(0.0)
    assert 0 < Looked.looks <= 64
