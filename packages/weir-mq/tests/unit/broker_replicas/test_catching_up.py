"""A node that was away gets what it missed: by entries, or by a snapshot and what is kept."""

from __future__ import annotations

import random
from typing import Any

from weir.errors import NotLeader
from weir.model.ids import REGISTRY_GROUP
from weir.model.topic import SettingsChange
from weir.protocol.client import messages as m


def publish(trio: Any, produce: Any, info: Any, grant: Any, first: int, count: int) -> list[bytes]:
    """Publish messages of 1,000 bytes, each an entry of its own; return them."""
    values = [b"%06d" % sequence + bytes(994) for sequence in range(first, first + count)]
    for sequence, value in enumerate(values, first):
        reply = trio.told(produce(info, grant, sequence, value), info.addresses[0].group)
        assert isinstance(reply, m.Confirm), reply
    return values


def checkpoint(trio: Any) -> None:
    """Let every node save a checkpoint, and let go of what nobody needs."""
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(200)


def other(trio: Any, group: int) -> Any:
    """Return a node that leads neither a group nor the registry, to be away for a while."""
    leaders = {trio.leader(group).id, trio.leader().id}
    return next(node for node in trio.live() if node.id not in leaders)


def test_a_follower_that_was_away_is_sent_the_entries_that_it_misses(
    trio: Any, produce: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    before = publish(trio, produce, info, grant, 0, 3)
    away = other(trio, group)
    away.kill()
    # Far more than the leader's cache holds: it has to read what is missing.
    missed = publish(trio, produce, info, grant, 3, 150)
    checkpoint(trio)
    base = trio.leader(group).group(group).log.reader.base(group)
    assert base[0] <= 1, "nothing that is kept is gone with a checkpoint"
    away.boot()
    assert trio.same_everywhere(group) == before + missed
    assert away.group(group).log.reader.base(group) == (0, 0), "its own log is what it was"


def test_a_snapshot_takes_the_place_of_what_is_gone_and_the_rest_is_filled_in(
    make_trio: Any, produce: Any, small: Any
) -> None:
    trio = make_trio(replication=small, retention_every_ms=1)
    settings = SettingsChange(retention_bytes=20_000)
    info, grant = trio.topic(settings=settings), trio.producer()
    group = info.addresses[0].group
    publish(trio, produce, info, grant, 0, 3)
    away = other(trio, group)
    away.kill()
    publish(trio, produce, info, grant, 3, 100)
    trio.run(500)
    checkpoint(trio)
    publish(trio, produce, info, grant, 103, 5)
    leader = trio.leader(group).group(group)
    assert leader.log.reader.base(group)[0] > 50
    away.boot()
    kept = trio.same_everywhere(group)
    assert 18 <= len(kept) < 40
    here = away.group(group)
    assert here.log.reader.base(group)[0] > 50
    # It holds all that the leader keeps, and may lead.
    for node in trio.live():
        if node is not away:
            node.kill()
            break
    assert trio.told(produce(info, grant, 108, b"on"), group).offset == 108
    away.kill()
    away.boot()
    assert trio.same_everywhere(group)[-1] == b"on"


def test_who_is_being_filled_in_sends_readers_to_who_has_all(
    make_trio: Any, produce: Any, small: Any
) -> None:
    """What a snapshot covers and has yet to come is not lost."""
    trio = make_trio(replication=small, retention_every_ms=1)
    info, grant = trio.topic(settings=SettingsChange(retention_bytes=20_000)), trio.producer()
    group = info.addresses[0].group
    publish(trio, produce, info, grant, 0, 3)
    away = other(trio, group)
    away.kill()
    publish(trio, produce, info, grant, 3, 100)
    trio.run(500)
    checkpoint(trio)
    away.boot()
    dice, asked, was_filling = random.Random(1), list[int](), False
    for step in range(6_000):
        trio.one(dice)
        trio.trunks.carry()
        if step % 20 == 0:
            trio.pass_ms(10)
        here = away.group(group)
        if here is None or not here.node.log.applied or step % 10:
            continue
        is_filling = here.node.log.last_index < here.node.log.applied
        was_filling |= is_filling
        last = here.machine.state.next_offset - 1
        asked.append(away.ask(m.Fetch(info.addresses[0], last, 1 << 20, 0, True)))
        if was_filling and not is_filling:
            break
    trio.settle()
    told = [away.reply_to(number) for number in asked]
    assert told[-1].next_offset == 103
    assert {reply.code for reply in told if isinstance(reply, m.Refusal)} == {NotLeader.code}


def test_the_registry_comes_as_a_snapshot(trio: Any, produce: Any) -> None:
    info = trio.topic()
    away = other(trio, info.addresses[0].group)
    away.kill()
    more = [trio.topic(name) for name in ("u", "v", "w")]
    checkpoint(trio)
    assert trio.leader().group(REGISTRY_GROUP).log.reader.base(REGISTRY_GROUP)[0] > 0
    away.boot()
    trio.until(lambda: all(away.group(one.addresses[0].group) for one in more))
    grant = trio.producer()
    for one in more:
        assert trio.told(produce(one, grant, 0, b"a"), one.addresses[0].group).offset == 0
        assert trio.same_everywhere(one.addresses[0].group) == [b"a"]


def test_all_restart_at_once_with_what_was_confirmed(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = publish(trio, produce, info, grant, 0, 3)
    for node in trio.live():
        node.kill()
    for node in trio.nodes.values():
        node.boot()
    reply = trio.told(produce(info, grant, 2, values[2]), group)
    assert (reply.offset, reply.duplicate) == (2, True)
    values += publish(trio, produce, info, grant, 3, 2)
    assert trio.same_everywhere(group) == values


def test_what_a_leader_alone_has_is_taken_back_and_stays_so_after_a_restart(
    trio: Any, produce: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = publish(trio, produce, info, grant, 0, 2)
    old = trio.leader(group)
    trio.isolate(old.id)
    for sequence in range(2, 6):
        old.ask(produce(info, grant, sequence, b"never%d" % sequence))
    trio.settle()
    assert old.group(group).log.reader.stored(group, old.group(group).node.log.last_index)
    old.kill()
    values += publish(trio, produce, info, grant, 2, 3)
    trio.heal()
    old.boot()
    assert trio.same_everywhere(group) == values
    old.kill()
    old.boot()
    assert trio.same_everywhere(group) == values
