"""A node whose log is damaged takes back from the others what it lost, as another voter."""

from __future__ import annotations

from typing import Any

import pytest

from weir.model.ids import REGISTRY_GROUP, incarnation_of, node_of, voter_of
from weir.protocol.client import messages as m
from weir.storage.errors import LogDamaged
from weir.storage.group_scan import Doubts


def segments(node: Any) -> list[str]:
    return sorted(name for name in node.disk.names() if name.startswith("segment"))


def spoil(node: Any, tail: int) -> None:
    """Spoil a stretch in the middle of what a node's log holds: nobody knows whose that was."""
    for at in range(tail // 2, tail // 2 + 1_500):
        node.disk.flip(segments(node)[0], at)


def damaged(node: Any) -> list[int]:
    return [id for id, group in node.shard.writers[0].groups.items() if group.damage is not None]


def heals(trio: Any, node: Any, groups: list[int]) -> None:
    """Return once a node has a part in all groups again, and each is where it is wanted."""

    def healed() -> bool:
        catalog = node.shard.topics.catalog
        found = [node.group(group) for group in groups]
        return (
            not damaged(node)
            and all(one is not None and one.is_current for one in found)
            and not catalog.nodes.unsettled
            and all(node.id in map(node_of, catalog.voters(group)) for group in groups)
        )

    trio.until(healed, "it never came back")


def comes_again(trio: Any, node: Any, group: int) -> None:
    """Return once a node has a part in a group as another voter."""

    def is_another() -> bool:
        found = node.group(group)
        return found is not None and found.voter == voter_of(node.id, 1)

    trio.until(is_another, "it stays who it was")
    heals(trio, node, [REGISTRY_GROUP, group])


def fill(trio: Any, produce: Any, info: Any, grant: Any, first: int, count: int) -> list[bytes]:
    values = [bytes([65 + n % 26]) * 300 for n in range(first, first + count)]
    for number, value in enumerate(values, first):
        confirm = trio.told(produce(info, grant, number, value), info.addresses[0].group)
        assert confirm.offset == number
    return values


@pytest.mark.parametrize("tenth", range(1, 10))
def test_a_flipped_bit_anywhere_is_mended_by_the_others(
    trio: Any, produce: Any, tenth: int
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 30)
    victim = next(node for node in trio.live() if node is not trio.leader(group))
    tail = victim.shard.writers[0].log.tail
    victim.kill()
    victim.disk.flip(segments(victim)[0], tail * tenth // 10)
    victim.boot()
    heals(trio, victim, [REGISTRY_GROUP, group])
    values += fill(trio, produce, info, grant, 30, 5)
    assert trio.same_everywhere(group) == values


def test_who_comes_back_is_another_voter_and_votes(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 30)
    victim = next(
        node
        for node in trio.live()
        if node not in (trio.leader(group), trio.leader(REGISTRY_GROUP))
    )
    tail = victim.shard.writers[0].log.tail
    victim.kill()
    spoil(victim, tail)
    victim.boot()
    assert set(damaged(victim)) == {REGISTRY_GROUP}  # no other is opened before it is known
    heals(trio, victim, [REGISTRY_GROUP, group])
    again = voter_of(victim.id, 1)
    assert (victim.group(group).voter, victim.group(REGISTRY_GROUP).voter) == (again, again)
    # It starts again as who it is, and its vote counts: one of the others may go.
    victim.kill()
    victim.boot()
    heals(trio, victim, [REGISTRY_GROUP, group])
    assert incarnation_of(victim.group(REGISTRY_GROUP).voter) == 1
    trio.leader(group).kill()
    values += fill(trio, produce, info, grant, 30, 3)
    assert trio.same_everywhere(group) == values


def test_what_may_have_been_superseded_is_not_believed_where_others_know(
    trio: Any, produce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the log doubts is lost here, and comes from the others.

    test_group_scan.py has what it doubts, and why.
    """
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 10)
    victim = next(node for node in trio.live() if node is not trio.leader(group))
    victim.shard.writers[0].checkpoints.save()
    trio.run(500)
    victim.kill()
    with monkeypatch.context() as patch:
        patch.setattr(Doubts, "of", lambda _, doubted, __: (5,) if doubted == group else ())
        victim.boot()
        trio.until(lambda: victim.group(group) is not None, "it was never opened")
    assert victim.group(group).is_incomplete
    assert victim.group(group).log.reader.term_of(group, 5) == 0
    comes_again(trio, victim, group)
    assert trio.same_everywhere(group) == values


def test_nothing_is_given_up_while_no_majority_of_others_goes_on(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    fill(trio, produce, info, grant, 0, 30)
    victim = next(node for node in trio.live() if node is not trio.leader(group))
    other = next(node for node in trio.live() if node not in (victim, trio.leader(group)))
    tail = victim.shard.writers[0].log.tail
    victim.kill()
    other.kill()
    spoil(victim, tail)
    victim.boot()
    trio.run(5_000)
    assert damaged(victim) == [REGISTRY_GROUP]
    other.boot()
    heals(trio, victim, [REGISTRY_GROUP, group])
    assert len(trio.same_everywhere(group)) == 30


def test_a_damaged_node_alone_in_its_set_does_not_start(trio: Any, produce: Any) -> None:
    from weir.broker.api.settings import Identity
    from weir.broker.replica.checkpoints import Opened
    from weir.broker.shard import Shard
    from weir.storage.recovery import recover
    from weir.storage.segment_files import Settings

    info, grant = trio.topic(), trio.producer()
    fill(trio, produce, info, grant, 0, 30)
    victim = trio[3]
    tail = victim.shard.writers[0].log.tail
    victim.kill()
    spoil(victim, tail)
    settings = Settings(
        log=0, system=99, segment_bytes=64 * 1024, entry_bytes_max=16 * 1024,
        cache_bytes_max=1 << 16, spares=1,
    )  # fmt: skip
    found = recover(victim.disk, settings)
    opened = Opened(found.log, found.groups, found.body, found.holes)
    shard = Shard(Identity(99), [opened], trio.clock)
    with pytest.raises(LogDamaged):
        shard.start()
    assert isinstance(info, m.TopicInfo)


def test_whose_header_rots_below_a_checkpoint_is_mended_by_the_others(
    trio: Any, produce: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 60)
    victim = trio.leader(group)
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(300)
    stored = victim.shard.writers[0].log.reader.stored(group, 30)
    victim.kill()
    victim.disk.flip(segments(victim)[0], stored.place + 30)  # its header
    victim.boot()
    recovered = victim.shard.writers[0].restored.groups[group]
    assert (recovered.damage, recovered.unreadable) == (None, 1)
    trio.until(lambda: victim.group(group) is not None, "it is not opened")
    assert victim.group(group).is_incomplete
    comes_again(trio, victim, group)
    assert trio.same_everywhere(group) == values


def test_who_lacks_old_messages_leads_no_longer_than_it_must(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    fill(trio, produce, info, grant, 0, 60)
    first = trio.leader(group)
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(300)
    stored = first.shard.writers[0].log.reader.stored(group, 30)
    others = [node for node in trio.live() if node is not first]
    for node in trio.live():
        node.kill()
    first.disk.flip(segments(first)[0], stored.place + 30)  # its header
    first.boot()
    others[0].boot()
    trio.until(lambda: first.group(group) is not None, "it is not opened")
    for _ in range(4):
        if trio.leader(group) is first:
            break
        heir = trio.leader(group).group(group)
        heir.node.transfer_leadership(first.group(group).voter)
        heir.process_ready()
        trio.run(100)
    trio.until(lambda: others[0].group(group).machine.leads, "it did not hand over")
    trio.run(5_000)
    assert first.group(group).is_incomplete, "only one other has what it is to give up"
    others[1].boot()
    comes_again(trio, first, group)
