"""Nobody hears of its publishes before its hello; a crowd gets no more than its devices would."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker import events as ev
from weir.broker.outbox import TOGETHER_MS
from weir.errors import UnknownTopic
from weir.wire import device
from weir.wire import messages as m
from weir.wire.device import DeviceOpcode, DeviceReplies, DeviceStream
from weir.wire.trunk import Arrival

HELLO, PUBLISH = DeviceOpcode.HELLO, DeviceOpcode.PUBLISH_SEQUENCED


def codes(data: bytes) -> list[tuple[int, int]]:
    return [(reply.opcode, reply.code) for reply in DeviceReplies().receive(data)]


def says(one: Any, session: int, *frames: bytes) -> None:
    one.handle(ev.Received(session, DeviceStream().receive(b"".join(frames))))


def arrival(session: int, *publishes: bytes) -> Arrival:
    frames = device.hello(session, 1, "locks") + b"".join(publishes)
    hello, published = DeviceStream().receive(frames)
    assert isinstance(hello, device.DeviceHello)
    assert isinstance(published, device.DevicePublishes)
    return Arrival(session, hello, published)


def test_a_refused_hello_is_heard_of_before_what_another_shard_confirms(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[(info.addresses[0].shard + 1) % 3]
    one.raw[100] = b""
    one.handle(ev.Opened(100))
    says(one, 100, device.hello(1, 1, "locks"))
    node.settle()
    assert codes(one.raw[100]) == [(HELLO, 0)]
    one.raw[100] = b""
    says(one, 100, device.hello(1, 1, "none"), device.publish(1, b"v", 0))
    node.settle()
    node.clock.monotonic += TOGETHER_MS
    one.handle(ev.Ticked())
    assert codes(one.raw[100]) == [(HELLO, UnknownTopic.code), (PUBLISH, 0)]


def come(one: Any, arrivals: list[Arrival], at_once: bool) -> None:
    events: list[Any] = [ev.Arrived(arrivals)]
    if not at_once:
        events = []
        for a in arrivals:
            events += [ev.Opened(a.session), ev.Received(a.session, [a.hello, a.publishes])]
    one.raw.update((a.session, b"") for a in arrivals)
    one.do(one.shard.take(*events))


@pytest.mark.parametrize("at_once", [False, True])
def test_a_crowd_gets_no_more_of_the_budget_than_its_devices_would(
    node: Any, at_once: bool
) -> None:
    """While little is in use anything passes, but only the first of many."""
    node = type(node)(3, budget=8 * 1024)
    node.connect(0)
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[info.addresses[0].shard]
    budget = one.shard.budget
    come(one, [arrival(n, device.publish(1, bytes(448), 0)) for n in range(100, 128)], at_once)
    assert budget.used <= budget.limit
