"""Bytes <-> fields: what every binary format of weir is made of. Fixed-width fields, 8-byte
alignment, checksums, compression.

CRC-32C is for headers and control records, xxh3-64 for batches. Columns of batches are compressed
as LZ4 blocks and zstd frames, neither ever larger than announced; those libraries come with the
extra `weir-mq[compress]`, and are loaded on first use.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import xxhash
from google_crc32c import extend as _extend
from msgspec import Meta

from weir.errors import BadBatch, MissingLibrary

#: Anything that can be read as bytes without a copy.
Buffer = bytes | bytearray | memoryview

#: Numbers of so many bits: what a field of a binary dialect holds, where MessagePack carries it.
Unsigned8 = Annotated[int, Meta(ge=0, le=0xFF)]
Unsigned16 = Annotated[int, Meta(ge=0, le=0xFFFF)]
Unsigned32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
#: MessagePack has no larger one.
Unsigned64 = Annotated[int, Meta(ge=0)]

ALIGNMENT = 8
_PADS = tuple(bytes(n) for n in range(ALIGNMENT))

#: The CRC-32C of bytes, and of nothing else, continued from the seed that comes first: `crc32c`
#: without a step in between, for what each small batch needs several times.
extended: Callable[[int, bytes], int] = _extend
#: The xxh3-64 of bytes, seeded with a number below 2^64: `xxh3` of a lone buffer, without a step in
#: between.
xxh3_of: Callable[[bytes, int], int] = xxhash.xxh3_64_intdigest
#: Up to here what is hashed is copied.
SMALL_BYTES = 4_096


def padding(size: int) -> bytes:
    """Return the zero bytes (0 to 7) that bring `size` bytes to a multiple of 8."""
    return _PADS[-size % ALIGNMENT]


def padded(size: int) -> int:
    """Return `size` rounded up to a multiple of 8."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def total(buffers: Sequence[Buffer]) -> int:
    """Return the number of bytes in all `buffers` together."""
    return sum(map(len, buffers))


def joined(buffers: Sequence[Buffer]) -> Buffer:
    """Return `buffers` as one; a lone one as it is, without a copy."""
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def compact(view: memoryview, backing: int) -> memoryview:
    """Return `view`, copied if it would keep a `backing` of more than four times its bytes alive.

    A small message cut out of a large network read would otherwise pin the whole read for as long
    as the message is cached, outside every byte budget. Batches of a producer under load come two
    or three a read; those stay where they are, for together they are most of it.
    """
    return view if len(view) * 4 >= backing else memoryview(bytes(view))


U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


def crc32c(data: Buffer, seed: int = 0) -> int:
    """Return the CRC-32C of `data`, continued from `seed` (the CRC of what came before)."""
    # The C extension takes bytes only; what is summed here is headers and small control records.
    return _extend(seed, data if type(data) is bytes else bytes(data))  # type: ignore[no-any-return]


def xxh3(buffers: tuple[Buffer, ...], seed: int) -> int:
    """Return the xxh3-64 of all `buffers` in order, seeded with `seed` (taken modulo 2^64)."""
    if sum(map(len, buffers)) <= SMALL_BYTES:  # a copy costs less than going step by step
        return int(xxhash.xxh3_64_intdigest(b"".join(buffers), seed))
    state = xxhash.xxh3_64(buffers[0], seed)
    for buffer in buffers[1:]:
        state.update(buffer)
    return int(state.intdigest())


LZ4 = 1
ZSTD = 2
#: By number: what users call it, and the library that knows it.
_LIBRARIES = {LZ4: ("lz4", "lz4.block"), ZSTD: ("zstd", "zstandard")}


def deflate(kind: int, data: Buffer, level: int | None = None) -> bytes:
    """Return `data` compressed, without its size; `level` None takes the library's default.

    LZ4 knows levels 1 to 12 (slower than without one, and smaller), zstd -7 to 22. Raises
    `MissingLibrary`.
    """
    library = _library(kind)
    if kind == ZSTD:
        compressor = library.ZstdCompressor(3 if level is None else level)
        return bytes(compressor.compress(data))
    if level is None:
        return bytes(library.compress(data, store_size=False))
    return bytes(
        library.compress(data, mode="high_compression", compression=level, store_size=False)
    )


def inflate(kind: int, data: Buffer, size: int) -> bytes:
    """Return the `size` bytes that `data` was made from, and never allocate more than those.

    Raises `BadBatch` if it was made from others or from fewer or more, and `MissingLibrary`.
    """
    library = _library(kind)
    name = _LIBRARIES[kind][0]
    try:
        if kind == ZSTD:
            said = library.get_frame_parameters(data).content_size
            if said != size:  # what the frame says is what the library would allocate
                raise BadBatch(f"a zstd frame says {said:,} bytes where {size:,} belong")
            whole = bytes(library.ZstdDecompressor().decompress(data, max_output_size=size))
        else:
            whole = bytes(library.decompress(data, uncompressed_size=size))
    except (_error(library), ValueError, OverflowError) as error:
        raise BadBatch(f"what should be {name} does not inflate: {error}") from None
    if len(whole) != size:
        raise BadBatch(f"{name} inflates to {len(whole):,} bytes where {size:,} belong")
    return whole


def _library(kind: int) -> Any:
    name, module = _LIBRARIES[kind]
    try:
        return import_module(module)
    except ImportError:
        raise MissingLibrary(
            f"{name} needs a library that is not installed here: "
            "`pip install 'weir-mq[compress]'`, on clients and brokers alike"
        ) from None


def _error(library: Any) -> type[Exception]:
    kind: type[Exception] = getattr(library, "ZstdError", None) or library.LZ4BlockError
    return kind
