"""Compression of batch columns: LZ4 blocks and zstd frames, neither ever larger than announced.

The libraries come with the extra `weir-mq[compress]`, and are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weir.codec.fields import Buffer
from weir.errors import BadBatch, MissingLibrary

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
