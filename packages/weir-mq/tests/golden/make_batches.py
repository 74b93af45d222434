"""Write `batches.json`: `python tests/golden/make_batches.py`, when a version of the format closes.

The cases and their arguments are here; the bytes are what `encode` makes of them, cut into fields
by the layout in the docstrings of `weir.model.batch` and `columns`. Bytes of a closed
version never change: a difference in `git diff` is a new version, or a mistake.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from weir.codec import padded
from weir.model.batch import HEADER_SIZE, VERSION, Columns, Compression, parse, stamped
from weir.model.batch_builder import encode
from weir.model.columns import Origins, Publication, References, Scattered, StagedRun

Field = tuple[str, bytes, str]

COMMENT = (
    "Batches, field by field: [name, hex, what it says]. Version 1 is final: these bytes never "
    "change. Values, keys and header values of the arguments are hex. What lies compressed is one "
    "field; another release of its library may write it otherwise, and must read it."
)
_KEYS, _TAGS = [b"k", None, b"", b"k"], ["blue", None, "größe", "blue"]
_HEADERS: list[dict[str, bytes]] = [{"a": b"1", "ä": b""}, {}, {"a": b"2"}, {}]
_ORIGINS = Origins([5, 5, 6, 2**64 - 1], [1, 1, 2, 0], [0, 1, 2**32 - 1, 7], [7, 7, 0, 255])
_REPLACED = replace(_ORIGINS, generations=[0, 0, 1, 2**24 - 1])
_VALUES = [b"one", b"", b"three", b"4"]
_WHO = {
    "group": 65_538,
    "producer": 7,
    "epoch": 2,
    "sequence": 40,
    "base_time": 1_700_000_000_000_000,
}
_TIMES = [1_700_000_000_000_001, 0, -1, 2**62]
_DUES, _EXPIRES = [0, 1_700_000_060_000_000, 0, 1], [0, 0, 1_700_000_120_000_000, 2]
_REFERENCES = References(4_000_000, 0x0123456789ABCDEF, ((17, 2), (21, 1)))
_SCATTERED = Scattered(9, (131_076, 131_079))
_RUNS = StagedRun(2**62, 2, 3_000_000, 2**63), StagedRun(5, 1, 1, 9)
_PUBLICATION = Publication("größe", 12, _RUNS)
_STAMPED = {"stamp": 1_700_000_000_000 << 16 | 3, "first_offset": 1_000}
_LONG = [b"a device says the same again and again: open, closed, open, closed"] * 4
_LZ4, _ZSTD = {"compression": Compression.LZ4}, {"compression": Compression.ZSTD}
_ALL = {
    "keys": _KEYS, "tags": _TAGS, "times": _TIMES, "dues": _DUES, "expires": _EXPIRES,
    "headers": _HEADERS,
}  # fmt: skip

#: Name, arguments of `encode`, and what the leader writes if the case is a stamped batch.
CASES: list[tuple[str, dict[str, Any], dict[str, int] | None]] = [
    ("one empty value", {"group": 65_536, "values": [b""]}, None),
    ("values", {**_WHO, "values": _VALUES}, None),
    ("values, stamped by the leader", {**_WHO, "values": _VALUES}, _STAMPED),
    ("values of one width", {"group": 65_538, "values": [b"1234", b"5678"]}, None),
    ("keys", {**_WHO, "values": _VALUES, "keys": _KEYS}, None),
    ("tags", {**_WHO, "values": _VALUES, "tags": _TAGS}, None),
    ("times", {**_WHO, "values": _VALUES, "times": _TIMES}, None),
    ("dues", {**_WHO, "values": _VALUES, "dues": _DUES}, None),
    ("expires", {**_WHO, "values": _VALUES, "expires": _EXPIRES}, None),
    ("headers", {**_WHO, "values": _VALUES, "headers": _HEADERS}, None),
    ("fan-in: origins", {**_WHO, "values": _VALUES, "origins": _ORIGINS}, None),
    ("every column", {**_WHO, "values": _VALUES, **_ALL, "origins": _ORIGINS}, None),
    ("lz4", {**_WHO, "values": _LONG, **_LZ4}, None),
    ("zstd", {**_WHO, "values": _LONG, **_ZSTD}, None),
    ("lz4 behind a tag list", {**_WHO, "values": _LONG, **_ALL, **_LZ4}, None),
    ("compression that gains nothing", {**_WHO, "values": [b"1"], **_ZSTD}, None),
    ("a chunk", {**_WHO, "values": [b"a piece"], "chunk_at": 1_000_000}, _STAMPED),
    ("a chunk in zstd", {**_WHO, "values": _LONG[:1], "chunk_at": 0, **_ZSTD}, None),
    ("references", {**_WHO, "values": [], "references": _REFERENCES}, _STAMPED),
    (
        "references with every other column",
        {
            **_WHO, "values": [], "references": _REFERENCES,
            **{name: column[:1] for name, column in _ALL.items()},
        },
        None,
    ),
    ("a part of a scattering", {**_WHO, "values": _VALUES, "scattered": _SCATTERED}, _STAMPED),
    (
        "a part behind a tag list, in lz4",
        {**_WHO, "values": _LONG, "tags": _TAGS, "scattered": _SCATTERED, **_LZ4},
        None,
    ),
    ("values of a schema", {**_WHO, "values": _VALUES, "schema": 3}, _STAMPED),
    (
        "a publication",
        {**_WHO, "values": [], "scattered": _SCATTERED, "publication": _PUBLICATION},
        _STAMPED,
    ),
    (
        "verified devices",
        {**_WHO, "values": _VALUES, "origins": _ORIGINS, "verified": True},
        _STAMPED,
    ),
    (
        "verified devices that were replaced, with keys and tags",
        {
            **_WHO, "values": _VALUES, "keys": _KEYS, "tags": _TAGS, "origins": _REPLACED,
            "verified": True,
        },
        None,
    ),
    ("values of a schema, in zstd", {**_WHO, "values": _LONG, "schema": 2**32 - 1, **_ZSTD}, None),
]  # fmt: skip


class Layout:
    """Cuts the bytes of a batch into named fields."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.fields: list[Field] = []

    def take(self, name: str, size: int, says: str) -> bytes:
        part = self.data[self.at : self.at + size]
        self.fields.append((name, part, says))
        self.at += size
        return part

    def numbers(self, name: str, code: str, n: int, what: str = "") -> tuple[int, ...]:
        size = n * struct.calcsize("<" + code)
        found = struct.unpack_from(f"<{n}{code}", self.data, self.at)
        kind = {"i": "int32", "I": "u32", "q": "int64", "Q": "u64", "B": "u8"}[code]
        self.take(name, padded(size), f"{kind} {list(found)}{what}, padded to 8")
        return found

    def column(self, name: str, n: int) -> None:
        *_, size = self.numbers(f"{name} offsets", "i", n + 1)
        self.take(f"{name} data", padded(size), f"{size} bytes, padded to 8")

    def header(self) -> None:
        h = parse(self.data)
        for name, size, says in (
            ("magic", 4, '"weir"'),
            ("version", 1, f"{h.version}"),
            ("compression", 1, f"{h.compression}: {Compression(h.compression).name.lower()}"),
            ("header size", 2, f"{h.header_size}"),
            ("total size", 4, f"{h.total_size}"),
            ("columns", 4, f"{h.columns:#x}: {flags(h.columns)}"),
            ("producer", 8, f"{h.producer}"),
            ("epoch", 4, f"{h.epoch}"),
            ("count", 4, f"{h.count} messages"),
            ("sequence", 8, f"{h.sequence}, of the first message"),
            ("base time", 8, f"{h.base_time} µs since 1970"),
            ("size of columns", 4, f"{h.raw_size}, uncompressed"),
            ("size of the compressed part", 4, f"{h.packed_size}"),
            (
                "hash", 8,
                f"xxh3-64 of bytes 0 to 56{', 80 to 84' if h.schema else ''} and from 88 on, "
                "seeded with the group",
            ),
            ("stamp", 8, f"{h.stamp}, by the leader"),
            ("first offset", 8, f"{h.first_offset}, by the leader"),
            ("schema", 4, f"{h.schema}" + ": none" * (not h.schema)),
            ("crc", 4, "CRC-32C of bytes 0 to 84"),
        ):  # fmt: skip
            self.take(name, size, says)

    def bare(self, there: Columns, n: int) -> None:
        if Columns.CHUNK in there:
            self.numbers("chunk", "Q", 2, ": position, bytes of the piece")
        if Columns.SCATTERED in there:
            _, parts = self.numbers("scattering", "Q", 2, ": number, number of parts")
            self.numbers("parts", "Q", parts, ": group · 2, + 1 for acks")
        if Columns.DUE in there:
            self.numbers("due", "q", n)

    def columns(self) -> None:
        h = parse(self.data)
        there, n = Columns(h.columns), h.count
        if Columns.PUBLICATION in there:
            n = 1
        if Columns.TAG in there:
            (count, _) = self.numbers("tag list head", "I", 2, ": number of tags, 0")
            self.column("tag list", count)
        self.bare(there, n)
        if h.compression:
            self.take("compressed part", h.packed_size, "everything behind it would lie here")
            self.take("padding", len(self.data) - self.at, "to 8")
            return
        self.column(
            "references instead of a value" if Columns.REFERENCES in there
            else "a publication instead of a value" if Columns.PUBLICATION in there
            else "value",
            n,
        )  # fmt: skip
        if Columns.KEY in there:
            self.take("key validity", padded((n + 7) // 8), "bitmap, lowest bit first, padded to 8")
            self.column("key", n)
            self.numbers("key hash", "I", n)
        if Columns.TAG in there:
            self.numbers("tag index", "i", n)
        for flag in (Columns.TIME, Columns.EXPIRES):
            if flag in there:
                self.numbers(str(flag.name).lower(), "q", n)
        if Columns.HEADERS in there:
            *_, pairs = self.numbers("headers of each", "i", n + 1)
            self.column("header name", pairs)
            self.column("header value", pairs)
        if Columns.ORIGIN in there:
            for name, code in (("hub", "Q"), ("boot", "I"), ("sequence", "I"), ("sn", "B")):
                self.numbers(f"origin {name}", code, n)
        if Columns.GENERATION in there:
            self.numbers("origin generation", "I", n)


def flags(columns: int) -> str:
    return ", ".join(str(flag.name).lower() for flag in Columns if flag in Columns(columns))


def fields_of(data: bytes) -> list[Field]:
    layout = Layout(data)
    layout.header()
    layout.columns()
    assert layout.at == len(data), "the layout does not end where the batch does"
    return layout.fields


def spelled(arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments as JSON spells them: bytes are hex."""
    for name, given in arguments.items():
        if name in ("values", "keys"):
            yield name, [None if item is None else item.hex() for item in given]
        elif name == "headers":
            yield name, [{k: v.hex() for k, v in pairs.items()} for pairs in given]
        elif name == "origins":
            columns = {column: list(getattr(given, column)) for column in Origins.__slots__}
            yield name, {column: rows for column, rows in columns.items() if rows}
        elif name == "references":
            yield name, {"size": given.size, "hash": given.hash, "runs": given.runs}
        elif name == "publication":
            yield name, given._asdict()
        elif name == "scattered":
            yield name, {"number": given.number, "parts": given.parts}
        else:
            yield name, given


def golden() -> dict[str, Any]:
    batches = []
    for name, arguments, place in CASES:
        data = bytes(encode(**arguments))
        case: dict[str, Any] = {"name": name, "version": VERSION}
        case["arguments"] = dict(spelled(arguments))
        if place is not None:
            data = stamped(data, **place) + data[HEADER_SIZE:]
            case["stamped"] = place
        case["fields"] = [[field, part.hex(), says] for field, part, says in fields_of(data)]
        batches.append(case)
    return {"comment": COMMENT, "final": True, "batches": batches}


def text(whole: dict[str, Any]) -> str:
    """JSON with one line a field: what a reader, and `git diff`, can follow."""

    def short(item: Any) -> str:
        return json.dumps(item, ensure_ascii=False)

    cases = []
    for case in whole["batches"]:
        rows = [f"   {short(name)}: {short(case[name])}" for name in case if name != "fields"]
        fields = ",\n".join(f"    {short(field)}" for field in case["fields"])
        cases.append("  {\n" + ",\n".join([*rows, f'   "fields": [\n{fields}\n   ]']) + "\n  }")
    head = [f" {short(name)}: {short(whole[name])}" for name in whole if name != "batches"]
    return "{\n" + ",\n".join([*head, ' "batches": [\n' + ",\n".join(cases) + "\n ]"]) + "\n}\n"


if __name__ == "__main__":
    target = Path(__file__).with_name("batches.json")
    target.write_text(text(golden()), encoding="utf-8")
