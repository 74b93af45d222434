"""The byte budget: refused before it is spent, and given back to the last byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api import effects as ef
from weir.broker.runtime.budget import Budget
from weir.errors import Overloaded
from weir.protocol import device as d
from weir.protocol.client import messages as m


def test_charge_refuses_and_take_does_not() -> None:
    budget = Budget(100)
    budget.charge(100)
    with pytest.raises(Overloaded) as refused:
        budget.charge(1)
    assert refused.value.detail > 0
    budget.take(50)
    budget.release(150)
    assert budget.used == 0


def test_reading_stops_above_three_quarters_and_goes_on_below_half() -> None:
    budget = Budget(100)
    budget.take(75)
    assert not budget.should_hold(False)
    budget.take(1)
    assert budget.should_hold(False)
    budget.release(25)
    assert budget.should_hold(True)
    budget.release(1)
    assert not budget.should_hold(True)


def test_a_publish_over_the_budget_is_refused_and_leaves_no_trace(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(budget_bytes=400)
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    first = rig.ask(1, rig.batch(info, grant, 0, b"a" * 200))
    second = rig.ask(1, rig.batch(info, grant, 1, b"b" * 200))
    refused = dict(rig.replies[1])[second]
    assert refused.code == Overloaded.code
    rig.settle()
    assert dict(rig.replies[1])[first].offset == 0
    assert rig.shard.budget.used == 0
    assert rig.answer(1, rig.batch(info, grant, 1, b"b" * 200)).offset == 1


def test_hosts_are_told_to_hold_and_to_go_on(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(budget_bytes=400)
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.ask(1, rig.batch(info, grant, 0, b"a" * 230))
    rig.settle()
    assert [e.hold for e in rig.others if isinstance(e, ef.HoldReads)] == [True, False]


def test_the_budget_is_whole_again_when_all_is_answered(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(cache=0)
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    rig.device(50, d.hello(7, 1, "t"))
    for n in range(20):
        batch = rig.batch(info, grant, n, b"v")
        rig.ask(1, batch, batch, rig.batch(info, grant, n, b"x"), m.Pull(batch.address, "c", 2, 9))
        good = d.publish(1, b"w", n)
        rig.device(
            50, good, good, d.publish(2, b"plain"), d.publish(1, b"z", n + 5), good[:-1] + b"!"
        )
        rig.ask(1, m.Fetch(batch.address, 0, 1 << 20))
        if n % 3 == 0:
            rig.settle()
    rig.settle()
    assert rig.shard.budget.used == 0


def test_what_a_batch_inflates_to_is_room_that_must_be_there(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(budget_bytes=8_000)
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    first = rig.ask(1, rig.batch(info, grant, 0, b"a" * 2_500))
    packed = rig.batch(info, grant, 1, b"b" * 7_000, compression=2)
    assert len(packed.batch) < 200
    asked = rig.ask(1, packed)
    assert dict(rig.replies[1])[asked].code == Overloaded.code
    rig.settle()
    assert dict(rig.replies[1])[first].offset == 0
    assert rig.answer(1, packed).offset == 1
