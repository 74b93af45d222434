"""Devices at the door: hello, what they may say again, and how long they are remembered."""

from __future__ import annotations

from typing import Any

import pytest

from weir.broker.api import events as ev
from weir.broker.api.effects import Hangup
from weir.broker.produce import batcher
from weir.broker.produce.batcher import DUPLICATE
from weir.errors import BadRequest, ErasedBoot, NoHello, Overloaded, SequenceReused, UnknownTopic
from weir.model.limits import DEDUPE_HORIZON_MS, DEVICE_WINDOW, MAX_AHEAD_MS, RETRY_AFTER_MS
from weir.order.clock import milliseconds_of
from weir.protocol import device as d
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

HUB = 7
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def hub(rig: Any) -> Any:
    """A node with topics t and u, and a hub in session 50 that has said hello to t."""
    rig.connect()
    rig.topic(1, "t")
    rig.topic(1, "u")
    rig.device(50, d.hello(HUB, 1, "t"))
    assert rig.device_replies[50].pop().code == 0
    return rig


def answers(rig: Any, *frames: bytes, session: int = 50) -> list[tuple[int, int]]:
    """Send frames, settle, return code and offset of each reply."""
    rig.device(session, *frames)
    rig.settle()
    replies = [(reply.code, reply.offset) for reply in rig.device_replies[session]]
    rig.device_replies[session].clear()
    return replies


def state(rig: Any, topic: str) -> Any:
    address = rig.answer(1, m.DescribeTopic(topic)).addresses[0]
    return rig.shard.topics.partition(address.group)[1].state


def restart(rig: Any, checkpoint: bool) -> None:
    if checkpoint:
        rig.shard.writers[0].checkpoints.save()
    rig.tick()
    rig.settle()
    rig.disk.crash()
    rig.boot()
    rig.connect()
    rig.device(50, d.hello(HUB, 1, "t"))
    rig.settle()
    assert rig.device_replies[50].pop().code == 0


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_hub_keeps_its_place_when_a_topic_gets_more_partitions(
    hub: Any, checkpoint: bool
) -> None:
    publish = d.publish(0, b"OPEN DOOR 3", 0)
    assert answers(hub, publish) == [(0, 0)]
    hub.answer(1, a.AlterTopic("t", partitions=64))
    for _ in range(2):
        replies = answers(hub, d.hello(HUB, 1, "t"), publish, d.publish(0, b"next", 1))
        assert [code for code, _ in replies] == [0, 0, 0]
        restart(hub, checkpoint)
    assert state(hub, "t").next_offset == 2
    topic = hub.shard.topics.catalog.find("default", "t")
    assert {topic.partition_of_hub(number) for number in range(99)} == {0}


def test_other_bytes_under_a_used_sequence_are_refused(hub: Any) -> None:
    """Counterexample 16: code 0 would say that the alarm is safe."""
    assert answers(hub, d.publish(1, b"door opened", 0)) == [(0, 0)]
    for checkpoint in (False, True):
        assert answers(hub, d.publish(1, b"ALARM", 0)) == [(SequenceReused.code, 0)]
        assert answers(hub, d.publish(1, b"door opened", 0)) == [(0, DUPLICATE)]
        restart(hub, checkpoint)
    assert state(hub, "t").next_offset == 1


def test_other_bytes_are_refused_while_the_first_are_under_way(hub: Any) -> None:
    first, other, again = (d.publish(1, value, 0) for value in (b"a", b"b", b"a"))
    assert answers(hub, first, other, again) == [(0, 0), (SequenceReused.code, 0), (0, DUPLICATE)]
    hub.device(50, d.publish(1, b"c", 1))
    assert answers(hub, d.publish(1, b"d", 1)) == [(0, 1), (SequenceReused.code, 0)]


def test_no_refusal_overtakes_the_confirms_under_way(hub: Any) -> None:
    """A publish without a sequence knows its reply by its place alone."""
    topic = hub.shard.topics.named("t")
    hub.device(50, d.publish(1, b"a"))
    (taken,) = hub.shard.topics.take(topic)  # as when its topic is deleted
    hub.device(50, d.publish(1, b"b"))
    assert hub.device_replies[50] == []
    assert [effect.session for effect in hub.others if isinstance(effect, Hangup)] == [50]
    hub.settle()
    assert [(r.code, r.offset) for r in hub.device_replies[50]] == [(0, 0)]
    hub.shard.topics.add(taken)


