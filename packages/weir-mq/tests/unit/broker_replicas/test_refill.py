"""Rotten payloads are filled in from whoever has the entries, without a leader (docs/adr 0017).

WEIR_REFILLS random trials.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from rigs.damage import mended, rot
from rigs.shards import scrub_now
from weir.broker.replica.frames import FrameKind
from weir.errors import Unavailable
from weir.model.ids import REGISTRY_GROUP, voter_of
from weir.protocol.client import messages as m
from weir.protocol.link import LinkStream
from weir.storage.format.frame import Kind
from weir_raft import Change


def rot_header(node: Any, group: int, index: int) -> None:
    """Spoil the header of an entry, so that nothing says what lay there."""
    log = node.shard.writers[0].log
    stored = log.reader.stored(group, index)
    segment = log.segments.find(stored.place)
    node.disk.flip(segment.name, stored.place - segment.base + 12)


def fill(trio: Any, produce: Any, info: Any, grant: Any, first: int, count: int) -> list[bytes]:
    values = [bytes([65 + n % 26]) * 300 for n in range(first, first + count)]
    for number, value in enumerate(values, first):
        confirm = trio.told(produce(info, grant, number, value), info.addresses[0].group)
        assert confirm.offset == number
    return values


def boot_all(trio: Any) -> None:
    for node in trio.nodes.values():
        if not node.alive:
            node.boot()


def test_two_damaged_replicas_of_three_repair_each_other(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 30)
    trio.same_everywhere(group)
    for node in trio.live():
        node.kill()
    for index in range(5, 15):
        rot(trio[1], group, index)
    for index in range(15, 25):
        rot(trio[2], group, index)
    boot_all(trio)
    mended(trio, group)
    values += fill(trio, produce, info, grant, 30, 5)
    assert trio.same_everywhere(group) == values


def test_all_three_repair_each_other_where_each_entry_is_left_once(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 30)
    trio.same_everywhere(group)
    for node in trio.live():
        node.kill()
    for index in range(3, 27):  # each rots on two of three nodes
        for node in trio.nodes.values():
            if index % 3 + 1 != node.id:
                rot(node, group, index)
    boot_all(trio)
    mended(trio, group)
    values += fill(trio, produce, info, grant, 30, 5)
    assert trio.same_everywhere(group) == values


def test_one_of_two_repairs_itself(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(replicas=2), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 20)
    holders = [node for node in trio.live() if node.group(group) is not None]
    assert len(holders) == 2
    last = max(node.group(group).node.log.last_index for node in holders)
    for node in holders:
        trio.until(lambda node=node: node.group(group).node.log.durable == last, "not there")
    holders[1].kill()
    for index in range(4, 16):
        rot(holders[1], group, index)
    holders[1].boot()
    trio.until(lambda: holders[1].group(group) is not None, "it is not opened")
    trio.until(lambda: holders[1].group(group).damage is None, "it was not filled in")
    values += fill(trio, produce, info, grant, 20, 3)
    trio.until(lambda: all(node.messages(group) == values for node in holders), "it lags")


def test_the_registry_is_filled_in_on_two_nodes_at_once(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 5)
    trio.same_everywhere(group)
    for node in trio.live():
        node.kill()
    rot(trio[1], REGISTRY_GROUP, 3)
    rot(trio[3], REGISTRY_GROUP, 4)
    boot_all(trio)
    mended(trio, REGISTRY_GROUP)
    mended(trio, group)
    values += fill(trio, produce, info, grant, 5, 2)
    assert trio.same_everywhere(group) == values


def test_what_rotted_below_a_checkpoint_is_filled_in_while_the_group_goes_on(
    trio: Any, produce: Any
) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 60)
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(300)
    victim = trio.leader(group)
    victim.kill()
    for index in (20, 21, 40):
        rot(victim, group, index)
    victim.boot()
    assert victim.shard.writers[0].restored.groups[group].rotten == (20, 21, 40)
    mended(trio, group)
    assert trio.same_everywhere(group) == values
    # What was filled in is found by offset as before, and by the next start, too.
    victim.kill()
    victim.boot()
    assert victim.shard.writers[0].restored.groups[group].unreadable == 0
    mended(trio, group)
    assert trio.same_everywhere(group) == values


def test_who_belongs_to_a_group_may_be_what_rotted(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 5)
    leader = trio.leader(group).group(group)
    leader.node.change(Change(add_learners=(voter_of(9, 0),)))  # it is sent away again at once
    leader.process_ready()
    trio.run(1_000)
    values += fill(trio, produce, info, grant, 5, 5)
    trio.same_everywhere(group)
    log = trio[2].shard.writers[0].log
    for node in trio.live():
        node.kill()
    changes = log.reader.of_kind(group, Kind.CONFIGURATION, 1)
    assert changes
    for index in changes:
        rot(trio[2], group, index)
    boot_all(trio)
    mended(trio, group)
    assert trio.same_everywhere(group) == values


def test_what_nobody_has_is_given_up_as_another_voter(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 30)
    trio.same_everywhere(group)
    victim = next(node for node in trio.live() if node is not trio.leader(group))
    victim.kill()
    rot(victim, group, 20)
    for node in trio.live():  # on their disks, too: only their memory has it
        rot(node, group, 20)
    victim.boot()
    trio.until(
        lambda: (found := victim.group(group)) and found.voter == voter_of(victim.id, 1),
        "it stays who it was",
    )
    trio.until(lambda: victim.group(group).is_current, "it did not come back")
    assert trio.same_everywhere(group) == values


def test_wrong_bytes_are_not_taken_for_an_entry(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    fill(trio, produce, info, grant, 0, 30)
    trio.same_everywhere(group)
    victim = next(node for node in trio.live() if node is not trio.leader(group))
    log = victim.shard.writers[0].log
    assert log.reader.stored(group, 20).kind is Kind.BATCHES
    victim.kill()
    rot(victim, group, 20)
    victim.boot()
    trio.until(lambda: victim.group(group) is not None, "it is not opened")
    log = victim.shard.writers[0].log
    for payload in (b"x" * log.reader.stored(group, 20).length, b"short"):
        piece = log.reader.mend(group, 20, payload)
        found = piece.run(victim.disk)
        log.reader.mended(piece)
        assert found.bad
    mended(trio, group)


@pytest.mark.parametrize("seed", range(int(os.environ.get("WEIR_REFILLS", "6"))))
def test_rot_in_payloads_here_and_there_costs_nothing(trio: Any, produce: Any, seed: int) -> None:
    dice = random.Random(seed)
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 40)
    trio.same_everywhere(group)
    if seed % 2:
        for node in trio.live():
            if dice.random() < 0.6:
                node.shard.writers[0].checkpoints.save()
    trio.run(300)  # what was written last is known to have been durable, or it is a torn tail
    for node in trio.live():
        node.kill()
    last = {id: trio[1].shard.writers[0].groups[id].node.log.last_index for id in (0, group)}
    for id, count in last.items():
        for index in range(1, count + 1):
            whole = dice.randrange(1, 4)  # somebody has it still
            for node in trio.nodes.values():
                if node.id != whole and dice.random() < 0.3:
                    rot(node, id, index)
    boot_all(trio)
    mended(trio, REGISTRY_GROUP)
    mended(trio, group)
    values += fill(trio, produce, info, grant, 40, 5)
    assert trio.same_everywhere(group) == values


def test_what_the_scrub_finds_is_filled_in_while_the_node_runs(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    values = fill(trio, produce, info, grant, 0, 250)  # more than a segment
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(300)
    victim = trio.leader(group)
    rot(victim, group, 30)
    scrubber = victim.shard.writers[0].chores.scrubber
    scrub_now(scrubber)  # not a minute after the start
    trio.until(lambda: scrubber.rounds, "it found no end")
    mended(trio, group)
    assert not scrubber.damage
    assert victim.group(group).storage.unreadable == 0
    assert victim.group(group).voter == voter_of(victim.id, 0)
    assert trio.same_everywhere(group) == values


def test_what_a_reader_finds_rotten_comes_from_the_others(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    address = info.addresses[0]
    values = fill(trio, produce, info, grant, 0, 250)  # more than a segment, and than the cache
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(300)
    victim = trio.leader(address.group)
    offset = 20
    index = (
        victim.shard.writers[0].log.reader.read(address.group, offset, 1, 1 << 40).entries[0].index
    )
    rot(victim, address.group, index)
    first = trio.answer(victim, m.Fetch(address, offset, 1))
    assert isinstance(first, m.Refusal)
    assert (first.code, "fetches them from the others" in first.message) == (Unavailable.code, True)
    fetched = trio.told(m.Fetch(address, offset, 1), address.group)
    assert fetched.next_offset == offset + 1
    mended(trio, address.group)
    assert trio.same_everywhere(address.group) == values


def test_what_has_no_header_to_be_put_behind_is_read_elsewhere(trio: Any, produce: Any) -> None:
    """Simulated set 1124: it was written in vain again and again, and readers told to wait."""
    info, grant = trio.topic(), trio.producer()
    address = info.addresses[0]
    values = fill(trio, produce, info, grant, 0, 250)  # more than a segment, and than the cache
    for node in trio.live():
        node.shard.writers[0].checkpoints.save()
    trio.run(300)
    victim = trio.leader(address.group)
    index = victim.shard.writers[0].log.reader.read(address.group, 20, 1, 1 << 40).entries[0].index
    rot_header(victim, address.group, index)
    first = trio.answer(victim, m.Fetch(address, 20, 1))
    assert first.code == Unavailable.code
    trio.until(lambda: trio.leader(address.group) is not victim, "it leads on")
    assert trio.told(m.Fetch(address, 20, 1), address.group).next_offset == 21
    trio.until(lambda: victim.group(address.group).voter == voter_of(victim.id, 1), "it stays")
    trio.until(lambda: victim.group(address.group).is_current, "it did not come back")
    assert trio.same_everywhere(address.group) == values


@pytest.mark.parametrize("is_live", [False, True])
def test_a_node_that_is_filled_in_rests_between_pieces_beside_live_traffic(
    trio: Any, produce: Any, monkeypatch: Any, is_live: bool
) -> None:
    monkeypatch.setattr("weir.broker.replica.refill._TOGETHER", 4)
    info, grant = trio.topic(partitions=2), trio.producer()
    group = info.addresses[0].group
    fill(trio, produce, info, grant, 0, 30)
    leader = trio.leader(group)
    damaged = next(one for one in trio.live() if one is not leader)
    trio.same_everywhere(group)
    damaged.kill()
    for index in range(3, 27):
        rot(damaged, group, index)
    asked: list[int] = []
    really = trio.carry

    def note(sender: int, to: int, quick: bool, data: bytes) -> None:
        kinds = [frame.kind for frame in LinkStream().receive(data)]
        asked.extend([trio.clock.monotonic] * kinds.count(FrameKind.REFILL_ASK))
        really(sender, to, quick, data)

    monkeypatch.setattr(trio, "carry", note)
    damaged.boot()
    for sequence in range(20):
        if is_live:  # what is damaged takes no part
            beside = produce(info, grant, sequence, b"live", partition=1)
            trio.leader(info.addresses[1].group).ask(beside)
        trio.run(50)
    mended(trio, group)
    assert len(asked) >= 6, asked
    together = max(Counter(asked).values())
    assert together == 1 if is_live else together >= 4, asked
    assert all(later - earlier <= 100 for earlier, later in pairwise(asked)), "it waited for long"
