"""Devices that come at once are served as they would be one by one, wherever they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.intake.fan_in import ROW_BYTES
from weir.broker.outbox import TOGETHER_MS
from weir.errors import BadChecksum, BadRequest, Overloaded, UnknownTopic
from weir.model.batch import Batch
from weir.wire import device
from weir.wire import messages as m
from weir.wire.device import DeviceOpcode, DeviceReplies, DeviceStream
from weir.wire.trunk import OWN_SESSION, Arrival


def said(session: int, *publishes: bytes, topic: str = "locks", hub: int = 0) -> Arrival:
    """Return what a device says that comes: it goes where its hub's number belongs."""
    frames = device.hello(hub or session, 1, topic, sn=session % 200) + b"".join(publishes)
    hello, published = DeviceStream().receive(frames)
    assert isinstance(hello, device.DeviceHello)
    assert isinstance(published, device.DevicePublishes)
    return Arrival(session, hello, published)


def one_by_one(one: Any, arrivals: list[Arrival]) -> None:
    for arrival in arrivals:
        one.handle(ev.Opened(arrival.session))
        one.handle(ev.Received(arrival.session, [arrival.hello, arrival.publishes]))


def at_once(one: Any, arrivals: list[Arrival]) -> None:
    one.handle(ev.Arrived(arrivals))


def mixed() -> list[Arrival]:
    damaged = bytearray(device.publish(3, b"damaged", 0))
    damaged[-1] ^= 1
    return [
        *(said(n, device.publish(1, b"v%d" % n, 0)) for n in range(100, 130)),
        said(130, device.publish(1, b"a", 0), device.publish(2, b"b", 0), device.publish(1, b"c")),
        said(131, device.publish(1, b"too far", 5)),
        said(132, bytes(damaged), device.publish(3, b"whole", 0)),
        said(133, device.publish(1, b"v100", 0), hub=100),  # the same lock comes again
        said(134, device.publish(1, b"nowhere", 0), topic="none"),
    ]


def played(node: Any, come: Callable[[Any, list[Arrival]], None], shard: int) -> Any:
    """Let all come to a shard; return what each heard, and what each partition holds."""
    node = type(node)(3)
    for number in range(3):
        node.connect(number)
    info = node.answer(0, m.CreateTopic("locks", 4))
    arrivals, one = mixed(), node.all[shard]
    one.raw.update((arrival.session, b"") for arrival in arrivals)
    come(one, arrivals)
    node.settle()
    heard = {arrival.session: one.raw[arrival.session] for arrival in arrivals}
    held = [sorted(values(node, address)) for address in info.addresses]
    for arrival in arrivals:
        one.handle(ev.Closed(arrival.session))
    node.settle()
    assert all(each.shard.budget.used == 0 for each in node.all)
    left = {remote for each in node.all for _, remote in each.guests.values()}
    assert left <= {1, OWN_SESSION}, "no device is left anywhere"
    return heard, held


def values(node: Any, address: m.Address) -> list[bytes]:
    found: list[bytes] = []
    while (got := node.answer(0, m.Fetch(address, len(found), 1 << 20))).batches:
        found += [bytes(value) for batch in got.batches for value in Batch(batch).values()]
    return found


def codes(data: bytes) -> list[tuple[int, int]]:
    return [(reply.opcode, reply.code) for reply in DeviceReplies().receive(data)]


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_devices_that_come_at_once_hear_what_they_would_one_by_one(node: Any, shard: int) -> None:
    heard, held = played(node, at_once, shard)
    alone, held_alone = played(node, one_by_one, shard)
    assert held == held_alone
    assert {n: codes(data) for n, data in heard.items()} == {
        n: codes(data) for n, data in alone.items()
    }
    hello, publish, plain = DeviceOpcode.HELLO, DeviceOpcode.PUBLISH_SEQUENCED, DeviceOpcode.PUBLISH
    assert codes(heard[100]) == [(hello, 0), (publish, 0)]
    assert codes(heard[130]) == [(hello, 0), (publish, 0), (publish, 0), (plain, 0)]
    assert codes(heard[132]) == [(hello, 0), (publish, BadChecksum.code), (publish, 0)]
    assert codes(heard[134])[0] == (hello, UnknownTopic.code)


def test_a_crowd_goes_to_another_shard_in_one_frame(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    there = info.addresses[0].shard
    here = (there + 1) % 3
    one = node.all[here]
    arrivals = [said(n, device.publish(1, b"v", 0)) for n in range(100, 130)]
    one.raw.update((arrival.session, b"") for arrival in arrivals)
    effects = one.shard.take(ev.Arrived(arrivals))
    (passed,) = [effect for effect in effects if isinstance(effect, ef.Pass)]
    assert passed.charged == len(b"".join(passed.buffers))
    one.do(effects)
    one.handle(ev.Received(100, DeviceStream().receive(device.hello(100, 2, "locks"))))
    assert codes(one.raw[100]) == [(DeviceOpcode.HELLO, BadRequest.code)], "one is under way"
    one.raw[100] = b""
    node.settle()
    assert all(codes(one.raw[n]) == [(1, 0), (3, 0)] for n in range(100, 130))
    one.handle(ev.Received(100, DeviceStream().receive(device.hello(100, 2, "locks"))))
    node.settle()
    assert codes(one.raw[100])[2:] == [(DeviceOpcode.HELLO, 0)]


def test_where_memory_is_short_a_crowd_is_told_so_one_by_one(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[info.addresses[0].shard]
    budget = one.shard.budget
    left = budget.limit - 5 * (100 + ROW_BYTES)
    budget.take(left)
    arrivals = [said(n, device.publish(1, b"v" * 100, 0)) for n in range(100, 120)]
    one.raw.update((arrival.session, b"") for arrival in arrivals)
    one.handle(ev.Arrived(arrivals))
    node.settle()
    told = [codes(one.raw[n])[-1][1] for n in range(100, 120)]
    assert told == [0] * 5 + [Overloaded.code] * 15, "there is room for some"
    budget.release(left)
    assert budget.used == 0


def test_a_welcome_waits_for_the_confirm_but_not_long(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[info.addresses[0].shard]
    for session in (100, 101, 102):
        one.raw[session] = b""
    one.handle(ev.Arrived([said(n, device.publish(1, b"v", 0)) for n in (100, 101, 102)]))
    assert not any(one.raw[n] for n in (100, 101, 102)), "nothing is durable yet"
    one.handle(ev.Received(101, DeviceStream().receive(device.frame(DeviceOpcode.PING, 1, b""))))
    assert codes(one.raw[101]) == [(DeviceOpcode.HELLO, 0), (DeviceOpcode.PING, 0)], "in order"
    node.clock.monotonic += TOGETHER_MS - 1
    one.handle(ev.Ticked())
    assert not one.raw[100]
    node.clock.monotonic += 1
    one.handle(ev.Ticked())
    assert codes(one.raw[100]) == [(DeviceOpcode.HELLO, 0)]
    one.handle(ev.Closed(102))
    node.settle()
    assert codes(one.raw[100]) == [(1, 0), (3, 0)], "it is sent once"
