"""A batch that no reader could open is refused before it is taken, whatever its checksums say."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from weir.codec import crc32c, xxh3
from weir.errors import BadBatch, BadRequest
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.protocol.client import messages as m

VALUES = [b"aa", b"bbb", b"c", b"dd"]
#: Every column that readers look into, and none that is uniform.
FULL: dict[str, Any] = {
    "keys": [b"k", None, b"key", b""],
    "tags": ["a", None, "b", "a"],
    "times": [1, 2, 3, 4],
    "headers": [{"é": b"1"}, {}, {"name": b"22", "é": b""}, {}],
}
Spoil = Callable[[Batch], tuple[memoryview, int, str, int]]


def sealed_again(batch: bytearray, group: int) -> bytes:
    """Write hash and CRC anew, as an encoder at fault would."""
    view = memoryview(batch)
    struct.pack_into("<Q", batch, 56, xxh3((view[:56], view[88:]), group))
    struct.pack_into("<I", batch, 84, crc32c(view[:84]))
    return bytes(batch)


def spoilt(spoil: Spoil, group: int, **fields: Any) -> bytes:
    """A sealed batch with one number of one column overwritten: (column, item, format, number)."""
    batch = encode(VALUES, group=group, **fields, **FULL)
    column, item, code, number = spoil(Batch(bytes(batch)))
    at = bytes(batch).index(column.tobytes(), 88) + item * struct.calcsize(code)
    struct.pack_into(code, batch, at, number)
    return sealed_again(batch, group)


SPOILS: dict[str, Spoil] = {
    "values fall": lambda b: (b.value_column.offsets, 1, "<i", 6),
    "values below 0": lambda b: (b.value_column.offsets, 1, "<i", -1),
    "keys fall": lambda b: (b.key_column[1].offsets, 2, "<i", 0),  # type: ignore[index]
    "tag above": lambda b: (b.tag_column[1], 1, "<i", 3),  # type: ignore[index]
    "tag below": lambda b: (b.tag_column[1], 1, "<i", -1),  # type: ignore[index]
    "pairs fall": lambda b: (b.headers_column[0], 1, "<i", 4),  # type: ignore[index]
    "names fall": lambda b: (b.headers_column[1].offsets, 1, "<i", 9),  # type: ignore[index]
    "name cut": lambda b: (b.headers_column[1].offsets, 1, "<i", 1),  # type: ignore[index]
    "name no text": lambda b: (b.headers_column[1].data, 0, "<B", 0xFF),  # type: ignore[index]
    "header values": lambda b: (b.headers_column[2].offsets, 2, "<i", 0),  # type: ignore[index]
}


def read_all(batch: Batch) -> None:
    list(batch.messages())


@pytest.mark.parametrize("name", SPOILS)
def test_the_check_finds_what_readers_would(name: str) -> None:
    batch = Batch(spoilt(SPOILS[name], 7)).check(7)
    with pytest.raises(BadBatch):
        read_all(batch)
    with pytest.raises(BadBatch):
        batch.check_columns()


def test_names_in_plain_letters_may_fall_too() -> None:
    batch = encode([b"v"] * 2, group=7, headers=[{"a": b"", "bb": b""}, {"c": b""}])
    column = Batch(bytes(batch)).headers_column
    assert column is not None
    struct.pack_into("<i", batch, bytes(batch).index(column[1].offsets.tobytes(), 88) + 4, 9)
    with pytest.raises(BadBatch, match="fall"):
        Batch(sealed_again(batch, 7)).check(7).check_columns()


@pytest.mark.parametrize("fields", [{}, *({key: column} for key, column in FULL.items()), FULL])
@pytest.mark.parametrize("values", [VALUES, [b"same"] * 4, [b""] * 4])
def test_what_readers_can_open_is_let_pass(values: list[bytes], fields: dict[str, Any]) -> None:
    batch = Batch(encode(values, group=7, **fields))
    batch.check_columns()
    read_all(batch)


@pytest.mark.parametrize("name", SPOILS)
def test_poison_is_refused_and_costs_no_sequence(rig: Any, name: str) -> None:
    info = rig.topic(rig.connect())
    grant, address = rig.answer(1, m.OpenProducer()), info.addresses[0]
    fields = {"producer": grant.producer, "epoch": grant.epoch}
    poison = memoryview(spoilt(SPOILS[name], address.group, **fields))
    assert rig.answer(1, m.Produce(address, 0, poison)).code == BadRequest.code
    assert rig.answer(1, rig.batch(info, grant, 0, *VALUES, **FULL)).offset == 0


def test_nobody_makes_a_broker_look_into_what_it_will_not_take(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whom may not publish, or what is not the next one, only header and hash are looked at."""
    info = rig.topic(rig.connect())
    grant = rig.answer(1, m.OpenProducer())
    looked: list[int] = []
    check = Batch.check_columns

    def counted(batch: Batch) -> None:
        looked.append(batch.header.sequence)
        check(batch)

    monkeypatch.setattr(Batch, "check_columns", counted)
    values, packed = [b"x" * 900] * 9, {"compression": 2}
    batches = [
        rig.batch(info, m.ProducerGrant(12_345, grant.epoch), 0, *values, **packed),
        rig.batch(info, m.ProducerGrant(grant.producer, 99), 0, *values, **packed),
        rig.batch(info, grant, 5, *values, **packed),
    ]
    for batch in batches:
        assert isinstance(rig.answer(1, batch), m.Refusal)
    assert looked == []
    first = rig.batch(info, grant, 0, *values, **packed)
    assert not rig.answer(1, first).duplicate
    assert rig.answer(1, first).duplicate
    assert looked == [0]
