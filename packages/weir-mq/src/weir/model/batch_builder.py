"""Packs messages into a sealed batch, which `weir.model.batch` opens (DESIGN §1 and §4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized

from weir.codec import Buffer, deflate, padded, padding, total
from weir.errors import TooLarge
from weir.model import columns as col
from weir.model.batch import HEADER_SIZE, Columns, Packed, seal
from weir.model.columns import Origins, Piece, Publication, References, Scattered
from weir.model.limits import (
    BATCH_MESSAGES_MAX,
    HEADERS_PER_BATCH_MAX,
    INFLATION_MAX,
    KEY_BYTES_MAX,
    TAG_BYTES_MAX,
    TAGS_PER_BATCH_MAX,
)

_ROOM = bytes(HEADER_SIZE)
# Plain numbers: flag arithmetic would cost more than all else that finding a column takes.
_VALUE, _KEY, _TAG = int(Columns.VALUE), int(Columns.KEY), int(Columns.TAG)
_TIME, _DUE, _EXPIRES = int(Columns.TIME), int(Columns.DUE), int(Columns.EXPIRES)
_HEADERS, _ORIGIN, _CHUNK = int(Columns.HEADERS), int(Columns.ORIGIN), int(Columns.CHUNK)
_REFERENCES, _SCATTERED = int(Columns.REFERENCES), int(Columns.SCATTERED)
_PUBLICATION = int(Columns.PUBLICATION)
_GENERATION, _VERIFIED = int(Columns.GENERATION), int(Columns.VERIFIED)


def encode(
    values: Sequence[Buffer],
    *,
    group: int,
    producer: int = 0,
    epoch: int = 0,
    sequence: int = 0,
    base_time: int = 0,
    keys: Sequence[bytes | None] | None = None,
    tags: Sequence[str | None] | None = None,
    times: Sequence[int] | None = None,
    dues: Sequence[int] | None = None,
    expires: Sequence[int] | None = None,
    headers: Sequence[Mapping[str, bytes]] | None = None,
    origins: Origins | None = None,
    chunk_at: int | None = None,
    references: References | None = None,
    scattered: Scattered | None = None,
    publication: Publication | None = None,
    compression: int = 0,
    level: int | None = None,
    schema: int = 0,
    verified: bool = False,
) -> bytearray:
    """Return the sealed batch of `values` and whichever columns are given, one item a message.

    Times are microseconds since 1970. `chunk_at`: the one value is a piece of a larger one, from
    that byte on; `references`: it stands for a value of chunks, and `values` is left empty;
    `scattered`: it is a part of a scattering; `publication`: it publishes what was staged, and
    `values` is left empty. `schema`: the version of the topic's schema that all values have, or 0.
    `verified`: the `origins` are those of devices that proved their identity.
    `compression` is kept only where it makes the batch smaller, and not over 256 times smaller.
    Raises `TooLarge` over 8 MiB or 1,048,576 messages, `MissingLibrary`, and `ValueError` where a
    column's length is not that of `values`.
    """
    flags, named = _VALUE, references or publication
    if named is not None:
        values = [named.pack()]
        flags |= _REFERENCES if references is not None else _PUBLICATION
    n = len(values)
    _check_lengths(n, origins, keys, tags, times, dues, expires, headers)
    bare: list[Buffer] = [_ROOM]
    parts: list[Buffer] = []
    tag_indices = None if tags is None else _put_tag_list(bare, tags)
    if chunk_at is not None:
        flags |= _CHUNK
        bare.append(Piece(chunk_at, len(values[0])).pack())
    if scattered is not None:
        flags |= _SCATTERED
        bare.append(scattered.pack())
    flags |= _put_numbers(bare, (_DUE, dues))
    col.put_bytes(parts, values)
    if keys is not None:
        flags |= _KEY
        _put_keys(parts, keys)
    if tag_indices is not None:
        flags |= _TAG
        col.put_fixed(parts, "i", tag_indices)
    if times is not None or expires is not None:
        flags |= _put_numbers(parts, (_TIME, times), (_EXPIRES, expires))
    if headers is not None:
        flags |= _HEADERS
        _put_headers(parts, headers)
    if origins is not None:
        flags |= _ORIGIN | _VERIFIED * verified | _GENERATION * bool(origins.generations)
        col.put_origins(parts, origins)
    compression = 0 if named is not None or origins is not None else compression
    count = n if publication is None else publication.messages
    fields = (flags, producer, epoch, count, sequence, base_time)
    return assembled(bare, parts, fields, group, compression, level, schema)


def assembled(
    bare: Sequence[Buffer],
    parts: Sequence[Buffer],
    fields: tuple[int, ...],
    group: int,
    compression: int = 0,
    level: int | None = None,
    schema: int = 0,
) -> bytearray:
    """Return the sealed batch of its buffers, each padded to 8 bytes; `fields` as for `seal`.

    `bare` begins with room for the header, and lies as it is; `parts` are compressed where that
    makes them smaller, and where readers may inflate it (`INFLATION_MAX`).
    Raises `TooLarge` and `MissingLibrary`.
    """
    if compression:
        col.check_size(total(bare) + total(parts))
        raw = b"".join(parts)
        packed = deflate(compression, raw, level)
        size = total(bare) + padded(len(packed))
        raw_size = total(bare) - HEADER_SIZE + len(raw)
        if padded(len(packed)) < len(raw) and raw_size <= INFLATION_MAX * size:
            batch = bytearray().join((*bare, packed, padding(len(packed))))
            seal(batch, fields, group, Packed(compression, raw_size, len(packed)), schema)
            return batch
        parts = [raw]
    batch = bytearray().join((*bare, *parts))
    col.check_size(len(batch))
    seal(batch, fields, group, schema=schema)
    return batch


def _put_keys(parts: list[Buffer], keys: Sequence[bytes | None]) -> None:
    if any(key is not None and len(key) > KEY_BYTES_MAX for key in keys):
        raise TooLarge(f"a key is over {KEY_BYTES_MAX:,} bytes: shorten it", KEY_BYTES_MAX)
    col.put_keys(parts, keys)


def _put_numbers(parts: list[Buffer], *columns: tuple[int, Sequence[int] | None]) -> int:
    """Append those int64 columns that are there; return their flags."""
    flags = 0
    for flag, numbers in columns:
        if numbers is not None:
            flags |= flag
            col.put_fixed(parts, "q", numbers)
    return flags


def _put_headers(parts: list[Buffer], headers: Sequence[Mapping[str, bytes]]) -> None:
    if sum(map(len, headers)) > HEADERS_PER_BATCH_MAX:
        raise TooLarge(f"over {HEADERS_PER_BATCH_MAX:,} headers", HEADERS_PER_BATCH_MAX)
    col.put_headers(parts, headers)


def _check_lengths(n: int, origins: Origins | None, *columns: Sized | None) -> None:
    if not 1 <= n <= BATCH_MESSAGES_MAX:
        raise TooLarge(
            f"{n:,} messages in a batch: 1 to {BATCH_MESSAGES_MAX:,}", BATCH_MESSAGES_MAX
        )
    if origins is not None:
        columns += (origins.hubs, origins.boots, origins.sequences, origins.sns)
        columns += (origins.generations or None,)
    for column in columns:
        if column is not None and len(column) != n:
            raise ValueError(f"a column of {len(column)} for {n} values: give one for each")


def _put_tag_list(parts: list[Buffer], tags: Sequence[str | None]) -> list[int]:
    """Append the list of tags; return each message's index into it."""
    places: dict[str, int] = {}
    indices = [places.setdefault(tag or "", len(places)) for tag in tags]
    if len(places) > TAGS_PER_BATCH_MAX:
        raise TooLarge(f"{len(places):,} tags in a batch", TAGS_PER_BATCH_MAX)
    if any(len(tag.encode()) > TAG_BYTES_MAX for tag in places):
        raise TooLarge(f"a tag is over {TAG_BYTES_MAX} bytes of UTF-8: shorten it", TAG_BYTES_MAX)
    col.put_tag_list(parts, list(places))
    return indices
