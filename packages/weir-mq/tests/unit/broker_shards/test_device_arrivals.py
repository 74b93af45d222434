"""Devices that come at once are served as they would be one by one, wherever they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.access import close_access
from rigs.shards import forwarder_of
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.forwarding.forwarder import Routes
from weir.broker.runtime.outbox import TOGETHER_MS
from weir.broker.runtime.session import ROW_BYTES
from weir.errors import BadChecksum, BadRequest, NotLeader, Overloaded, UnknownTopic
from weir.model.batch import Batch
from weir.model.ids import place_of
from weir.protocol import device as device
from weir.protocol.client import messages as m
from weir.protocol.device import DeviceOpcode, DeviceReplies, DeviceStream
from weir.protocol.trunk import OWN_SESSION, Arrival, Kind, TrunkStream

HELLO, PUBLISH = DeviceOpcode.HELLO, DeviceOpcode.PUBLISH_SEQUENCED


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


def says(one: Any, session: int, *frames: bytes) -> None:
    one.handle(ev.Received(session, DeviceStream().receive(b"".join(frames))))


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
    effects = one.shard.step(ev.Arrived(arrivals))
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


@pytest.mark.parametrize("come", [one_by_one, at_once])
def test_a_crowd_gets_no_more_of_the_budget_than_its_devices_would(node: Any, come: Any) -> None:
    """While little is in use anything passes, but only the first of many."""
    node = type(node)(3, budget=8 * 1024)
    node.connect(0)
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[info.addresses[0].shard]
    budget = one.shard.budget
    arrivals = [said(n, device.publish(1, bytes(448), 0)) for n in range(100, 128)]
    one.raw.update((arrival.session, b"") for arrival in arrivals)
    come(one, arrivals)
    assert 0 < budget.used <= budget.limit


def test_who_may_not_publish_is_not_let_in_with_the_others(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    close_access([one.shard for one in node.all])
    for one in node.all:
        one.raw[100] = b""
        one.handle(ev.Arrived([said(100, device.publish(1, b"v", 0))]))
        node.settle()
        assert codes(one.raw[100])[0] == (HELLO, UnknownTopic.code)
        assert [code for _, code in codes(one.raw[100])].count(0) == 0
    close_access([one.shard for one in node.all], "open")
    assert values(node, info.addresses[0]) == []


@pytest.mark.parametrize("away", [0, 1])
def test_who_came_with_others_goes_on_where_it_is_seated(node: Any, away: int) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[(info.addresses[0].shard + away) % 3]
    one.raw[100] = b""
    one.handle(ev.Arrived([said(100, device.publish(1, b"a", 0))]))
    node.settle()
    says(one, 100, device.publish(1, b"b", 1))
    node.settle()
    assert codes(one.raw[100]) == [(HELLO, 0), (PUBLISH, 0), (PUBLISH, 0)]
    assert values(node, info.addresses[0]) == [b"a", b"b"]


def test_a_welcome_waits_only_if_publishes_follow_it(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[info.addresses[0].shard]
    for session in (100, 101):
        one.raw[session] = b""
        one.handle(ev.Opened(session))
    hello = device.hello(1, 1, "locks")
    says(one, 100, hello, device.publish(1, b"v", 0))
    assert one.raw[100] == b""
    says(one, 101, hello)
    assert codes(one.raw[101]) == [(HELLO, 0)]
    node.settle()
    assert codes(one.raw[100]) == [(HELLO, 0), (PUBLISH, 0)]


def test_who_is_let_go_or_left_by_a_shard_that_stops_hears_its_welcome(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[info.addresses[0].shard]
    one.raw.update({100: b"", 101: b"", 102: b""})
    one.handle(ev.Arrived([said(n, device.publish(1, b"v", 0)) for n in (100, 101)]))
    welcomed, hung_up = one.shard.step(ev.LetGo(100, "it breaks its dialect"))
    assert codes(b"".join(welcomed.buffers)) == [(HELLO, 0)]
    assert hung_up == ef.Hangup(100, "it breaks its dialect")
    assert one.raw[101] == b""
    one.do(one.shard.step(ev.Stopping()))
    assert codes(one.raw[101]) == [(HELLO, 0)]
    one.do(one.shard.step(ev.Arrived([said(102, device.publish(1, b"v", 0))])))
    one.do(one.shard.step(ev.Ticked()))
    assert codes(one.raw[102])[0] == (HELLO, 0), "none waits any more"


def passed(effects: list[ef.Effect]) -> list[Any]:
    """Return the frames that go to other shards."""
    found = [effect for effect in effects if isinstance(effect, ef.Pass)]
    return [*TrunkStream().receive(b"".join(b"".join(effect.buffers) for effect in found))]


def test_a_crowd_goes_on_under_the_name_of_who_let_it_in_and_not_for_another_node(
    node: Any,
) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[(info.addresses[0].shard + 1) % 3]
    frames = passed(one.shard.step(ev.Arrived([said(100, device.publish(1, b"v", 0))], "ada")))
    assert [(frame.kind, frame.body[0]) for frame in frames] == [(Kind.ARRIVALS, "ada")]
    forwarder = forwarder_of(one.shard)
    forwarder.opened(place_of(2, 0))
    assert not forwarder.device_batch(
        [said(101, device.publish(1, b"v", 0))], "ada", place_of(2, 0)
    )


def test_what_another_node_passes_on_is_not_passed_to_a_third(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.answer(0, m.CreateTopic("locks", 1))
    asked: list[bool] = []

    def toward(routes: Routes, group: int, foreign: bool = False) -> int:
        asked.append(foreign)
        raise NotLeader("a third node leads", 3)

    monkeypatch.setattr(Routes, "toward", toward)
    one = node.all[0]
    for number, place in enumerate((place_of(2, 0), 1), 100):
        one.raw[number] = b""
        one.handle(ev.Arrived([said(number, device.publish(1, b"v", 0))], "ada", place))
    assert asked == [True, True, False, False], "as a crowd and by itself"


def test_a_large_crowd_goes_on_one_by_one(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[(info.addresses[0].shard + 1) % 3]
    arrivals = [said(n, device.publish(1, bytes(60_000), 0)) for n in range(100, 105)]
    frames = passed(one.shard.step(ev.Arrived(arrivals)))
    assert [frame.kind for frame in frames] == [Kind.OPENED, Kind.DEVICE, Kind.DEVICE] * 5


def test_what_is_large_of_another_shards_answers_is_charged(node: Any) -> None:
    info = node.answer(0, m.CreateTopic("locks", 1))
    one = node.all[(info.addresses[0].shard + 1) % 3]
    seen: list[ef.Effect] = []
    do, one.raw[100], one.raw[101] = one.do, b"", b""
    one.do = lambda effects: (seen.extend(effects), do(effects))
    many = [device.publish(1, b"v", n) for n in range(400)]
    one.handle(ev.Arrived([said(100, *many), said(101, device.publish(1, b"v", 0))]))
    node.settle()
    sent = [e for e in seen if isinstance(e, ef.Send) and e.session in (100, 101)]
    assert {e.session: e.charged for e in sent} == {100: len(one.raw[100]), 101: 0}
    assert len(codes(one.raw[100])) == 401
