"""How many messages a consumer asks for: about a second of its work."""

from __future__ import annotations

from typing import Any, cast

import pytest

from weir.client.consumer.delivery import Holding, Lessor
from weir.client.consumer.leases import ConsumerLeases
from weir.client.consumer.messages import Deliveries, InHand
from weir.client.consumer.subscription import ConsumerOptions
from weir.client.core.grants import Grant, Prefetch
from weir.model.message import Message


def test_slow_work_is_asked_for_one_by_one() -> None:
    pace = Prefetch(1_000, 30.0)
    for _ in range(3):
        assert (pace.size, pace.ahead) == (1, False)
        pace.took(1, 1.5, 1)


def test_quick_work_grows_up_to_what_the_user_bounds() -> None:
    pace = Prefetch(100, 30.0)
    sizes = []
    for _ in range(8):
        pace.took(pace.size, pace.size * 0.000_01, 1)
        sizes.append(pace.size)
    assert sizes == [4, 20, 100, 100, 100, 100, 100, 100]
    assert pace.ahead


def test_work_that_gets_slow_is_noticed_at_once() -> None:
    pace = Prefetch(1_000, 30.0)
    for _ in range(12):
        pace.took(pace.size, 0.001, 1)
    assert pace.size == 1_000
    pace.took(30, 30.0, 1)
    assert pace.size == 1


def test_a_few_that_are_quick_by_chance_are_no_reason_to_ask_for_many() -> None:
    """Else what they are followed by waits here, while others have nothing to do."""
    pace = Prefetch(1_000, 30.0)
    pace.took(1, 0.001, 1)
    assert pace.size == 4
    for _ in range(20):
        pace.took(1, 0.5, 1)
    for _ in range(3):
        pace.took(1, 0.001, 1)
    assert pace.size == 2


def test_a_grant_is_a_part_of_a_short_lease_and_of_many_partitions() -> None:
    for lease, partitions, size in ((30.0, 1, 100), (0.8, 1, 10), (30.0, 10, 10), (30.0, 500, 1)):
        pace = Prefetch(1_000, lease)
        for _ in range(60):
            pace.took(101, 1.0, partitions)
        assert pace.size == size, (lease, partitions)


def test_the_next_is_pulled_ahead_if_a_second_holds_one_of_each_partition() -> None:
    for seconds, ahead in ((0.3, True), (0.7, False)):
        pace = Prefetch(1_000, 30.0)
        for _ in range(60):
            pace.took(1, seconds, 2)
        assert (pace.size, pace.ahead) == (1, ahead)


def test_nothing_handed_out_says_nothing() -> None:
    pace = Prefetch(1_000, 30.0)
    pace.took(0, 60.0, 1)
    assert pace.size == 1
    pace.took(1, 0.1, 1)
    assert pace.ahead


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Told(Prefetch):
    """Keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(1_000, 30.0)
        self.told: list[tuple[int, float]] = []

    def took(self, messages: int, seconds: float, partitions: int) -> None:
        self.told.append((messages, round(seconds, 3)))


class Waited:
    """Holdings that come when `then` was called: what goes on while somebody waits for them."""

    partitions = 1

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.offset = 0
        self.then = lambda: None
        self.outcomes = self

    async def take(self, size: int, dropped: Holding | None = None) -> Holding:
        self.then()
        self.offset += 1
        grant = Grant("t", 0, self.offset, 0, self.offset - 1, self.offset, 1, (Single(self),))
        return Holding(grant, 1_000.0, self.clock.monotonic, cast(Lessor, self))

    def resume(self) -> None: ...

    def settled(self, holding: Holding) -> None: ...

    def settled_all(self) -> None: ...


class Single:
    """A batch of one message."""

    def __init__(self, waited: Waited) -> None:
        self.offset = waited.offset - 1

    def messages(self) -> Any:
        return iter([Message(topic="t", partition=0, offset=self.offset, value=b"x")])


@pytest.mark.parametrize("idle", [0.0, 60.0])
def test_what_is_settled_while_another_waits_for_more_counts(idle: float) -> None:
    """And so does the time until then; but not what passes while nothing is worked on."""
    clock, pace = Clock(), Told()
    holdings = Waited(clock)
    options = ConsumerOptions(cluster="c", max_bytes=1, lease=30.0, ack_within=0.0)
    source = Deliveries(cast(ConsumerLeases, holdings), pace, options, clock.monotonic, InHand(10))

    def drive(step: Any) -> None:
        with pytest.raises(StopIteration):
            step.send(None)

    drive(source.more())
    first = source.at_hand()
    assert first is not None
    assert source.at_hand() is None
    clock.now += 0.2

    def over() -> None:
        clock.now += 0.3
        first.done()
        clock.now += idle

    holdings.then = over
    drive(source.more())
    second = source.at_hand()
    assert second is not None
    assert source.at_hand() is None
    clock.now += 0.1
    holdings.then = lambda: None
    drive(source.more())
    assert pace.told == [(1, 0.6)]
