"""A batch as Arrow columns, in place (DESIGN §1, §4 Batch). Needs the extra `weir-mq[arrow]`.

Values, keys, times and headers stay the batch's own bytes: Arrow points into them and keeps them
alive. Only tags are copied, because a batch holds each of them once.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from weir.codec.fields import ALIGNMENT
from weir.errors import BadBatch
from weir.model.batch import Batch
from weir.model.columns import BytesColumn
from weir.model.header import Columns

_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.map_(pa.string(), pa.binary())
_PAIRS = _HEADERS.field(0).type
_NO_PAIRS = pa.array([], _PAIRS)

#: What every batch opens as, columns in this order; topic and partition are the reader's.
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("stamp", pa.int64()),
        ("time", _TIME),
        ("key", pa.binary()),
        ("tag", pa.string()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)


def record_batch(
    batch: Batch,
    topic: str,
    partition: int,
    skip: int = 0,
    take: int | None = None,
    large: bytes | None = None,
) -> pa.RecordBatch:
    """Open `batch` as Arrow, without its first `skip` messages, and at most `take` of the rest.

    `large` is the value of a batch that holds references to its chunks; it is null without.
    Every offset is checked at C speed: malformed columns raise `BadBatch`. A batch that does not
    begin on a multiple of 8 bytes in memory, which Arrow must not read in place, is copied once.
    """
    count = len(batch)
    if not 0 <= skip <= count or (take is not None and take < 0):
        raise ValueError(f"skip {skip} and take {take} do not fit a batch of {count} messages")
    if not batch.header.compression and pa.py_buffer(batch.view).address % ALIGNMENT:
        batch = Batch(bytes(batch.view))
    rows = count - skip if take is None else min(take, count - skip)
    first = batch.header.first_offset + skip
    try:
        columns = [column.slice(skip, rows) for column in _stored(batch, large)]
    except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
        raise BadBatch(f"the columns of the batch make no sense: {error}") from None
    given = [
        _repeated(topic, pa.string(), rows),
        _repeated(partition, pa.int32(), rows),
        _numbers(pa.int64(), np.arange(first, first + rows, dtype=np.int64)),
        _numbers(pa.int64(), np.full(rows, batch.header.stamp, dtype=np.int64)),
    ]
    return pa.RecordBatch.from_arrays(given + columns, schema=SCHEMA)


def _stored(batch: Batch, large: bytes | None) -> list[pa.Array]:
    """Return time, key, tag, value and headers of all messages, each checked."""
    n = len(batch)
    if batch.references is None:
        value = _bytes(pa.binary(), batch.value_column)
    else:
        value = pa.array([large], pa.binary())
    times = batch.numbers(Columns.TIME)
    if times is None:
        time = _numbers(_TIME, np.full(n, batch.header.base_time, dtype=np.int64))
    else:
        time = _numbers(_TIME, times)
    if (keys := batch.key_column) is None:
        key = pa.nulls(n, pa.binary())
    else:
        key = _bytes(pa.binary(), keys[1], keys[0])
    return [time, key, _tags(batch), value, _headers(batch)]


def _bytes(kind: pa.DataType, column: BytesColumn, validity: memoryview | None = None) -> pa.Array:
    buffers = [validity, column.offsets, column.data]
    array = pa.Array.from_buffers(
        kind,
        len(column.offsets) - 1,
        [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers],
    )
    array.validate(full=True)
    return array


def _tags(batch: Batch) -> pa.Array:
    if (column := batch.tag_column) is None:
        return pa.nulls(len(batch), pa.string())
    names, places = column
    indices = _numbers(pa.int32(), places)
    return pa.array([name or None for name in names], pa.string()).take(indices)


def _headers(batch: Batch) -> pa.Array:
    if (column := batch.headers_column) is None:
        return _no_headers(len(batch))
    arrays = [_bytes(pa.string(), column[1]), _bytes(pa.binary(), column[2])]
    pairs = pa.StructArray.from_arrays(arrays, fields=list(_PAIRS))
    buffers = [None, pa.py_buffer(column[0])]
    array = pa.Array.from_buffers(_HEADERS, len(batch), buffers, children=[pairs])
    array.validate(full=True)
    return array


def _numbers(kind: pa.DataType, numbers: memoryview | np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


# Batches that follow one another are mostly of one partition and of one size. Arrow's arrays never
# change, so they can share what says the same. Few are kept: a large batch has many rows.
@lru_cache(maxsize=4)
def _repeated(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


@lru_cache(maxsize=1)
def _no_headers(rows: int) -> pa.Array:
    buffers = [None, pa.py_buffer(bytes(4 * (rows + 1)))]
    return pa.Array.from_buffers(_HEADERS, rows, buffers, children=[_NO_PAIRS])
