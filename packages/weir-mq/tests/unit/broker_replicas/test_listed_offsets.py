"""One request lists topics with the offsets of all partitions, whoever leads them."""

from __future__ import annotations

from typing import Any

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.runtime.session import SHARD
from weir.model.ids import place_of
from weir.protocol.client import messages as m
from weir.protocol.client.codec import ClientStream, encode_request


def offsets(reply: Any) -> dict[int, int]:
    assert isinstance(reply, m.OffsetList), reply
    return {group: end for group, _, end in reply.offsets}


def test_every_node_tells_what_all_nodes_lead(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(partitions=3), trio.producer()
    trio.run(1_000)
    groups = [address.group for address in info.addresses]
    for number, group in enumerate(groups):
        trio.told(produce(info, grant, 0, *[b"x"] * number, b"y", partition=number), group)
    for node in trio.live():
        reply = trio.answer(node, m.ListOffsets(wait_ms=1_000))
        assert [one.name for one in reply.topics] == ["t"]
        assert offsets(reply) == dict(zip(groups, (1, 2, 3), strict=True))
        assert len(reply.offsets) == 3


def test_a_partition_that_nobody_leads_is_left_out_when_time_is_up(trio: Any) -> None:
    silent = trio.topic("silent", replicas=1).addresses[0].group
    gone = trio.leader(silent)
    led = trio.topic("led").addresses[0].group
    gone.kill()
    trio.leader()
    trio.leader(led)
    trio.run(1_000)
    node = trio.live()[0]
    asked = trio.clock.monotonic
    reply = trio.answer(node, m.ListOffsets(wait_ms=1_000))
    assert offsets(reply) == {led: 0}
    assert [one.name for one in reply.topics] == ["led", "silent"]
    assert 1_000 <= trio.clock.monotonic - asked <= 1_200


def test_an_answer_that_is_lost_is_asked_for_again(trio: Any) -> None:
    group = trio.topic().addresses[0].group
    leader = trio.leader(group)
    node = next(one for one in trio.live() if one is not leader)
    trio.isolate(leader.id)
    correlation = node.ask(m.ListOffsets(wait_ms=10_000))
    trio.run(200)
    trio.heal()
    reply = trio.until(lambda: node.reply_to(correlation))
    assert offsets(reply) == {group: 0}


def test_a_node_that_another_asks_asks_nobody_else(trio: Any) -> None:
    group = trio.topic().addresses[0].group
    leader = trio.leader(group)
    node, other = (one for one in trio.live() if one is not leader)
    session = 1 << 40
    node.handle(ev.Opened(session, SHARD, place_of(other.id, 0)))
    frame = b"".join(encode_request(m.ListOffsets(wait_ms=1_000, groups=[group]), 1))
    received = ev.Received(session, ClientStream().receive(frame))
    assert not [one for one in node.shard.handle(received) if isinstance(one, ef.Pass)]
