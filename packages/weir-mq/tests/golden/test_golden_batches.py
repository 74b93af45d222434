"""Batches are the bytes of `batches.json`, both ways; a difference names the field that moved."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import pytest

from weir.model.batch import HEADER_SIZE, VERSION, Batch, Columns, Compression, stamped
from weir.model.batch_builder import encode
from weir.model.columns import (
    Origins,
    Publication,
    References,
    Scattered,
    StagedRun,
    chained,
)

GOLDEN = json.loads(Path(__file__).with_name("batches.json").read_text(encoding="utf-8"))
CASES: list[Any] = [pytest.param(case, id=case["name"]) for case in GOLDEN["batches"]]


def unhex(items: list[str | None]) -> list[bytes | None]:
    return [None if item is None else bytes.fromhex(item) for item in items]


def unhex_pairs(rows: list[Mapping[str, str]]) -> list[dict[str, bytes]]:
    return [{name: bytes.fromhex(value) for name, value in pairs.items()} for pairs in rows]


#: How the JSON spells an argument of `encode`.
SPELLINGS: dict[str, Callable[[Any], Any]] = {
    "values": unhex,
    "keys": unhex,
    "headers": unhex_pairs,
    "origins": lambda columns: Origins(**columns),
    "references": lambda given: References(
        given["size"], given["hash"], tuple(tuple(run) for run in given["runs"])
    ),
    "publication": lambda given: Publication(
        given["query"], given["batch"], tuple(StagedRun(*run) for run in given["runs"])
    ),
    "scattered": lambda given: Scattered(given["number"], tuple(given["parts"])),
}


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    return {
        name: SPELLINGS[name](given) if name in SPELLINGS else given
        for name, given in case["arguments"].items()
    }


def golden_bytes(case: dict[str, Any]) -> bytes:
    return b"".join(bytes.fromhex(field[1]) for field in case["fields"])


@pytest.mark.parametrize("case", CASES)
def test_encode_makes_the_golden_bytes(case: dict[str, Any]) -> None:
    batch = bytes(encode(**arguments(case)))
    if case["arguments"].get("compression"):
        # Another release of a library may pack otherwise; what it says inside must be the same.
        assert contents(Batch(batch)) == contents(Batch(golden_bytes(case)))
        return
    if "stamped" in case:
        batch = stamped(batch, **case["stamped"]) + batch[HEADER_SIZE:]
    at, made = 0, []
    for name, golden, _ in case["fields"]:
        made.append((name, batch[at : at + len(golden) // 2].hex()))
        at += len(golden) // 2
    assert made == [(name, golden) for name, golden, _ in case["fields"]]
    assert batch[at:] == b""


def contents(batch: Batch) -> list[Any]:
    return [*batch.messages(), batch.header.columns, batch.header.raw_size, batch.piece]


@pytest.mark.parametrize("case", CASES)
def test_batch_reads_the_golden_bytes(case: dict[str, Any]) -> None:
    given = arguments(case)
    batch = Batch(golden_bytes(case)).check(given["group"])
    values = [given["references"].pack()] if "references" in given else given["values"]
    n = len(values)
    if publication := given.get("publication"):
        assert batch.header.count == publication.messages
        assert batch.publication == publication
        assert batch.scattered == given["scattered"]
        assert batch.values() == [publication.pack()]
        return
    header = batch.header
    assert header.version == case["version"]
    assert (header.producer, header.epoch, header.count, header.sequence) == (
        given.get("producer", 0),
        given.get("epoch", 0),
        n,
        given.get("sequence", 0),
    )
    place = case.get("stamped", {"stamp": 0, "first_offset": 0})
    assert {"stamp": header.stamp, "first_offset": header.first_offset} == place
    assert batch.values() == values
    assert batch.references == given.get("references")
    assert batch.scattered == given.get("scattered")
    at = None if batch.piece is None else batch.piece.position
    assert at == given.get("chunk_at")
    assert batch.keys() == given.get("keys", [None] * n)
    assert batch.tags() == given.get("tags", [None] * n)
    assert batch.times() == given.get("times", [given.get("base_time", 0)] * n)
    assert batch.headers() == given.get("headers", [{}] * n)
    for flag, name in ((Columns.DUE, "dues"), (Columns.EXPIRES, "expires")):
        numbers = batch.numbers(flag)
        assert (None if numbers is None else list(numbers)) == given.get(name)
    for name in Origins.__slots__:
        assert (batch.origins is None) == ("origins" not in given)
        if batch.origins is not None:
            assert list(getattr(batch.origins, name)) == list(getattr(given["origins"], name))
    assert batch.is_verified == given.get("verified", False)


def test_the_golden_bytes_cover_every_column_and_form_of_this_version() -> None:
    headers = [Batch(golden_bytes(case)).header for case in GOLDEN["batches"]]
    written = {header.columns for header in headers}
    known = [flag for flag in Columns if flag is not Columns.FOREIGN]
    parts = {
        Columns.PUBLICATION: Columns.SCATTERED,  # a publication is a part of a scattering
        Columns.VERIFIED: Columns.ORIGIN,  # devices are verified, and nobody else
    }
    known.remove(Columns.GENERATION)  # with keys and tags, as fan-in may write it
    known.remove(Columns.SLICED)  # never published nor stored: `test_golden_slices.py`
    alone = {int(flag | Columns.VALUE | parts.get(flag, 0)) for flag in known}
    assert written >= alone  # each one alone
    shared = reduce(or_, (int(flag) for flag in known if flag < Columns.FOREIGN))
    assert shared in written  # and all together
    assert {header.compression for header in headers} == set(Compression)


def test_the_golden_bytes_are_final_and_of_this_version() -> None:
    assert GOLDEN["final"] is True
    assert {case["version"] for case in GOLDEN["batches"]} == {VERSION} == {1}


def test_the_hash_of_a_value_is_made_of_the_hashes_of_its_chunks() -> None:
    """By hand: xxh3-64 of two u64, little-endian: the hash so far, from 0 on, and a chunk's."""
    (first,) = (case for case in GOLDEN["batches"] if case["name"] == "a chunk in zstd")
    (second,) = (case for case in GOLDEN["batches"] if case["name"] == "a chunk")
    value = 0
    for case in (first, second):
        value = chained(value, Batch(golden_bytes(case)).header.hash)
    assert value == 0xB5AD97EFFAFDA674
