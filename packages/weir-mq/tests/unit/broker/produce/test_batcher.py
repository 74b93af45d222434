"""Device frames become batches, and each gets its reply, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.shards import device_producer_of
from weir.broker.api.effects import StartFlush
from weir.broker.api.events import Flushed, Rested
from weir.broker.produce import batcher
from weir.broker.produce.batcher import DUPLICATE
from weir.broker.replica.writer import CROWD, CROWD_FLUSH_MS
from weir.errors import BadChecksum, Fenced, NoHello, Overloaded, SequenceGap, Unavailable
from weir.model.batch import split
from weir.model.columns import NO_SEQUENCE
from weir.protocol import device as d
from weir.protocol.client import messages as m

HUB = 1234


@pytest.fixture
def hub(rig: Any) -> Any:
    """A node with a topic and a hub in session 50 that has said hello."""
    rig.topic(rig.connect())
    rig.device(50, d.hello(HUB, 1, "t"))
    assert rig.device_replies[50].pop().code == 0
    return rig


def answers(rig: Any, session: int = 50) -> list[tuple[int, int, int, int]]:
    replies = [(r.sn, r.sequence, r.code, r.offset) for r in rig.device_replies[session]]
    rig.device_replies[session].clear()
    return replies


def stored(rig: Any) -> list[bytes]:
    topic = rig.answer(1, m.DescribeTopic("t"))
    address = topic.addresses[0]
    fetched = rig.answer(1, m.Fetch(address, 0, 1 << 20))
    return [v for b in fetched.batches for batch in split(b, address.group) for v in batch.values()]


def test_publishes_of_many_hubs_share_a_batch(hub: Any) -> None:
    hub.device(51, d.hello(HUB + 1, 1, "t"))
    hub.device_replies[51].clear()
    hub.device(50, d.publish(1, b"a", 0), d.publish(2, b"b", 0))
    hub.device(51, d.publish(1, b"c", 0))
    hub.device(50, d.publish(1, b"d", 1))
    assert answers(hub) == [], "nothing is confirmed before the flush"
    hub.settle()
    # The first read started a flush; what came meanwhile made the next batch.
    assert answers(hub) == [(1, 0, 0, 0), (2, 0, 0, 1), (1, 1, 0, 3)]
    assert answers(hub, 51) == [(1, 0, 0, 2)]
    assert stored(hub) == [b"a", b"b", b"c", b"d"]


def test_flushes_of_a_crowd_begin_apart(hub: Any) -> None:
    """One flush for each few devices of thousands would be most of what they cost."""
    hub.settle()
    hub.device(50, d.publish(1, b"alone"))
    for reads, rest_ms in ((CROWD - 1, 0), (CROWD, CROWD_FLUSH_MS), (1, 0)):
        for _ in range(reads):
            hub.device(50, d.publish(1, b"a"))
        while not isinstance(hub.jobs[0], StartFlush):
            hub.step()
        hub.step()
        flushes = [job for job in hub.jobs if isinstance(job, StartFlush)]
        assert [flush.rest_ms for flush in flushes] == [rest_ms]


def test_a_crowd_is_confirmed_before_its_log_rests(hub: Any) -> None:
    hub.device(50, d.publish(1, b"a", 0))
    (first,) = (job for job in hub.jobs if isinstance(job, StartFlush))
    hub.device(50, d.publish(1, b"b", 1))
    first.flush.run(hub.disk)
    hub.jobs.remove(first)
    hub.handle(Flushed(first.log, first.flush, rests=True))
    assert answers(hub) == [(1, 0, 0, 0)]
    hub.device(50, d.publish(1, b"c", 2))
    assert not any(isinstance(job, StartFlush) for job in hub.jobs), "the log rests"
    hub.handle(Rested(first.log))
    hub.settle()
    assert answers(hub) == [(1, 1, 0, 1), (1, 2, 0, 2)]
    assert stored(hub) == [b"a", b"b", b"c"]


def test_repeats_are_answered_behind_the_first(hub: Any) -> None:
    hub.device(50, d.publish(1, b"a", 0))
    hub.device(50, d.publish(1, b"a", 0), d.publish(1, b"b", 1), d.publish(1, b"a", 0))
    assert answers(hub) == []
    hub.settle()
    assert answers(hub) == [
        (1, 0, 0, 0),
        (1, 0, 0, DUPLICATE),
        (1, 1, 0, 1),
        (1, 0, 0, DUPLICATE),
    ]
    hub.device(50, d.publish(1, b"b", 1))
    hub.settle()
    assert answers(hub) == [(1, 1, 0, DUPLICATE)]
    assert stored(hub) == [b"a", b"b"]


def test_a_read_of_repeats_alone_waits_for_the_batch_under_way(hub: Any) -> None:
    hub.device(50, d.publish(1, b"a", 0))
    hub.device(50, d.publish(1, b"a", 0))
    hub.step()  # the flush of the first; the repeats are cut now and have nothing to write
    assert answers(hub) == [(1, 0, 0, 0), (1, 0, 0, DUPLICATE)]


def test_gaps_and_old_boots_are_refused_with_what_to_do(hub: Any) -> None:
    hub.device(50, d.publish(1, b"a", 0), d.publish(1, b"c", 2))
    hub.settle()
    assert answers(hub) == [(1, 0, 0, 0), (1, 2, SequenceGap.code, 1)]
    hub.device(51, d.hello(HUB, 2, "t"), d.publish(1, b"new", 0))
    hub.settle()
    assert answers(hub, 51)[1:] == [(1, 0, 0, 1)]
    hub.device(50, d.publish(1, b"b", 1))
    hub.settle()
    assert answers(hub) == [(1, 1, Fenced.code, 2)]


def test_a_bad_check_byte_costs_only_its_frame(hub: Any) -> None:
    good = d.publish(1, b"a", 0)
    hub.device(50, good[:-1] + bytes((good[-1] ^ 1,)), d.publish(2, b"b", 0), good)
    hub.settle()
    assert answers(hub) == [(1, 0, BadChecksum.code, 0), (2, 0, 0, 0), (1, 0, 0, 1)]


def test_a_cut_that_makes_several_batches_answers_in_order(
    hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batcher, "BATCH_BYTES_DEFAULT", 100)
    hub.device(50, d.publish(9, b"first", 0))  # a flush is in flight while the others come
    for n in range(6):
        frames = [d.publish(sn, b"%d" % n * 30, n) for sn in range(2)]
        hub.device(50, *frames, *([d.publish(0, b"%d" % (n - 1) * 30, n - 1)] if n else []))
    hub.settle()
    replies = answers(hub)
    assert [r[:3] for r in replies[:3]] == [(9, 0, 0), (0, 0, 0), (1, 0, 0)]
    firsts = [r for r in replies if not (r[0] == 0 and r[3] == DUPLICATE)]
    offsets = [offset for _, _, _, offset in firsts]
    assert offsets == sorted(offsets)
    assert offsets == list(range(13))
    assert len(replies) == 1 + 12 + 5
    assert len(stored(hub)) == 13


def test_a_refusal_keeps_its_place_among_the_replies(
    make_rig: Callable[..., Any],
) -> None:
    """A publish without a sequence knows its reply by its place alone."""
    rig = make_rig(budget_bytes=300)
    rig.topic(rig.connect())
    rig.device(50, d.hello(HUB, 1, "t"))
    rig.device_replies[50].clear()
    rig.device(50, d.publish(1, b"x" * 150))
    rig.device(50, d.publish(1, b"y" * 150))
    assert answers(rig) == []
    rig.settle()
    first, second = answers(rig)
    assert first == (1, NO_SEQUENCE, 0, 0)
    assert second[2] == Overloaded.code
    assert second[3] > 0, "how long to wait"
    assert rig.shard.budget.used == 0


def test_publishes_need_a_hello_and_a_partition_that_serves(rig: Any) -> None:
    rig.device(50, d.publish(1, b"a", 0))
    assert answers(rig) == [(1, 0, NoHello.code, 0)]
    rig.topic(rig.connect())
    rig.device(50, d.hello(HUB, 1, "t"))
    rig.device_replies[50].clear()
    device_producer_of(rig.shard).id = 0
    rig.device(50, d.publish(1, b"a", 0))
    assert answers(rig) == [(1, 0, Unavailable.code, 0)]


def test_devices_are_known_after_a_restart(hub: Any) -> None:
    hub.device(50, d.publish(1, b"a", 0), d.publish(1, b"b", 1))
    hub.settle()
    for _ in range(2):  # from the log, then from a checkpoint
        hub.tick()
        hub.settle()
        hub.disk.crash()
        hub.boot()
        hub.connect()
        hub.device(50, d.hello(HUB, 1, "t"))
        hub.device_replies[50].clear()
        hub.device(50, d.publish(1, b"a", 0), d.publish(1, b"b", 1))
        hub.settle()
        assert answers(hub) == [(1, 0, 0, DUPLICATE), (1, 1, 0, DUPLICATE)]
        hub.shard.writers[0].checkpoints.save()
        hub.tick()
        hub.settle()
    assert stored(hub) == [b"a", b"b"]
