"""Topics whose messages of devices have a key: keyed clusters keep the order of each hub."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import catalog_of
from weir.errors import BadRequest, LevelTooLow, TopicExists
from weir.model.batch import split
from weir.model.topic import Mode, key_of_hub
from weir.protocol import device as d
from weir.protocol.client import messages as m

HUBS, EACH, CONSUMERS = range(3), 8, range(2, 6)
Seen = list[tuple[int, int]]


def created(rig: Any, key_by: str = "device") -> m.TopicInfo:
    rig.connect(1)
    info = rig.answer(1, m.CreateTopic("t", key_by=key_by))
    assert isinstance(info, m.TopicInfo)
    assert info.key_by == key_by
    return info


def publish(rig: Any) -> None:
    """Let each hub send its messages, one after the other, all hubs at once."""
    for hub in HUBS:
        rig.device(50 + hub, d.hello(hub, 1, "t"))
    for number in range(EACH):
        for hub in HUBS:
            rig.device(50 + hub, d.publish(1, b"%d:%d" % (hub, number), number))
    rig.settle()
    assert all(not reply.code for hub in HUBS for reply in rig.device_replies[50 + hub])


def granted(reply: m.Granted) -> Seen:
    """Return hub and number of each message of a grant."""
    runs, found = reply.runs or ((reply.offset, reply.next_offset),), Seen()
    for buffer in reply.batches:
        for batch in split(buffer, reply.address.group):
            for at, value in enumerate(batch.values(), batch.header.first_offset):
                if any(first <= at < behind for first, behind in runs):
                    hub, number = bytes(value).split(b":")
                    found.append((int(hub), int(number)))
    return found


def consumed(rig: Any, info: m.TopicInfo) -> list[Seen]:
    """Consume all by several, who ack in any order; return the grants in the order they came."""
    dice, home = random.Random(7), info.addresses[0]
    out: dict[int, m.Granted] = {}
    grants: list[Seen] = []
    for session in CONSUMERS:
        rig.connect(session)
    while sum(map(len, grants)) < len(HUBS) * EACH or out:
        for session in CONSUMERS:
            if session not in out:
                number = rig.ask(session, m.Pull(home, "crew", 2, 1 << 20, 0, 30_000, Mode.KEYED))
                rig.settle()
                reply = dict(rig.replies[session])[number]
                if reply.fence:
                    out[session] = reply
                    grants.append(granted(reply))
        held = [{hub for hub, _ in granted(reply)} for reply in out.values()]
        assert sum(map(len, held)) == len(set().union(*held)), "two have messages of one hub"
        assert out, "nothing is granted any more"
        session = dice.choice(sorted(out))
        reply = out.pop(session)
        runs = reply.runs or ((reply.offset, reply.next_offset),)
        rig.answer(session, m.Ack(home, "crew", [(reply.fence, *run) for run in runs]))
    return grants


def test_a_keyed_cluster_keeps_the_order_of_each_hub(rig: Any) -> None:
    info = created(rig)
    publish(rig)
    grants = consumed(rig, info)
    for hub in HUBS:
        numbers = [n for seen in grants for from_hub, n in seen if from_hub == hub]
        assert numbers == list(range(EACH))
    assert len(grants) > len(CONSUMERS)


@pytest.mark.parametrize("key_by", ["", "device"])
def test_the_key_is_the_number_of_the_hub(rig: Any, key_by: str) -> None:
    info = created(rig, key_by)
    publish(rig)
    fetched = rig.answer(1, m.Fetch(info.addresses[0], 0, 1 << 20))
    seen = 0
    for buffer in fetched.batches:
        for batch in split(buffer, info.addresses[0].group):
            hubs = [int(bytes(value).split(b":")[0]) for value in batch.values()]
            wanted = [key_of_hub(hub) if key_by else None for hub in hubs]
            assert list(batch.keys()) == wanted
            seen += len(hubs)
    assert seen == len(HUBS) * EACH
    assert key_of_hub(258) == b"\2\1\0\0\0\0\0\0", "as DEVICE.md says"


def test_it_stays_over_a_restart_and_is_compared(rig: Any) -> None:
    created(rig)
    rig.shard.writers[0].checkpoints.save()
    rig.tick()
    rig.settle()
    rig.disk.crash()
    rig.boot()
    rig.connect(1)
    assert rig.answer(1, m.DescribeTopic("t")).key_by == "device"
    assert rig.answer(1, m.CreateTopic("t")).key_by == "device", "it was not asked for"
    rig.topic(1, "u")
    refused = rig.answer(1, m.CreateTopic("u", key_by="device"))
    assert refused.code == TopicExists.code
    assert "exists with 1 partition, order=partition, retention" in refused.message
    refused = rig.answer(1, m.CreateTopic("t", 2))
    assert "key-by=device" in refused.message


def test_what_is_no_key_is_refused(rig: Any) -> None:
    rig.connect(1)
    refused = rig.answer(1, m.CreateTopic("t", key_by="hub"))
    assert refused.code == BadRequest.code
    assert "give 'device'" in refused.message


def test_nodes_of_the_release_before_could_not_read_it(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(level=2)
    rig.connect(1)
    refused = rig.answer(1, m.CreateTopic("t", key_by="device"))
    assert refused.code == LevelTooLow.code
    assert catalog_of(rig.shard).find("default", "t") is None
