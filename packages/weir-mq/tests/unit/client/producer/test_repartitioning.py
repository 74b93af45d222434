"""Batches of a partition that has ended, taken apart: every column goes with its message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weir.client.core.batcher import Gathered
from weir.client.producer.receipts import BatchReceipt, PendingMessage, Unconfirmed
from weir.client.producer.sender import Partitioner, taken_apart
from weir.errors import PartitionEnded, UnknownTopic
from weir.model.batch import Batch
from weir.model.topic import partition_for

KEYS = [b"k%d" % n for n in range(9)]


def partitioner(partitions: int, *closed: int) -> Partitioner:
    senders: Any = [SimpleNamespace(gathering=False, is_idle=p != 1) for p in range(partitions)]
    found = Partitioner("t")
    found.begin(senders, closed, 0)
    return found


def rows(batch: Gathered[Any] | Batch) -> list[Any]:
    if isinstance(batch, Gathered):
        batch = Batch(batch.encode(1, 2, 3, 4))
    due = batch.numbers(16), batch.numbers(32)
    dues = [column.tolist() if column is not None else None for column in due]
    return [*zip(batch.values(), batch.keys(), batch.tags(), batch.times(), batch.headers(),
                 *(column or [0] * len(batch) for column in dues), strict=True)]  # fmt: skip


@pytest.mark.parametrize("full", [True, False])
def test_nothing_of_a_message_is_lost(full: bool) -> None:
    unconfirmed = Unconfirmed("t", 600, 1)
    whole = unconfirmed.begin(2)
    whole.size, whole.count = 1_000, 9
    more: dict[str, Any] = {}
    if full:
        more = {
            "tags": ["a", None, "b"] * 3, "times": list(range(9)), "dues": list(range(9, 18)),
            "headers": [{"n": b"%d" % n} if n % 2 else {} for n in range(9)],
            "expires": list(range(20, 29)),
        }  # fmt: skip
    data = Gathered(whole, 77, [b"%d" % n for n in range(9)], KEYS, **more).encode(1, 2, 3, 4)
    found = taken_apart(whole, data, partitioner(4, 2), unconfirmed)
    assert sum(part.owner.size for _, part in found) == 1_000
    assert whole.size == 0
    by_value = {row[0]: row for _, part in found for row in rows(part)}
    assert [by_value[row[0]] for row in rows(Batch(data))] == rows(Batch(data))
    for partition, part in found:
        assert {partition_for(key, 4, {2}) for key in part.keys or ()} == {partition}
        assert [*part.values] == sorted(part.values)


def test_what_has_no_key_stays_together() -> None:
    unconfirmed = Unconfirmed("t", 600, 1)
    whole = unconfirmed.begin(2)
    data = Gathered(whole, 77, [b"a", b"b"]).encode(1, 2, 3, 4)
    ((partition, part),) = taken_apart(whole, data, partitioner(4, 1, 2), unconfirmed)
    assert partition == 3
    assert part.keys is None
    assert part.values == [b"a", b"b"]


def test_the_whole_is_settled_once_all_parts_are() -> None:
    unconfirmed = Unconfirmed("t", 600, 1)
    whole = unconfirmed.begin(2)
    whole.count = 9
    data = Gathered(whole, 77, [b"%d" % n for n in range(9)], KEYS).encode(1, 2, 3, 4)
    found = taken_apart(whole, data, partitioner(4, 2), unconfirmed)
    for number, (partition, part) in enumerate(found):
        assert whole.result_of_parts() is None
        part.owner.resolve(
            BatchReceipt(partition, 5, len(part), 100 * partition, number + 1, False)
        )
    done = whole.result_of_parts()
    assert done == BatchReceipt(2, 5, 9, -1, len(found), False)
    for place, key in enumerate(KEYS):
        partition = partition_for(key, 4, {2})
        receipt = PendingMessage(whole, place).receipt(done)
        before = sum(partition_for(k, 4, {2}) == partition for k in KEYS[:place])
        assert (receipt.partition, receipt.offset) == (partition, 100 * partition + before)


def test_what_one_part_fails_by_fails_the_whole() -> None:
    unconfirmed = Unconfirmed("t", 600, 1)
    whole = unconfirmed.begin(2)
    data = Gathered(whole, 77, [b"%d" % n for n in range(9)], KEYS).encode(1, 2, 3, 4)
    (_, first), *others = taken_apart(whole, data, partitioner(4, 2), unconfirmed)
    error = PartitionEnded("another")
    first.owner.resolve(error)
    for partition, part in others:
        part.owner.resolve(BatchReceipt(partition, 0, len(part), 0, 1, False))
    assert whole.result_of_parts() is error


def test_a_partition_is_left_alone_once_nothing_is_under_way_there() -> None:
    one = partitioner(4)
    one.close_idle({1, 2, 9})
    assert one.closed == {2}, "what is under way to 1, and what follows it, goes elsewhere together"
    assert [one.next() for _ in range(4)] == [1, 3, 0, 1]
    one.closed.add(1)
    assert one.turn == 3
    with pytest.raises(UnknownTopic):
        one.choose(None, 4)
