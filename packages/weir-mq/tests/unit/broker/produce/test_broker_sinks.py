"""Sinks on one shard: what is staged is seen by nobody, and published once, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rigs.sinks import Sink, opened
from weir.broker.records.partition import LogStartMoved, SinkPrepared
from weir.broker.records.staging import StagedRecord
from weir.broker.state.state import PartitionState
from weir.errors import (
    BadRequest,
    BatchPublished,
    SequenceGap,
    StagedRunGone,
    refusal,
)
from weir.model.batch import Columns
from weir.model.columns import StagedRun
from weir.model.topic import Mode
from weir.protocol.client import messages as m
from weir.protocol.client.sinks import ForgetSink, ListSinks, SinkList, SinkReleased, Staged
from weir.protocol.client.sinks import Sink as SinkInfo
from weir.storage.format.frame import Kind

A, B, C, D = [b"a0", b"a1"], [b"b0"], [b"c0", b"c1", b"c2"], [b"d0"]
HOUR_MS = 3600 * 1000


@pytest.fixture
def sink(make_rig: Callable[..., Any]) -> Sink:
    return Sink(make_rig(retention_every_ms=1, checkpoint_bytes=1))


@pytest.fixture
def wide(make_rig: Callable[..., Any]) -> Sink:
    return Sink(make_rig(retention_every_ms=1, checkpoint_bytes=1), 3)


def values(rows: list[tuple[int, int, bytes]]) -> list[bytes]:
    return [value for _, _, value in rows]


def refused(reply: Any) -> Exception:
    assert isinstance(reply, m.Refusal), reply
    return refusal(reply.code, reply.message, reply.detail)


def restart(sink: Sink) -> None:
    """Lose the power, and all that was not synced with it."""
    sink.rig.disk.crash()
    sink.rig.boot()
    sink.rig.connect()


def look(sink: Sink, ms: int) -> None:
    """Let time pass, and retention look."""
    sink.rig.tick(ms)
    sink.rig.settle()
    sink.rig.tick()
    sink.rig.settle()


def test_what_is_staged_is_seen_by_nobody_until_it_is_published(sink: Sink) -> None:
    runs = [sink.stage(7, A, B), sink.stage(5, C)]
    assert sink.read() == []

    reply = sink.publish(0, {0: runs})

    assert isinstance(reply, m.ScatterConfirm), reply
    assert reply.offsets == [(sink.group(0), 0)]
    rows = sink.read()
    assert values(rows) == [*A, *B, *C]
    assert [offset for offset, _, _ in rows] == list(range(6))
    assert {stamp for _, stamp, _ in rows} == {reply.stamp}


def test_one_attempt_is_enough_where_a_partition_also_remembers(wide: Sink) -> None:
    for batch in range(3):
        runs = {number: [wide.stage(10 * batch + number + 1, A, batch_id=batch, partition=number)]
                for number in (0, 2)}  # fmt: skip
        reply = wide.publish(batch, runs)
        assert isinstance(reply, m.ScatterConfirm), reply
        # What an attempt leaves that came to nothing is a gap.
        assert reply.offsets == [(wide.group(0), 2 * batch), (wide.group(2), 2 * batch)]


def test_nothing_is_said_of_the_stamp_before_the_batch_that_has_it_is_there() -> None:
    state = PartitionState()
    assert state.prepare_sink(SinkPrepared(1, 0, 0, 100, (3,), "q", 0), 7)
    assert state.last_stamp == 99


@pytest.mark.parametrize("most", [1, 150, 1 << 20])
def test_it_lies_between_other_messages_however_little_is_fetched(sink: Sink, most: int) -> None:
    grant = sink.rig.answer(1, m.OpenProducer())
    sink.rig.answer(1, sink.rig.batch(sink.info, grant, 0, b"before"))
    first = sink.publish(0, {0: [sink.stage(1, A, B), sink.stage(2, C)]})
    second = sink.publish(1, {0: [sink.stage(3, D, batch_id=1)]})
    sink.rig.answer(1, sink.rig.batch(sink.info, grant, 1, b"behind"))

    rows = sink.read(most=most)

    assert values(rows) == [b"before", *A, *B, *C, *D, b"behind"]
    assert [offset for offset, _, _ in rows] == list(range(9))
    stamps = [stamp for _, stamp, _ in rows]
    assert stamps[1:7] == [first.stamp] * 6
    assert stamps[7] == second.stamp
    assert stamps == sorted(stamps)


def test_it_is_there_after_a_power_cut_from_disk_and_checkpoint(sink: Sink) -> None:
    sink.publish(0, {0: [sink.stage(1, A, B)]})
    staged = sink.stage(2, C, batch_id=1)
    before = sink.read()

    restart(sink)

    assert sink.read() == before
    sink.begin()
    assert isinstance(refused(sink.publish(0, {0: [staged]})), BatchPublished)
    assert isinstance(sink.publish(1, {0: [staged]}), m.ScatterConfirm)
    assert values(sink.read()) == [*A, *B, *C]


def test_a_staged_batch_whose_frame_rotted_is_told_to_be_damaged(
    make_rig: Callable[..., Any],
) -> None:
    """Nobody knows any more what kind of entry it was, and a reader is told where it lay."""
    sink = Sink(make_rig(cache=0, checkpoint_bytes=1))
    sink.publish(0, {0: [sink.stage(1, A, B, C)]})
    before = sink.read()
    look(sink, 60)  # a checkpoint holds the state: no other group needs that place
    group, log = sink.group(0), sink.rig.shard.writers[0].log
    found = [stored for index in range(1, 50) if (stored := log.reader.stored(group, index))]
    lost = [stored for stored in found if stored.kind is Kind.STAGED][1]
    segment = log.segments.find(lost.place)
    sink.rig.disk.flip(segment.name, lost.place - segment.base + 8)

    restart(sink)

    assert sink.fetch(most=1).next_offset == before[len(A)][0]
    with pytest.raises(AssertionError, match="the read failed: log 0 is damaged at position"):
        sink.fetch(offset=len(A))
    rest = opened(sink.fetch(offset=len(A) + len(B)), group)
    assert [value for batch in rest for value in batch.values()] == C


def test_all_partitions_get_one_stamp_or_none_gets_anything(wide: Sink) -> None:
    runs = {p: [wide.stage(p + 1, [b"p%d" % p], partition=p)] for p in range(3)}
    lie = {**runs, 2: [StagedRun(99, 1, 1, 5)]}

    assert isinstance(refused(wide.publish(0, lie)), StagedRunGone)
    assert [wide.read(p) for p in range(3)] == [[], [], []]

    wide.begin()
    reply = wide.publish(0, runs)
    assert isinstance(reply, m.ScatterConfirm), reply
    rows = [wide.read(p) for p in range(3)]
    assert [values(some) for some in rows] == [[b"p0"], [b"p1"], [b"p2"]]
    assert {stamp for some in rows for _, stamp, _ in some} == {reply.stamp}


def test_a_batch_of_a_query_is_published_once_whatever_is_staged_for_it_again(sink: Sink) -> None:
    sink.publish(4, {0: [sink.stage(1, A, batch_id=4)]})
    again = sink.stage(2, A, batch_id=4)
    earlier = sink.stage(3, B, batch_id=3)

    for batch_id, run in ((4, again), (3, earlier)):
        sink.begin()
        error = refused(sink.publish(batch_id, {0: [run]}))
        assert isinstance(error, BatchPublished)
        assert error.detail == 4

    assert values(sink.read()) == A


def test_other_attempts_of_a_published_batch_go_and_later_ones_stay(sink: Sink) -> None:
    sink.stage(1, A, batch_id=1)
    chosen, later = sink.stage(2, A, batch_id=1), sink.stage(3, B, batch_id=2)
    sink.publish(1, {0: [chosen]})

    stats = sink.rig.answer(1, m.Positions(sink.info.addresses[0]))
    assert (stats.start, stats.end) == (0, 2)
    assert sink.rig.answer(1, sink.request(0, 1, 1, 1, B)) == m.Refusal(
        SequenceGap.code,
        "batch 1 of run 1 came, 0 is missing: stage that first; if you had staged it, it has "
        "expired: stage the whole run anew",
        0,
    )
    assert isinstance(sink.publish(2, {0: [later]}), m.ScatterConfirm)


def test_a_repeated_stage_adds_nothing_and_a_gap_is_refused(sink: Sink) -> None:
    run = sink.stage(1, A, B)
    assert sink.rig.answer(1, sink.request(0, 0, 1, 0, A)) == Staged(2)
    assert isinstance(refused(sink.rig.answer(1, sink.request(0, 0, 1, 3, A))), SequenceGap)
    sink.publish(0, {0: [run]})
    assert values(sink.read()) == [*A, *B]


def test_a_run_that_is_not_as_the_publication_says_is_refused(sink: Sink) -> None:
    run = sink.stage(1, A, B)
    for lie in (run._replace(messages=2, batches=2), run._replace(hash=run.hash ^ 1)):
        sink.begin()
        assert isinstance(refused(sink.publish(0, {0: [lie]})), StagedRunGone)
    sink.begin()
    assert isinstance(refused(sink.publish(1, {0: [run]})), StagedRunGone)  # of batch 0
    assert sink.read() == []


def test_what_nobody_publishes_expires_after_an_hour_and_frees_its_entries(sink: Sink) -> None:
    old = sink.stage(1, A)
    look(sink, HOUR_MS // 2)
    new = sink.stage(2, B)
    look(sink, HOUR_MS // 2 + 1_000)

    assert isinstance(refused(sink.publish(0, {0: [old]})), StagedRunGone)
    sink.begin()
    assert isinstance(sink.publish(0, {0: [new]}), m.ScatterConfirm)
    assert values(sink.read()) == B
    restart(sink)
    assert values(sink.read()) == B


def test_wrong_batches_are_not_staged(sink: Sink) -> None:
    producer = sink.request(0, 0, 1, 0, A, producer=5)
    due = sink.request(0, 0, 1, 0, A, dues=[1, 2])
    other = sink.stage(1, A)
    mine = sink.request(0, 3, 1, 1, A)
    for request in (producer, due, mine):
        assert isinstance(refused(sink.rig.answer(1, request)), BadRequest)
    assert sink.publish(0, {0: [other]})


def test_a_query_is_listed_and_can_be_forgotten(sink: Sink) -> None:
    reply = sink.publish(3, {0: [sink.stage(1, A, batch_id=3)]})
    first = sink.info.addresses[0]
    assert sink.rig.answer(1, ListSinks(first)) == SinkList([SinkInfo("q", 3, reply.stamp)], False)

    assert sink.rig.answer(1, ForgetSink(first, "q")) == SinkReleased(True)
    assert sink.rig.answer(1, ForgetSink(first, "q")) == SinkReleased(False)

    assert sink.rig.answer(1, ListSinks(first)) == SinkList([], False)
    assert isinstance(sink.publish(3, {0: [sink.stage(2, A, batch_id=3)]}), m.ScatterConfirm)
    assert values(sink.read()) == A + A


def test_consumers_get_what_was_published(sink: Sink) -> None:
    sink.publish(0, {0: [sink.stage(1, A, B), sink.stage(2, C)]})
    got: list[bytes] = []
    for _ in range(9):
        pull = m.Pull(sink.info.addresses[0], "crew", 2, 1 << 20, lease_ms=5_000)
        reply = sink.rig.answer(1, pull)
        if not isinstance(reply, m.Granted) or not reply.fence:
            break
        fetched = m.Fetched(reply.address, 0, 0, 0, reply.batches)
        for batch in opened(fetched, sink.group(0)):
            for offset, value in enumerate(batch.values(), batch.header.first_offset):
                if reply.offset <= offset < reply.next_offset:
                    got.append(value)
        ack = m.Ack(
            sink.info.addresses[0], "crew", [(reply.fence, reply.offset, reply.next_offset)]
        )
        sink.rig.answer(1, ack)
    assert got == [*A, *B, *C]


def test_an_answer_that_ends_within_a_publication_says_so(sink: Sink) -> None:
    sink.publish(0, {0: [sink.stage(1, A, B), sink.stage(2, C)]})
    sink.publish(1, {0: [sink.stage(3, D, batch_id=1)]})
    cuts = {}
    for offset in (0, 1, 2, 3, 6):
        fetched = sink.fetch(0, offset, 1)
        cuts[offset] = fetched.next_offset, fetched.is_cut
    assert cuts == {0: (2, True), 1: (2, True), 2: (3, True), 3: (6, False), 6: (7, False)}
    whole = sink.fetch(0, 0)
    assert (whole.next_offset, whole.is_cut) == (7, False)


def test_a_client_of_an_earlier_release_is_told_to_upgrade(sink: Sink) -> None:
    sink.publish(0, {0: [sink.stage(1, A, B)]})
    sink.publish(1, {0: [sink.stage(2, D, batch_id=1)]})
    earlier = m.Fetch(sink.info.addresses[0], 0, 1 << 20)
    assert "upgrade" in str(refused(sink.rig.answer(1, earlier)))
    reply = sink.rig.answer(1, m.Fetch(sink.info.addresses[0], 3, 1 << 20))
    assert isinstance(reply, m.Fetched), "a batch alone at its stamp is as any other"


def test_a_run_that_is_touched_again_keeps_its_entries_whatever_was_proposed_before() -> None:
    """Retention had proposed to give up the entries of a run that looked forgotten."""
    state = PartitionState()
    old = StagedRecord(1, "q", 0, 0, 100, 2, 5, 50)
    state.staging.add(7, old)
    moved = LogStartMoved(20, 4, untouched_since=200)
    state.staging.add(21, old._replace(number=1, stamp=300))
    state.next_offset = 9

    state.move_start(moved)

    assert state.staging.batches(1) == 2
    assert (state.log_start, state.first_index) == (4, 7)


def test_an_aborted_publication_is_granted_to_nobody(wide: Sink) -> None:
    grant = wide.rig.answer(1, m.OpenProducer())
    wide.rig.answer(1, wide.rig.batch(wide.info, grant, 0, b"before", keys=[b"k"]))
    lie = wide.publication(0, {0: [wide.stage(1, A)], 1: [StagedRun(99, 1, 1, 5)]})
    # Partition 1 refuses its part, so what partition 0 has prepared is void.
    assert isinstance(refused(wide.ask(lie)), StagedRunGone)
    wide.rig.answer(1, wide.rig.batch(wide.info, grant, 1, b"behind", keys=[b"k"]))
    state = wide.rig.shard.topics.partition(wide.group(0))[1].state
    assert state.voids, "nothing was aborted, so nothing is shown"

    wide.rig.answer(1, m.OpenCluster(wide.info.addresses[0], "crew", Mode.KEYED))
    pull = m.Pull(wide.info.addresses[0], "crew", 9, 1 << 20, lease_ms=5_000, mode=Mode.KEYED)
    reply = wide.rig.answer(1, pull)

    assert isinstance(reply, m.Granted)
    assert len(reply.runs) == 2, "messages on both sides of it are granted"
    batches = opened(m.Fetched(reply.address, 0, 0, 0, reply.batches), wide.group(0))
    assert not any(batch.header.columns & Columns.PUBLICATION for batch in batches)


def test_no_message_gets_the_stamp_of_an_attempt_that_was_barred(wide: Sink) -> None:
    grant = wide.rig.answer(1, m.OpenProducer())
    # Partition 0 remembers the query, and nothing else of it; partition 1 refuses its part.
    lie = wide.publication(0, {1: [StagedRun(99, 1, 1, 5)]})
    assert isinstance(refused(wide.ask(lie)), StagedRunGone)
    state = wide.rig.shard.topics.partition(wide.group(0))[1].state
    barred = state.last_stamp
    wide.rig.time.wall -= 900  # the clock was set back since
    assert wide.rig.answer(1, wide.rig.batch(wide.info, grant, 0, b"x")).stamp > barred