def test_the_window_is_answered_again_and_what_is_older_refused(hub: Any) -> None:
    """A hub that lost its connection sends again all that is not confirmed: a whole window."""
    frames = [d.publish(1, b"%d" % n, n) for n in range(DEVICE_WINDOW + 2)]
    assert [code for code, _ in answers(hub, *frames)] == [0] * (DEVICE_WINDOW + 2)
    for checkpoint in (False, True):
        refused = [(SequenceReused.code, 0)] * 2
        kept = [(0, DUPLICATE)] * DEVICE_WINDOW
        assert answers(hub, *frames) == [*refused, *kept]
        assert answers(hub, d.publish(1, b"x", 4)) == [(SequenceReused.code, 0)]
        restart(hub, checkpoint)


def test_values_are_told_apart_in_whichever_batch_of_an_entry_they_came(hub: Any) -> None:
    """Devices and clients that publish during one flush share an entry."""
    info = hub.answer(1, m.DescribeTopic("t"))
    grant = hub.answer(1, m.OpenProducer())
    hub.device(50, d.publish(9, b"starts a flush"))
    hub.ask(1, hub.batch(info, grant, 0, b"of a client"))
    assert answers(hub, d.publish(1, b"a", 0), d.publish(2, b"b", 0), d.publish(2, b"c")) == [
        (0, 0), (0, 2), (0, 3), (0, 4)
    ]  # fmt: skip
    restart(hub, checkpoint=False)
    assert answers(hub, d.publish(1, b"a", 0), d.publish(2, b"b", 0)) == [(0, DUPLICATE)] * 2
    assert answers(hub, d.publish(1, b"b", 0)) == [(SequenceReused.code, 0)]


def test_behind_the_last_sequence_only_a_new_boot_goes_on(hub: Any) -> None:
    state(hub, "t").origins.record(HUB, 1, 1, 0xFFFFFFFD, 5, 0)
    assert answers(hub, d.publish(1, b"last", 0xFFFFFFFE)) == [(0, 0)]
    assert answers(hub, d.publish(1, b"wrapped", 0)) == [(SequenceReused.code, 0)]
    body = (0xFFFFFFFF).to_bytes(4, "big") + b"reserved"
    assert answers(hub, d.frame(d.DeviceOpcode.PUBLISH_SEQUENCED, 1, body)) == [
        (BadRequest.code, 0)
    ]
    assert answers(hub, d.hello(HUB, 2, "t"), d.publish(1, b"new", 0))[1:] == [(0, 1)]


def test_a_quiet_device_is_never_forgotten(hub: Any) -> None:
    once = d.publish(2, b"once", 0)
    assert answers(hub, d.publish(1, b"a", 0), once) == [(0, 0), (0, 1)]
    for _ in range(3):
        hub.time.pass_ms(DEDUPE_HORIZON_MS + DAY_MS)
        answers(hub, d.hello(HUB + 1, 1, "t"), d.publish(1, b"time passes"), session=51)
    assert answers(hub, once, d.publish(1, b"b", 1)) == [(0, DUPLICATE), (0, 5)]


def test_one_device_too_many_is_refused_and_the_known_go_on(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "ORIGINS_PER_PARTITION_MAX", 3)
    full = (Overloaded.code, RETRY_AFTER_MS)
    hub.device(50, d.publish(1, b"a", 0))  # in flight while the next are judged
    firsts = [d.publish(sn, b"a", 0) for sn in (2, 3, 4)]
    assert answers(hub, *firsts) == [(0, 0), (0, 1), (0, 2), full]
    assert answers(hub, d.publish(4, b"a", 0), d.publish(3, b"b", 1)) == [full, (0, 3)]
    assert answers(hub, d.publish(4, b"no sequence, no memory")) == [(0, 4)]
    assert len(state(hub, "t").origins) == 3


def test_hello_comes_first(rig: Any) -> None:
    rig.topic(rig.connect())
    ping = d.frame(d.DeviceOpcode.PING, 3, b"")
    rig.device(50, ping, d.publish(1, b"a"))
    rig.device(50, d.hello(HUB, 1, "nowhere"), ping)
    rig.device(50, d.hello(HUB, 1, "t"), ping)
    codes = [(reply.opcode, reply.code) for reply in rig.device_replies[50]]
    no = NoHello.code
    assert codes == [(4, no), (2, no), (1, UnknownTopic.code), (4, no), (1, 0), (4, 0)]


