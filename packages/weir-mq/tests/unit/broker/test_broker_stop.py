"""Checkpoints, draining, and the order in which entries are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.records.entries import of_control, read_back
from weir.broker.records.partition import GrantsReleased
from weir.broker.records.registry import TopicCreated
from weir.broker.replica.checkpoints import CHECKPOINT, States, decode_checkpoint
from weir.broker.state.state import PartitionState
from weir.errors import Damaged, Halted, Unavailable
from weir.protocol import device as d
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m
from weir.storage.format.checkpoint import load
from weir.storage.format.frame import Kind


@pytest.fixture
def ready(rig: Any) -> tuple[Any, m.TopicInfo, m.ProducerGrant]:
    session = rig.connect()
    return rig, rig.topic(session), rig.answer(session, m.OpenProducer())


def written(states: States) -> bytes:
    out = bytearray()
    states.write(out)
    return bytes(out)


def test_a_checkpoint_holds_every_group_as_of_what_is_applied(ready: Any) -> None:
    rig, info, grant = ready
    rig.answer(1, rig.batch(info, grant, 0, b"a"))
    rig.ask(1, rig.batch(info, grant, 1, b"b"))  # under way: not in it
    writer = rig.shard.writers[0]
    snapshots = decode_checkpoint(written(States(writer.groups.values())))
    assert set(snapshots) == {0, info.addresses[0].group}
    snapshot = snapshots[info.addresses[0].group]
    assert snapshot.index == writer.groups[info.addresses[0].group].node.log.applied
    assert PartitionState.decode(snapshot.data).next_offset == 1


def test_a_checkpoint_that_changed_is_not_believed(ready: Any) -> None:
    rig, *_ = ready
    data = written(States(rig.shard.writers[0].groups.values()))
    assert decode_checkpoint(b"") == {}
    for spoilt in (data[:3], data[:-1], data[:-1] + bytes((data[-1] ^ 1,))):
        with pytest.raises(Damaged, match="CRC-32C"):
            decode_checkpoint(spoilt)


def test_much_log_brings_a_checkpoint_one_at_a_time(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(checkpoint_bytes=1)
    rig.tick()
    rig.tick()
    assert sum(isinstance(job, ef.SaveCheckpoint) for job in rig.jobs) == 1
    rig.settle()
    assert CHECKPOINT in rig.disk.names()


def test_a_stop_finishes_what_is_under_way_and_takes_nothing_new(ready: Any) -> None:
    rig, info, grant = ready
    rig.device(50, d.hello(7, 1, "t"))
    asked = rig.ask(1, rig.batch(info, grant, 0, b"a"))
    rig.device(50, d.publish(1, b"before", 0))
    rig.handle(ev.Stopping())
    refused = rig.ask(1, rig.batch(info, grant, 1, b"b"))
    rig.device(50, d.publish(1, b"after", 1))
    assert dict(rig.replies[1])[refused].code == Unavailable.code
    assert not any(isinstance(effect, ef.Stopped) for effect in rig.others)
    rig.settle()
    assert dict(rig.replies[1])[asked].offset == 0
    codes = [reply.code for reply in rig.device_replies[50][1:]]
    assert codes == [0, Unavailable.code], "refused in its place"
    assert rig.others == [ef.Stopped()]
    assert rig.shard.budget.used == 0
    rig.tick()
    rig.settle()
    assert rig.others == [ef.Stopped()], "said once"


def test_a_stopped_node_starts_from_its_checkpoint_alone(ready: Any) -> None:
    rig, info, grant = ready
    confirm = rig.answer(1, rig.batch(info, grant, 0, b"a"))
    rig.handle(ev.Stopping())
    rig.settle()
    applied = {g.id: g.node.log.applied for g in rig.shard.writers[0].groups.values()}
    rig.disk.crash()
    found = load(rig.disk)
    assert found is not None
    saved = decode_checkpoint(found.body)
    assert {group: snapshot.index for group, snapshot in saved.items()} == applied
    rig.boot()
    rig.connect()
    again = rig.answer(1, rig.batch(info, grant, 0, b"a"))
    assert (again.offset, again.stamp, again.duplicate) == (0, confirm.stamp, True)


def test_a_quiet_log_ends_in_a_mark(ready: Any) -> None:
    rig, *_ = ready
    rig.tick(1_000)
    assert [type(job) for job in rig.jobs] == [ef.StartFlush]
    rig.settle()
    rig.tick(1_000)
    assert rig.jobs == [], "one mark is enough"


def test_entries_are_applied_in_order_though_machines_propose_while_applying(ready: Any) -> None:
    """Group.advance: a wake proposes grants in the middle of applying a batch."""
    rig, info, grant = ready
    address = info.addresses[0]
    group = rig.shard.writers[0].groups[address.group]
    applied: list[int] = []
    inner = group.machine.apply

    class Watch:
        lead = group.machine.lead
        encode = group.machine.encode

        @staticmethod
        def apply(index: int, payload: Any) -> None:
            applied.append(index)
            inner(index, payload)
            applied.append(-index)

    group.machine = Watch()
    pulls = [rig.ask(1, m.Pull(address, name, 9, 1 << 20, 5_000)) for name in ("c1", "c2")]
    rig.ask(1, rig.batch(info, grant, 0, b"a"), rig.batch(info, grant, 1, b"b"))
    rig.settle()
    assert [abs(index) for index in applied[::2]] == [abs(index) for index in applied[1::2]]
    assert applied[::2] == sorted(applied[::2])
    assert len(applied) == 2 * 3
    replies = dict(rig.replies[1])
    assert [replies[number].next_offset for number in pulls] == [1, 1] or [
        replies[number].next_offset for number in pulls
    ] == [2, 2]


def test_an_entry_that_is_not_known_halts(ready: Any) -> None:
    rig, info, _ = ready
    partition = rig.shard.writers[0].groups[info.addresses[0].group].machine
    with pytest.raises(Halted):
        partition.apply(99, of_control(TopicCreated("a", "b", 1, "partition", 1)))
    with pytest.raises(Halted):
        rig.shard.registry.apply(99, of_control(GrantsReleased(1)))
    with pytest.raises(Halted):
        read_back(Kind.SNAPSHOT, b"?")


def test_a_stop_comes_though_operators_and_consumers_do_not_rest(ready: Any) -> None:
    rig, info, grant = ready
    (address,) = info.addresses
    rig.answer(1, rig.batch(info, grant, 0, *[b"x"] * 9))
    held = rig.answer(1, m.Pull(address, "c", 9, 1 << 20))
    sought = rig.ask(1, a.SeekCluster(address, "d", 0))  # under way
    rig.handle(ev.Stopping(acks_ms=1_000))
    for change in (
        a.SeekCluster(address, "d", 0),
        a.PauseCluster(address, "d"),
        a.DeleteCluster(address, "c"),
    ):
        refused = rig.ask(1, change)
        assert dict(rig.replies[1])[refused].code == Unavailable.code
    acked = rig.ask(1, m.Ack(address, "c", [(held.fence, 0, 1)]))
    rig.time.pass_ms(1_000)
    rig.handle(ev.Ticked())
    late = rig.ask(1, m.Ack(address, "c", [(held.fence, 1, 2)]))
    assert dict(rig.replies[1])[late].code == Unavailable.code
    rig.settle()
    replies = dict(rig.replies[1])
    assert isinstance(replies[sought], a.ClusterChanged)
    assert replies[acked] == m.Acked(1)
    assert rig.others == [ef.Stopped()]


def test_a_stop_comes_though_consumers_go_on(ready: Any) -> None:
    """Waits are answered, new ones refused; acks of what was granted are taken to the end."""
    rig, info, grant = ready
    address = info.addresses[0]
    rig.answer(1, rig.batch(info, grant, 0, b"a", b"b", b"c"))
    pull = m.Pull(address, "c", 1, 100)
    poll = m.Fetch(address, 3, 100, 9_000)
    held = rig.answer(1, pull)
    parked = [rig.ask(1, poll), rig.ask(1, m.Pull(info.addresses[0], "c", 9, 100, 9_000))]
    rig.settle()
    parked.append(rig.ask(1, m.Pull(address, "c", 9, 100, 9_000)))
    under_way = [rig.ask(1, m.Pull(address, "other", 1, 100)), rig.ask(1, m.OpenProducer())]
    rig.handle(ev.Stopping())
    replies = dict(rig.replies[1])
    assert (replies[parked[0]].next_offset, replies[parked[1]].next_offset) == (3, 3)
    assert replies[parked[2]].fence == 0
    asked = []
    for _ in range(10):
        if not rig.jobs:
            break
        more = (pull, poll, m.OpenProducer(), m.CreateTopic("more"))
        asked += [rig.ask(1, request) for request in more]
        rig.step()
    assert rig.others == [ef.Stopped()]
    replies = dict(rig.replies[1])
    assert {replies[number].code for number in asked} == {Unavailable.code}
    assert replies[under_way[0]].next_offset == 1, "what was proposed is granted"
    assert replies[under_way[1]].producer > 0
    assert rig.answer(1, m.Fetch(address, 0, 100)).next_offset == 3
    acked = rig.answer(1, m.Ack(address, "c", [(held.fence, held.offset, held.next_offset)]))
    assert isinstance(acked, m.Acked)


def test_a_pull_whose_messages_were_acked_is_answered_by_a_stop(ready: Any) -> None:
    rig, info, grant = ready
    address = info.addresses[0]
    rig.answer(1, rig.batch(info, grant, 0, b"a", b"b"))
    held = rig.answer(1, m.Pull(address, "c", 1, 100, 0, 1_000))
    rig.time.pass_ms(1_001)
    rig.ask(1, m.Ack(address, "c", [(held.fence, 0, 1)]))
    pulled = rig.ask(1, m.Pull(address, "c", 1, 100, 9_000))
    rig.handle(ev.Stopping())
    rig.settle()
    assert dict(rig.replies[1])[pulled].fence == 0, "though there is another message"
    assert rig.others == [ef.Stopped()]
