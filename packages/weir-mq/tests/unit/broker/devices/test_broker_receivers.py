"""Devices that receive: notified once, pulled within their bounds, acked after the commit."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.api import events as ev
from weir.broker.devices import receivers, subscriptions
from weir.errors import (
    BadName,
    BadRequest,
    NoHello,
    NotSubscribed,
    Overloaded,
    StaleGrant,
    TooLarge,
    Unavailable,
    UnknownTopic,
)
from weir.model.limits import GRANT_MS_MAX, RETRY_AFTER_MS, WAIT_MS_MAX
from weir.model.topic import Mode
from weir.protocol import device as d
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.protocol.device import (
    ALL_PARTITIONS,
    BY_HUB,
    PULL_BYTES_MIN,
    Delivery,
    DeviceAck,
    DeviceReply,
)
from weir.protocol.device import DeviceOpcode as Op

LEASE_MS = 5_000


NOTIFY = DeviceReply(Op.NOTIFY, 1, 0)


def test_persist_notify_pull_ack(doors: Any) -> None:
    doors.subscribed()
    assert doors.replies() == []
    doors.publish(b"open", b"close")
    assert doors.replies() == [NOTIFY]
    pulled = doors.pull()
    assert (pulled.offsets, pulled.values, pulled.attempts) == ([0, 1], [b"open", b"close"], 1)
    assert doors.ack(pulled) == 0
    assert doors.pull() == Delivery()
    doors.publish(b"again")
    assert doors.replies() == [NOTIFY]


def test_what_lay_there_before_is_notified_at_once(doors: Any) -> None:
    doors.publish(b"early")
    doors.hub()
    replies = doors.ask(d.subscribe(1, "crew", "t"))
    assert replies == [DeviceReply(Op.SUBSCRIBE, 1, 0), NOTIFY]


def test_there_is_one_notify_until_the_device_pulls(doors: Any) -> None:
    doors.subscribed()
    for n in range(5):
        doors.publish(b"%d" % n)
        doors.rig.tick()
    assert doors.replies() == [NOTIFY]
    assert [reply.opcode for reply in doors.ask(d.pull(1, 2))] == [Op.PULL, Op.NOTIFY]
    assert doors.ask() == []
    assert [reply.opcode for reply in doors.ask(d.pull(1, 9))] == [Op.PULL]


def test_an_ack_is_confirmed_after_its_commit(doors: Any) -> None:
    doors.subscribed()
    doors.publish(b"a")
    pulled = doors.pull()
    doors.replies()
    doors.rig.device(50, d.ack(1, 0, pulled.fence, 0, 1))
    assert doors.rig.device_replies[50] == [], "nothing is durable yet"
    (reply,) = doors.replies()
    assert (reply.code, reply.content) == (0, DeviceAck(1, 0, pulled.fence, 0, 1))


def test_what_is_not_acked_comes_again_after_the_lease(doors: Any) -> None:
    doors.subscribed()
    doors.publish(b"a")
    first = doors.pull()
    doors.replies()
    doors.rig.tick(LEASE_MS + 1)
    doors.rig.tick()
    assert doors.replies() == [NOTIFY]
    second = doors.pull()
    assert (second.values, second.attempts) == ([b"a"], 2)
    assert doors.ack(first) == StaleGrant.code, "its lease is over"
    assert doors.ack(second) == 0
    assert doors.ack(second) == 0, "the reply may have been lost: an ack may be repeated"
    assert doors.ack(first) == StaleGrant.code, "it is done, and another grant did it"


def test_a_device_that_goes_leaves_its_messages_to_the_others_at_once(doors: Any) -> None:
    doors.subscribed(50)
    doors.subscribed(51)
    doors.publish(b"a")
    assert (doors.replies(50), doors.replies(51)) == ([NOTIFY], []), "one message wakes one device"
    assert doors.pull(session=50).values == [b"a"]
    doors.rig.handle(ev.Closed(50))
    assert doors.replies(51) == [NOTIFY]
    assert doors.pull(session=51).attempts == 2


def test_a_device_that_does_not_come_holds_nobody_up(doors: Any) -> None:
    doors.subscribed(50)
    doors.subscribed(51)
    doors.publish(b"a")
    doors.rig.tick()
    assert (doors.replies(50), doors.replies(51)) == ([NOTIFY], [NOTIFY])
    assert doors.pull(session=51).values == [b"a"]
    assert doors.pull(session=50) == Delivery()


def test_a_pull_takes_what_fits_and_the_next_goes_on(doors: Any) -> None:
    doors.subscribed()
    doors.publish(*[bytes([n]) * 100 for n in range(10)])
    room = PULL_BYTES_MIN + 100 + 2 * (100 + 12)
    pulled = [doors.pull(9, room) for _ in range(4)]
    assert [list(p.offsets) for p in pulled] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert len({p.fence for p in pulled[:3]}) == 1, "one grant of 9, handed out in three replies"
    assert doors.pull(2) == Delivery()
    assert [doors.ack(p) for p in pulled] == [0] * 4


def test_what_is_left_of_a_grant_whose_lease_ended_is_granted_anew(doors: Any) -> None:
    doors.subscribed()
    doors.publish(bytes(100), bytes(100))
    one = PULL_BYTES_MIN + 100
    first = doors.pull(2, one)
    doors.rig.tick(LEASE_MS + 1)
    again = doors.pull(2, one)
    assert (list(first.offsets), list(again.offsets)) == ([0], [0])
    assert (again.attempts, again.fence > first.fence) == (2, True)


def test_a_message_that_does_not_fit_is_numbered_and_acked_to_be_skipped(doors: Any) -> None:
    doors.subscribed()
    room = PULL_BYTES_MIN + 500
    doors.publish(b"a", bytes(501), bytes(500))
    assert doors.pull(9, room).offsets == [0]
    (reply,) = [r for r in doors.ask(d.pull(1, 9, room)) if r.opcode == Op.PULL]
    assert reply.code == TooLarge.code
    assert isinstance(reply.content, Delivery)
    assert reply.content.offsets == [1]
    assert reply.content.too_large == 501
    largest = doors.pull(9, room)
    assert (largest.offsets, len(largest.values[0])) == ([2], 500)
    assert [doors.ack(reply.content), doors.ack(largest)] == [0, 0]


def test_all_partitions_are_pulled_in_turn(make_doors: Any) -> None:
    doors = make_doors(3)
    doors.subscribed(partition=ALL_PARTITIONS)
    for partition in (2, 0):
        doors.publish(b"p%d" % partition, partition=partition)
    assert doors.replies() == [NOTIFY]
    pulled = [doors.pull() for _ in range(3)]
    assert [p.values for p in pulled] == [[b"p2"], [b"p0"], []]
    assert [p.partition for p in pulled[:2]] == [2, 0]
    assert [doors.ack(p) for p in pulled[:2]] == [0, 0]


def test_by_hub_is_the_partition_that_hello_chooses(make_doors: Any) -> None:
    doors = make_doors(8)
    doors.hub()
    assert doors.ask(d.subscribe(1, "crew", "t"))[0].code == 0
    doors.ask(d.publish(7, b"mine"))
    assert doors.pull().values == [b"mine"]


def test_pulls_from_the_disk_are_the_same(make_doors: Any) -> None:
    doors = make_doors(cache=0)
    doors.subscribed()
    doors.publish(b"a", b"b")
    assert doors.pull(1).values == [b"a"]
    assert doors.pull(2).values == [b"b"]


def test_a_watch_outlives_its_time(doors: Any) -> None:
    doors.subscribed()
    for _ in range(3):
        doors.rig.tick(WAIT_MS_MAX + 1)
    assert doors.replies() == []
    doors.publish(b"late")
    assert doors.replies() == [NOTIFY]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (d.subscribe(2, "crew", "nowhere"), UnknownTopic.code),
        (d.subscribe(2, "crew", "t", 1), UnknownTopic.code),
        (d.subscribe(2, "no name", "t"), BadName.code),
        (d.subscribe(2, "crew", "t", lease_ms=0), BadRequest.code),
        (d.subscribe(2, "crew", "t", lease_ms=GRANT_MS_MAX + 1), BadRequest.code),
        (d.subscribe(1, "other", "t"), BadRequest.code),
        (d.subscribe(1, "crew", "t", 0, LEASE_MS, 64), 0),
        (d.subscribe(1, "crew", "t", 0, LEASE_MS, 63), BadRequest.code),
        (d.pull(2, 1), NotSubscribed.code),
        (d.pull(1, 0), BadRequest.code),
        (d.pull(1, 1, PULL_BYTES_MIN - 1), BadRequest.code),
        (d.ack(2, 0, 1, 0, 1), NotSubscribed.code),
        (d.ack(1, 1, 1, 0, 1), BadRequest.code),
        (d.ack(1, 0, 1, 0, 2), BadRequest.code),
        (d.ack(1, 0, 1, 0, 1), StaleGrant.code),  # it is done, and not by this grant
    ],
    ids=str,
)
def test_every_refusal_is_a_number(doors: Any, frame: bytes, code: int) -> None:
    doors.subscribed()
    doors.publish(b"a")
    doors.ack(doors.pull())
    doors.replies()
    (reply,) = doors.ask(frame)
    assert reply.code == code


def test_hello_comes_before_a_subscription(doors: Any) -> None:
    (reply,) = doors.ask(d.subscribe(1, "crew", "t"))
    assert (reply.opcode, reply.code) == (Op.SUBSCRIBE, NoHello.code)


def test_one_pull_at_a_time(doors: Any) -> None:
    doors.subscribed()
    doors.publish(b"a")
    doors.replies()
    replies = doors.ask(d.pull(1, 1), d.pull(1, 1))
    assert [reply.code for reply in replies] == [BadRequest.code, 0]


def test_watches_and_requests_are_bounded(doors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "DEVICE_WATCHES_MAX", 2)
    doors.hub()
    frames = [d.subscribe(sn, "crew", "t") for sn in (1, 2, 3)]
    assert [r.code for r in doors.ask(*frames)] == [0, 0, BadRequest.code]
    doors.publish(b"a")
    pulled = doors.pull()
    monkeypatch.setattr(subscriptions, "REQUESTS_PENDING_MAX", 4)
    ack = d.ack(1, 0, pulled.fence, 0, 1)
    codes = [reply.code for reply in doors.ask(*[ack] * 5) if reply.opcode == Op.ACK]
    assert sorted(codes) == [0, 0, Overloaded.code, Overloaded.code, Overloaded.code]


def test_a_node_that_stops_still_takes_acks(doors: Any) -> None:
    doors.subscribed()
    doors.publish(b"a")
    pulled = doors.pull()
    doors.publish(b"b")
    doors.replies()
    doors.rig.handle(ev.Stopping())
    (reply,) = [r for r in doors.ask(d.pull(1, 1)) if r.opcode == Op.PULL]
    assert reply.code == Unavailable.code
    assert doors.ack(pulled) == 0


def test_a_partition_that_cannot_serve_yet_is_not_said_to_be_empty(doors: Any) -> None:
    doors.hub()
    doors.publish(b"a")
    address = doors.info.addresses[0]
    _, partition = doors.rig.shard.topics.partition(address.group)
    leading, partition.leading = partition.leading, None
    codes = [reply.code for reply in doors.ask(d.subscribe(1, "crew", "t"), d.pull(1, 1))]
    assert codes == [0, Unavailable.code]
    partition.leading = leading
    assert doors.pull().values == [b"a"]
    doors.rig.tick()
    assert doors.replies() == []


def test_who_subscribed_to_all_gets_the_partitions_that_are_added(doors: Any) -> None:
    doors.subscribed(partition=ALL_PARTITIONS)
    doors.subscribed(51, partition=0)
    used = doors.rig.shard.budget.used
    doors.info = doors.rig.answer(1, a.AlterTopic("t", partitions=3))
    doors.sequences = [0] * 3
    assert doors.rig.shard.budget.used == used + 2 * subscriptions.WATCH_BYTES
    doors.publish(b"new", partition=2)
    doors.rig.tick(RETRY_AFTER_MS)  # they were not led at once
    assert doors.replies() == [NOTIFY]
    assert doors.replies(51) == []
    pulled = doors.pull()
    assert (pulled.partition, pulled.values) == (2, [b"new"])
    assert doors.ack(pulled) == 0
    doors.rig.handle(ev.Closed(50))
    doors.rig.handle(ev.Closed(51))
    assert doors.rig.shard.budget.used == 0


@pytest.mark.parametrize("what", ["DEVICE_WATCHES_MAX", "_SHARE"])
def test_a_subscription_that_cannot_have_new_partitions_ends(
    doors: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    doors.subscribed(partition=ALL_PARTITIONS)
    if what == "_SHARE":
        monkeypatch.setattr(subscriptions, what, 1 << 30)
    else:
        monkeypatch.setattr(receivers, what, 2)
    doors.rig.answer(1, a.AlterTopic("t", partitions=3))
    assert doors.replies() == [DeviceReply(Op.NOTIFY, 1, Overloaded.code)]
    assert doors.rig.shard.budget.used == 0


def test_a_hub_whose_place_has_ended_gets_what_is_left_there_and_the_new_one(
    make_doors: Any,
) -> None:
    doors = make_doors(4)
    topic = doors.rig.shard.topics.named("t")
    session = next(hub for hub in range(50, 99) if topic.partition_of_hub(hub))
    home = topic.partition_of_hub(session)
    doors.publish(b"left", partition=home)
    doors.rig.answer(1, a.EndPartition("t", home))
    place = doors.rig.shard.topics.named("t").partition_of_hub(session)
    assert place != home
    doors.subscribed(session, partition=BY_HUB)
    doors.publish(b"new", partition=place)
    doors.replies(session)
    found = [doors.pull(session=session) for _ in range(2)]
    assert {(one.partition, *one.values) for one in found} == {(home, b"left"), (place, b"new")}


@pytest.mark.parametrize("mode", [Mode.KEYED, Mode.ORDERED])
def test_a_cluster_of_another_mode_ends_the_subscription_whatever_it_watches(
    make_doors: Any, mode: Mode
) -> None:
    """Partition 0 knows of the mode; in the other one nothing was granted yet."""
    doors = make_doors(partitions=2)
    doors.rig.answer(1, m.OpenCluster(doors.info.addresses[0], "crew", mode))
    doors.hub()
    doors.publish(b"a", partition=1)
    told = doors.ask(d.subscribe(1, "crew", "t", 1))
    assert [(one.opcode, one.code) for one in told] == [
        (Op.SUBSCRIBE, 0),
        (Op.NOTIFY, BadRequest.code),
    ]
    (reply,) = doors.ask(d.pull(1, 1))
    assert reply.code == NotSubscribed.code
    pull = m.Pull(doors.info.addresses[1], "crew", 1, 1 << 20, 0, 5_000, mode)
    assert doors.rig.answer(1, pull).next_offset == 1


def test_nothing_is_pulled_before_partition_0_has_answered(make_doors: Any) -> None:
    doors = make_doors(partitions=2)
    doors.hub()
    doors.publish(b"a", partition=1)
    _, home = doors.rig.shard.topics.partition(doors.info.addresses[0].group)
    leading, home.leading = home.leading, None
    codes = [reply.code for reply in doors.ask(d.subscribe(1, "crew", "t", 1), d.pull(1, 1))]
    assert codes == [0, Unavailable.code]
    home.leading = leading
    doors.rig.tick(RETRY_AFTER_MS)
    assert doors.replies() == [NOTIFY]
    assert doors.pull().values == [b"a"]
