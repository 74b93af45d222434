"""Values of chunks in Spark: loaded, refused, or null."""

from __future__ import annotations

from typing import Any

import pytest

from weir.client.core.delivered_batches import LargeDelivered, deliver
from weir.errors import BadBatch, BadOption, ValueTooLarge
from weir.model.arrow import record_batch
from weir.model.batch import parse
from weir.model.batch_builder import encode
from weir.model.columns import References, chained
from weir.model.ids import Address, group_of
from weir.protocol.client import messages as m
from weir.spark import fetcher
from weir.spark.fetcher import Portion, Source, load, record_batches
from weir.spark.options import LargeValues, Options
from weir.spark.planning import Range
from weir.spark.selection import Selection

ADDRESS = Address(0, 0, group_of(1, 0))
PIECES = [b"a" * 70, b"b" * 30, b"c"]
WHOLE = b"".join(PIECES)


def chunk(place: int) -> bytearray:
    at = len(b"".join(PIECES[:place]))
    return encode([PIECES[place]], group=ADDRESS.group, chunk_at=at, compression=1)


def closing(wrong: int = 0) -> LargeDelivered:
    hash_ = wrong
    for place in range(len(PIECES)):
        hash_ = chained(hash_, parse(chunk(place)).hash)
    references = References(len(WHOLE), hash_, ((5, 2), (9, 1)))
    batch = encode([], group=ADDRESS.group, keys=[b"k"], references=references)
    (part,) = deliver([batch], ADDRESS.group, "t", 0, 0, 1)
    assert isinstance(part, LargeDelivered)
    return part


class FakeClient:
    """Has the three chunks, compressed, and gives one at a time."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def request(self, request: Any) -> m.FetchedChunks:
        self.asked.append((request.index, request.count))
        place = {5: 0, 6: 1, 9: 2}[request.index]
        return m.FetchedChunks(ADDRESS, request.index, (chunk(place),))


def test_a_value_is_put_together_from_its_chunks() -> None:
    client = FakeClient()
    assert load(client, ADDRESS, closing()) == WHOLE  # type: ignore[arg-type]
    assert client.asked == [(5, 2), (6, 1), (9, 1)]


def test_a_value_that_is_not_what_was_published_is_refused() -> None:
    with pytest.raises(BadBatch, match="not the value"):
        load(FakeClient(), ADDRESS, closing(wrong=1))  # type: ignore[arg-type]


def test_the_value_is_a_column_like_any_other_and_null_without() -> None:
    part = closing()
    for value in (WHOLE, None):
        (row,) = record_batch(part.batch, "t", 0, large=value).to_pylist()
        assert (row["value"], row["key"], row["offset"]) == (value, b"k", 0)


def test_over_the_limit_a_query_ends_or_gets_null() -> None:
    part, size = closing(), len(WHOLE)
    assert LargeValues(size).loads(part)
    assert not LargeValues(size - 1, null=True).loads(part)
    with pytest.raises(ValueTooLarge, match="t/0 offset 0 has 101 bytes, over maxValueBytes=100"):
        LargeValues(size - 1).loads(part)


def test_a_value_that_is_not_selected_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    part = closing()
    source = Source((("broker", 1),), "t", ADDRESS, LargeValues(len(WHOLE) - 1))
    monkeypatch.setattr(fetcher._Leader, "fetch", lambda *_: ([part], 1))

    def read(key: bytes) -> list[Any]:
        selection = Selection(keys=frozenset([key]))
        return list(record_batches(Portion(source, Range(0, 0, 1)), 1 << 20, selection))

    assert read(b"other") == []
    with pytest.raises(ValueTooLarge):
        read(b"k")


def test_a_value_that_is_no_column_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    part = closing()
    source = Source((("broker", 1),), "t", ADDRESS, LargeValues(len(WHOLE) - 1))
    monkeypatch.setattr(fetcher._Leader, "fetch", lambda *_: ([part], 1))
    for selection in (Selection(), Selection(keys=frozenset([b"k"]))):
        (rows,) = record_batches(Portion(source, Range(0, 0, 1)), 1 << 20, selection, ("offset",))
        assert rows.to_pylist() == [{"offset": 0}]


def test_both_are_options() -> None:
    given = {"topic": "t", "maxValueBytes": "99", "largeValues": "NULL"}
    assert Options.parse(given).large == LargeValues(99, null=True)
    assert Options.parse({"topic": "t"}).large == LargeValues()
    with pytest.raises(BadOption, match="error or null"):
        Options.parse({"topic": "t", "largeValues": "skip"})
    with pytest.raises(BadOption, match="maxValueBytes"):
        Options.parse({"topic": "t", "maxValueBytes": str(1 << 31)})
