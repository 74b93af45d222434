"""The load options keys, tags and partitions: how they are read, and which rows pass."""

from __future__ import annotations

from typing import Any

import pytest

from weir.errors import BadOption
from weir.model.arrow import record_batch
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.spark.selection import Selection


def test_lists_are_read() -> None:
    found = Selection.parse(
        {
            "keys": '["EWR", "Zürich", {"hex": "00FF"}, "", null]',
            "tags": '["late", ""]',
            "partitions": "[0, 2]",
        }
    )
    assert found.keys == frozenset([b"EWR", "Zürich".encode(), b"\x00\xff", b"", None])
    assert found.tags == frozenset(["late", ""])
    assert found.partitions == frozenset([0, 2])
    assert Selection.parse({"topic": "t"}) == Selection()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("keys", "EWR"),
        ("keys", "[]"),
        ("keys", '{"hex": "00"}'),
        ("keys", '[{"hex": "0"}]'),
        ("keys", '[{"hex": "00", "more": 1}]'),
        ("keys", "[7]"),
        ("keys", '["\\ud800"]'),
        ("tags", "late"),
        ("tags", "[null]"),
        ("tags", '["\\ud800"]'),
        ("partitions", "0,1"),
        ("partitions", "[-1]"),
        ("partitions", "[true]"),
        ("partitions", '["0"]'),
    ],
)
def test_what_is_no_list_of_them_is_refused(name: str, text: str) -> None:
    with pytest.raises(BadOption, match=f"option {name} is .*give a JSON list of {name} such as"):
        Selection.parse({name: text})


def test_rows_are_chosen_by_key_and_tag() -> None:
    raw = encode(
        [b"0", b"1", b"2", b"3"],
        keys=[b"a", None, b"", b"a"],
        tags=["red", "red", None, "blue"],
        group=65_536,
    )
    batch = Batch(bytes(raw))
    rows = record_batch(batch, "t", 0)

    def passing(**options: str) -> Any:
        selection = Selection.parse(options)
        if not selection.wants(batch):
            return None
        return selection.filter(rows).column("value").to_pylist()

    assert passing() == [b"0", b"1", b"2", b"3"]
    assert passing(keys='["a"]') == [b"0", b"3"]
    assert passing(keys='["a"]', tags='["blue"]') == [b"3"]
    assert passing(tags='["red", "green"]') == [b"0", b"1"]
    assert passing(tags='[""]') == [b"2"]
    assert passing(tags='["", "blue"]') == [b"2", b"3"]
    assert passing(keys="[null]") == [b"1"]
    assert passing(keys='[""]') == [b"2"]
    assert passing(keys='["nobody"]') == []
    assert passing(tags='["green"]') is None, "told by the list of tags alone"


def test_a_batch_without_tags_and_keys_is_all_untagged() -> None:
    batch = Batch(bytes(encode([b"0", b"1"], group=65_536)))
    assert Selection(tags=frozenset([""])).wants(batch)
    assert not Selection(tags=frozenset(["late"])).wants(batch)
    rows = record_batch(batch, "t", 0)
    assert Selection(tags=frozenset([""])).filter(rows).num_rows == 2
    assert Selection(keys=frozenset([None])).filter(rows).num_rows == 2
    assert Selection(keys=frozenset([b""])).filter(rows).num_rows == 0


def test_each_selection_has_a_digest_of_its_own() -> None:
    texts = [
        {},
        {"keys": '["a"]'},
        {"keys": "[null]"},
        {"keys": '[""]'},
        {"tags": '["a"]'},
        {"tags": '[""]'},
        {"partitions": "[0]"},
        {"keys": '["a"]', "partitions": "[0]"},
    ]
    digests = [Selection.parse(options).digest for options in texts]
    assert digests[0] == ""
    assert len(set(digests)) == len(texts)
    one, other = ({"keys": text} for text in ('["a", "b"]', '[{"hex": "62"}, "a", "a"]'))
    assert Selection.parse(one).digest == Selection.parse(other).digest
    # Checkpoints hold it: it must not change from release to release.
    assert Selection.parse(one).digest == "6363c9744941f90b"


def test_tags_are_asked_for_unless_they_are_many() -> None:
    assert Selection().asked == ()
    assert Selection(tags=frozenset(("b", "", "a"))).asked == ("", "a", "b")
    assert Selection(tags=frozenset(map(str, range(65)))).asked == ()
