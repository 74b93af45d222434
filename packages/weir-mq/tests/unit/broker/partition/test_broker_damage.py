"""A damaged entry takes no neighbour along, neither from readers nor from clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import doubtful_of
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.errors import Damaged, DamagedRange
from weir.model.batch import split
from weir.model.topic import Mode
from weir.protocol.client import messages as m
from weir.storage.errors import LogDamaged
from weir.storage.format.frame import Kind


class Rotten:
    """A node without a cache, whose entries hold a message each, some of them damaged."""

    def __init__(self, rig: Any, messages: int, *damaged: int) -> None:
        self.rig = rig
        info = rig.topic(rig.connect(1))
        rig.connect(2)
        grant = rig.answer(1, m.OpenProducer())
        for n in range(messages):
            rig.answer(1, rig.batch(info, grant, n, b"v%d" % n))
        self.address = info.addresses[0]
        self.log = rig.shard.writers[0].log
        found = (self.log.reader.stored(self.address.group, i) for i in range(1, 50))
        self.entries = [stored for stored in found if stored and stored.kind is Kind.BATCHES]
        for n in damaged:
            self.flip(n)

    def flip(self, n: int) -> None:
        """Damage entry `n`, or mend it again."""
        segment = self.log.segments.find(self.entries[n].position)
        self.rig.disk.flip(segment.name, self.entries[n].position - segment.base + 56 + 100)

    def answer(self, request: m.Request, session: int = 1) -> Any:
        """Do as a host does, whose reads may fail."""
        rig = self.rig
        asked = rig.ask(session, request)
        while rig.jobs:
            job = rig.jobs[0]
            if not isinstance(job, ef.StartRead):
                rig.step()
                continue
            rig.jobs.pop(0)
            try:
                done = ev.ReadDone(job.ticket, job.reading.run(rig.disk))
            except (Damaged, OSError) as error:
                at = error.position if isinstance(error, LogDamaged) else -1
                done = ev.ReadDone(job.ticket, (), f"the read failed: {error}", at)
            rig.handle(done)
        return dict(rig.replies[session]).get(asked)

    def pull(self, most: int = 10, wait_ms: int = 0, cluster: str = "c") -> m.Pull:
        return m.Pull(self.address, cluster, most, 1 << 20, wait_ms, 1_000)

    def values(self, reply: Any) -> list[bytes]:
        batches = [b for part in reply.batches for b in split(part, self.address.group)]
        return [value for batch in batches for value in batch.values()]


@pytest.fixture
def rotten(make_rig: Callable[..., Any]) -> Callable[..., Rotten]:
    return lambda messages, *damaged: Rotten(make_rig(cache=0), messages, *damaged)


def test_what_is_committed_and_not_in_the_log_is_refused_and_no_end(
    rotten: Callable[..., Rotten], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = rotten(2)
    monkeypatch.setattr(type(node.log.reader), "read", lambda *_: None)
    for offset in (0, 1):
        assert node.answer(m.Fetch(node.address, offset, 1 << 20)).code == DamagedRange.code
    assert node.answer(m.Fetch(node.address, 2, 1 << 20)).next_offset == 2


def test_a_fetch_returns_what_lies_before_the_damage(rotten: Callable[..., Rotten]) -> None:
    node = rotten(4, 2)
    fetched = node.answer(m.Fetch(node.address, 0, 1 << 20))
    assert (fetched.next_offset, node.values(fetched)) == (2, [b"v0", b"v1"])
    assert node.answer(m.Fetch(node.address, 2, 1 << 20)).code == DamagedRange.code
    fetched = node.answer(m.Fetch(node.address, 3, 1 << 20))
    assert (fetched.next_offset, node.values(fetched)) == (4, [b"v3"])


def test_a_cluster_gets_all_but_the_damaged(rotten: Callable[..., Rotten]) -> None:
    node = rotten(5, 0, 2)
    got: list[tuple[int, int]] = []
    attempts: list[int] = []
    refused = 0
    for _ in range(7):  # and no lease ends meanwhile
        reply = node.answer(node.pull())
        if isinstance(reply, m.Refusal):
            refused += 1
        elif reply.fence:
            got.append((reply.offset, reply.next_offset))
            attempts.append(reply.attempts)
            assert node.values(reply) == [b"v%d" % n for n in range(*got[-1])]
            node.answer(m.Ack(node.address, "c", [(reply.fence, *got[-1])]))
    assert got == [(1, 2), (3, 5)]
    assert refused == 3, "the first with all behind it, then each damaged one alone"
    assert attempts == [1, 1], "they were handed to nobody"


def test_what_one_cluster_found_damaged_costs_no_other(rotten: Callable[..., Rotten]) -> None:
    node = rotten(4, 1)
    for _ in range(3):
        node.answer(node.pull())
    replies = [node.answer(node.pull(cluster="other")) for _ in range(3)]
    assert replies[1].code == DamagedRange.code
    found = [(r.offset, r.next_offset, r.attempts) for r in (replies[0], replies[2])]
    assert found == [(0, 1, 1), (2, 4, 1)]


def test_another_waiting_pull_gets_what_was_freed_at_once(rotten: Callable[..., Rotten]) -> None:
    node = rotten(2, 0)
    node.answer(node.pull())  # blames entry 0
    first = node.rig.ask(2, node.pull(1, wait_ms=5_000))
    granted = node.answer(node.pull(1, wait_ms=5_000))
    assert dict(node.rig.replies[2])[first].code == DamagedRange.code
    assert (granted.offset, granted.next_offset) == (1, 2)


def test_a_damaged_entry_is_tried_again_when_its_lease_ends(rotten: Callable[..., Rotten]) -> None:
    node = rotten(2, 0)
    replies = [node.answer(node.pull()) for _ in range(4)]
    assert [getattr(reply, "fence", -1) > 0 for reply in replies] == [False, False, True, False]
    node.flip(0)
    assert node.answer(node.pull()).fence == 0
    node.rig.tick(1_001)
    mended = node.answer(node.pull(1))
    assert (mended.offset, node.values(mended)) == (0, [b"v0"])
    node.rig.tick(2_000)
    granted = node.answer(node.pull())
    assert (granted.offset, granted.next_offset) in {(0, 1), (1, 2)}
    partition = node.rig.shard.topics.partition(node.address.group)[1]
    assert not doubtful_of(partition.leading.consumers.grants)


def test_a_read_that_finds_no_room_waits_for_it(rotten: Callable[..., Rotten]) -> None:
    node = rotten(2)
    budget = node.rig.shard.budget
    budget.take(budget.limit)
    assert node.answer(node.pull()) is None
    budget.release(budget.limit)
    assert node.answer(node.pull()).fence == 0, "the one that waits has them"
    replies = [reply for _, reply in node.rig.replies[1] if isinstance(reply, m.Granted)]
    assert [(reply.offset, reply.next_offset) for reply in replies] == [(0, 0), (0, 2)]
    assert budget.used == 0


class Restarted(Rotten):
    """A node that is started again after bytes above its last checkpoint changed."""

    def restart(self) -> None:
        rig = self.rig
        rig.tick(1_000)
        rig.settle()  # the idle mark: all below it was durable
        rig.disk.crash()
        rig.boot()
        rig.connect(1)
        self.log = rig.shard.writers[0].log


def test_a_damaged_partition_is_read_and_takes_nothing(make_rig: Callable[..., Any]) -> None:
    node = Restarted(make_rig(cache=0), 4)
    other = node.rig.topic(1, "other")
    node.flip(2)
    node.restart()
    for start, values in ((0, [b"v0", b"v1"]), (3, [b"v3"])):
        fetched = node.answer(m.Fetch(node.address, start, 1 << 20))
        assert node.values(fetched) == values
    refusal = node.answer(m.Fetch(node.address, 2, 1 << 20))
    assert refusal.code == DamagedRange.code
    assert refusal.detail == node.entries[2].position
    assert "segment-0000000" in refusal.message
    grant = node.rig.answer(1, m.OpenProducer())
    info = node.rig.answer(1, m.DescribeTopic("t"))
    refused = node.rig.answer(1, node.rig.batch(info, grant, 0, b"more"))
    assert refused.code == DamagedRange.code
    confirm = node.rig.answer(1, node.rig.batch(other, grant, 0, b"else"))
    assert confirm.offset == 0, "another topic goes on"


def test_a_damaged_partition_stays_so_through_checkpoints(make_rig: Callable[..., Any]) -> None:
    node = Restarted(make_rig(cache=0, checkpoint_bytes=1 << 30), 4)
    node.flip(2)
    node.restart()
    for _ in range(2):
        node.rig.shard.writers[0].checkpoints.save()
        node.rig.settle()
        node.rig.disk.crash()
        node.rig.boot()
        node.rig.connect(1)
        refusal = node.answer(m.Fetch(node.address, 2, 1 << 20))
        assert refusal.code == DamagedRange.code
        assert node.values(node.answer(m.Fetch(node.address, 3, 1 << 20))) == [b"v3"]
    node.flip(2)
    node.restart()
    grant = node.rig.answer(1, m.OpenProducer())
    info = node.rig.answer(1, m.DescribeTopic("t"))
    mended = node.rig.answer(1, node.rig.batch(info, grant, 0, b"v4"))
    assert mended.offset == 4, "the bytes are right again, and so is all"


def test_damage_below_the_checkpoint_costs_its_own_messages_alone(
    make_rig: Callable[..., Any],
) -> None:
    node = Restarted(make_rig(cache=0), 4)
    node.rig.shard.writers[0].checkpoints.save()
    node.rig.settle()
    node.flip(1)
    node.restart()
    assert node.answer(m.Fetch(node.address, 1, 1 << 20)).code == DamagedRange.code
    assert node.values(node.answer(m.Fetch(node.address, 2, 1 << 20))) == [b"v2", b"v3"]
    grant = node.rig.answer(1, m.OpenProducer())
    info = node.rig.answer(1, m.DescribeTopic("t"))
    assert node.rig.answer(1, node.rig.batch(info, grant, 0, b"v4")).offset == 4


def test_a_damaged_registry_keeps_the_node_from_starting(make_rig: Callable[..., Any]) -> None:
    node = Restarted(make_rig(cache=0), 1)
    found = (node.log.reader.stored(0, index) for index in range(1, 20))
    created = next(stored for stored in found if stored and stored.kind is Kind.CONTROL)
    segment = node.log.segments.find(created.position)
    node.rig.disk.flip(segment.name, created.position - segment.base + 56)
    with pytest.raises(LogDamaged, match="restore it from a backup"):
        node.restart()


def test_a_damaged_partition_does_not_say_that_nothing_lies_behind_its_end(
    make_rig: Callable[..., Any],
) -> None:
    node = Restarted(make_rig(cache=0), 4)
    node.flip(3)
    node.restart()
    fetched = node.answer(m.Fetch(node.address, 0, 1 << 20))
    assert node.values(fetched) == [b"v0", b"v1", b"v2"]
    refusal = node.answer(m.Fetch(node.address, 3, 1 << 20))
    assert refusal.code == DamagedRange.code
    assert "segment-0000000" in refusal.message


def test_nothing_goes_out_in_order_behind_what_cannot_be_read(
    rotten: Callable[..., Rotten],
) -> None:
    node = rotten(4, 1)

    def pull(most: int, session: int) -> Any:
        request = m.Pull(node.address, "o", most, 1 << 20, 0, 1_000, Mode.ORDERED)
        return node.answer(request, session)

    granted = pull(4, 1)
    assert (granted.offset, granted.next_offset) == (0, 1)
    for _ in range(3):
        for session in (1, 2):
            reply = pull(4, session)
            assert getattr(reply, "fence", 0) == 0
    node.flip(1)
    node.rig.tick(1_000)
    assert node.values(pull(4, 1)) == [b"v0"], "which was tried before"
    assert node.values(pull(4, 1)) == [b"v1", b"v2", b"v3"]


def test_a_keyed_pull_is_told_that_messages_cannot_be_looked_into(
    rotten: Callable[..., Rotten],
) -> None:
    node = rotten(2, 0)
    pull = m.Pull(node.address, "k", 4, 1 << 20, 0, 1_000, Mode.KEYED)
    assert isinstance(node.answer(pull), m.Refusal)
    node.flip(0)
    node.rig.tick(1_000)
    granted = node.answer(pull)
    assert node.values(granted) == [b"v0", b"v1"]