@pytest.mark.parametrize("hello", [d.hello(HUB, 1, "u"), d.hello(8, 1, "t"), d.hello(HUB, 2, "t")])
def test_a_later_hello_changes_nothing_while_publishes_are_in_flight(
    hub: Any, hello: bytes
) -> None:
    hub.device(50, d.publish(1, b"a"), hello, d.hello(HUB, 1, "t"), d.publish(2, b"b"))
    hub.settle()
    replies = [(reply.opcode, reply.code) for reply in hub.device_replies[50]]
    assert replies == [(1, BadRequest.code), (1, 0), (2, 0), (2, 0)]
    assert (state(hub, "t").next_offset, state(hub, "u").next_offset) == (2, 0)
    hub.device_replies[50].clear()
    assert answers(hub, hello)[0][0] == 0, "all is confirmed now"


def test_refused_publishes_are_not_in_flight(hub: Any) -> None:
    bad = d.publish(1, b"a")
    assert answers(hub, bad[:-1] + bytes((bad[-1] ^ 1,)), d.publish(1, b"gap", 5))[0][0] != 0
    assert answers(hub, d.hello(HUB, 1, "u")) == [(0, 0)]


def test_what_a_hub_was_told_goes_with_it_to_the_next_topic(hub: Any) -> None:
    """Causal: the second topic stamps above what the first one told."""
    hub.time.wall += MAX_AHEAD_MS // 2
    answers(hub, d.publish(1, b"a"))
    hub.time.wall -= MAX_AHEAD_MS // 2
    answers(hub, d.hello(HUB, 1, "u"), d.publish(1, b"b"))
    assert state(hub, "u").last_stamp > state(hub, "t").last_stamp


def test_a_bad_clock_poisons_one_partition_and_closes_none(hub: Any) -> None:
    right = hub.time.wall
    hub.time.wall += 30 * DAY_MS
    answers(hub, d.publish(1, b"stamped a month ahead"))
    hub.time.wall = right
    answers(hub, d.hello(HUB, 1, "u"), d.publish(1, b"b"))
    assert milliseconds_of(state(hub, "u").last_stamp) <= right + MAX_AHEAD_MS
    for _ in range(2):
        for name in ("t", "u"):
            info = hub.answer(1, m.DescribeTopic(name))
            grant = hub.answer(1, m.OpenProducer())
            assert hub.answer(1, hub.batch(info, grant, 0, b"new")).offset >= 1
        hub.time.pass_ms(DEDUPE_HORIZON_MS + DAY_MS)
        hub.handle(ev.Ticked())
        hub.boot()
        hub.connect()


def test_the_boot_of_erased_flash_fences_nobody(hub: Any) -> None:
    hub.device(51, d.hello(9, 0xFFFFFFFF, "t"), d.publish(0, b"erased", 0))
    hub.settle()
    assert [reply.code for reply in hub.device_replies[51]] == [ErasedBoot.code, NoHello.code]
    # Neither does a later hello, and what this connection is stays as it was.
    assert answers(hub, d.hello(HUB, 0xFFFFFFFF, "t")) == [(ErasedBoot.code, 0)]
    assert answers(hub, d.publish(0, b"mine", 0)) == [(0, 0)]
    assert answers(hub, d.hello(9, 0xFFFFFFFE, "t"), d.publish(0, b"flash", 0), session=52) == [
        (0, 0),
        (0, 1),
    ]


def test_a_reboot_that_repeats_itself_is_told_that_nothing_is_new(hub: Any) -> None:
    """A hub whose boot count did not rise must not take its new messages for stored."""
    assert answers(hub, d.publish(1, b"open", 0)) == [(0, 0)]
    again = answers(hub, d.hello(HUB, 1, "t"), d.publish(1, b"open", 0), session=51)
    assert again[-1] == (0, DUPLICATE)
    raised = answers(hub, d.hello(HUB, 2, "t"), d.publish(1, b"open", 0), session=52)
    assert raised[-1] == (0, 1)
