"""What a relay tells of the one order while its core is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from weir.errors import Unavailable
from weir.model.ids import Address
from weir.protocol.client import messages as m
from weir.relay.messages import Mark
from weir.relay_node.host import RelayedTopic, RelayHost
from weir.relay_node.requests import AnswerRoom, RelayRequests

TOPIC = 3
GROUPS = (3 << 16, 3 << 16 | 1)


class CoreAway:
    """A host of two partitions whose core does not answer."""

    def __init__(self, *marks: Mark) -> None:
        info = m.TopicInfo(TOPIC, "default", "t", "total", [Address(0, 0, one) for one in GROUPS])
        self.topics = {TOPIC: RelayedTopic(info)}
        held = zip(GROUPS, (SimpleNamespace(mark=mark) for mark in marks), strict=True)
        self.partitions = SimpleNamespace(held=dict(held))

    def core(self) -> None:
        raise Unavailable("the core is not reached")


def barriers(*marks: Mark) -> m.Barriers:
    requests = RelayRequests(cast(RelayHost, CoreAway(*marks)))
    reply = asyncio.run(requests.answer(m.AskBarriers(TOPIC, 50, 0), AnswerRoom()))
    assert isinstance(reply, m.Barriers)
    return reply


def test_marks_that_came_tell_how_far_the_order_is_complete() -> None:
    told = barriers(Mark(2, 60, 7), Mark(1, 50, 4))
    assert (told.registers, told.reached) == ([(0, 60, 7), (1, 50, 4)], True)
    assert not barriers(Mark(2, 60, 7), Mark(1, 49, 4)).reached


def test_a_partition_that_joined_and_is_not_here_yet_keeps_the_order_back() -> None:
    told = barriers(Mark(3, 60, 7), Mark(1, 50, 4))
    assert (told.registers, told.reached) == ([(0, 60, 7), (1, 50, 4), (2, 0, 0)], False)
