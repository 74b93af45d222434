"""What a shard counts: by partition, at batch rate, from what really happened."""

from __future__ import annotations

from typing import Any

from weir.broker.api.counts import Counts, Histogram
from weir.protocol.client import messages as m


def test_a_histogram_has_each_value_in_one_class() -> None:
    found = Histogram((1, 2, 5))
    for value in (0, 1, 1.5, 2, 5, 6):
        found.add(value)
    found.add(3, count=2)
    assert found.counts == [2, 2, 3, 1]
    assert found.total == 21.5


def test_a_partition_that_is_gone_begins_anew() -> None:
    counts = Counts()
    counts.committed(7, 1.0, 3, 100)
    assert counts.partition(7) is counts.partition(7)
    counts.forget(7)
    counts.forget(8)
    assert counts.partition(7).messages_in == 0


def test_a_shard_counts_what_it_took_gave_and_refused(rig: Any) -> None:
    session = rig.connect()
    info, grant = rig.topic(session), rig.answer(session, m.OpenProducer())
    counts = rig.shard.counts
    group = info.addresses[0].group
    batch = rig.batch(info, grant, 0, b"a", b"b")
    rig.answer(session, batch)
    assert rig.answer(session, batch).duplicate
    rig.answer(session, rig.batch(info, grant, 9, b"z"))
    rig.answer(session, m.Fetch(info.addresses[0], 0, 1 << 20))
    rig.answer(session, m.Fetch(info.addresses[0], 2, 1 << 20))
    found = counts.partition(group)
    assert (found.batches_in, found.messages_in) == (1, 2)
    assert (found.replies_out, found.messages_out) == (1, 2)
    assert found.bytes_in == found.bytes_out == len(batch.batch)
    assert (counts.confirms, counts.repeats) == (2, 1)
    assert counts.refused == {9: 1}
    assert sum(counts.latency.counts) == 1
    assert counts.reads_cached + counts.reads_disk == 1
    assert counts.flushes > 0
    assert counts.flushed_bytes > 0


def test_answers_to_devices_are_counted_apart() -> None:
    counts = Counts()
    counts.devices.told([0, 0, 0])
    counts.devices.told([0, 9, 15, 9])
    assert counts.devices.confirms == 4
    assert counts.devices.refused == {9: 2, 15: 1}
    assert not counts.refused
