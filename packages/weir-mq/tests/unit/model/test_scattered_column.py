"""What batches of scatterings say of the whole."""

from __future__ import annotations

import pytest

from weir.errors import BadBatch
from weir.model.batch import Batch, Columns
from weir.model.batch_builder import encode
from weir.model.columns import Scattered
from weir.model.ids import acks_part, batch_part, is_acks, part_group
from weir.model.limits import SCATTER_PARTS_MAX

GROUP = 65_536
WHOLE = Scattered(7, (batch_part(GROUP), batch_part(GROUP + 1), acks_part(GROUP + 1)))


def test_parts_are_numbers() -> None:
    assert [part_group(part) for part in WHOLE.parts] == [GROUP, GROUP + 1, GROUP + 1]
    assert [is_acks(part) for part in WHOLE.parts] == [False, False, True]


@pytest.mark.parametrize("compression", [0, 1])
def test_a_batch_says_of_which_scattering_it_is(compression: int) -> None:
    values = [b"same" * 50] * 20
    raw = encode(
        values, group=GROUP, tags=["a", None] * 10, scattered=WHOLE, compression=compression
    )
    batch = Batch(raw).check(GROUP)
    batch.check_columns()
    assert batch.scattered == WHOLE
    assert batch.values() == values
    assert batch.tags() == ["a", None] * 10
    assert Batch(encode(values, group=GROUP)).scattered is None


@pytest.mark.parametrize(
    "parts", [(), (2, 1), (2, 2), (0, 2), tuple(range(1, SCATTER_PARTS_MAX + 2))], ids=str
)
def test_parts_rise_and_are_few(parts: tuple[int, ...]) -> None:
    raw = encode([b"a"], group=GROUP, scattered=Scattered(1, parts))
    with pytest.raises(BadBatch, match="parts"):
        Batch(raw).check_columns()


def test_a_column_that_is_cut_off() -> None:
    with pytest.raises(BadBatch, match="ends before"):
        Scattered.unpack(WHOLE.pack()[:12])
    with pytest.raises(BadBatch, match="parts"):
        Scattered.unpack(WHOLE.pack()[:-1])


def test_no_part_is_delayed_or_large() -> None:
    raw = encode([b"a"], group=GROUP, dues=[5], scattered=WHOLE)
    assert Columns.DUE in Columns(int.from_bytes(raw[12:16], "little"))
    with pytest.raises(BadBatch, match="no batch of a scattering"):
        Batch(raw)
