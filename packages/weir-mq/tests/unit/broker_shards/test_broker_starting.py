"""A shard that starts while the others serve: what it says before its log is applied."""

from __future__ import annotations

from typing import Any

import pytest

from weir.errors import Unavailable
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


def carry_all(node: Any) -> None:
    while any(node._carry(pair) for pair in node.wires):
        pass


@pytest.mark.parametrize("question", [m.Positions, a.DescribePartition])
def test_a_partition_that_starts_does_not_say_that_it_holds_nothing(
    node: Any, question: type[m.Positions | a.DescribePartition]
) -> None:
    info = node.answer(0, m.CreateTopic("t", 4))
    grant = node.answer(0, m.OpenProducer())
    address = next(place for place in info.addresses if place.shard == 2)
    assert node.answer(0, node.batch(address, grant)).offset == 0
    node.kill(2)
    node.boot(2)
    carry_all(node)  # the registry's copy arrives; no disk has done anything yet
    asked = node.ask(0, question(address))
    carry_all(node)
    assert node.reply(0, asked).code == Unavailable.code
    node.settle()
    assert node.answer(0, question(address)).end == 1
