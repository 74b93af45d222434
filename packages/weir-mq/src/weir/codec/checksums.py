"""The two checksums of weir: CRC-32C for headers and control records, xxh3-64 for batches."""

from __future__ import annotations

from collections.abc import Callable

import xxhash
from google_crc32c import extend as _extend

from weir.codec.fields import Buffer

#: The CRC-32C of bytes, and of nothing else, continued from the seed that comes first: `crc32c`
#: without a step in between, for what each small batch needs several times.
extended: Callable[[int, bytes], int] = _extend


#: Up to here what is hashed is copied.
_SMALL_BYTES = 4_096


def crc32c(data: Buffer, seed: int = 0) -> int:
    """Return the CRC-32C of `data`, continued from `seed` (the CRC of what came before)."""
    # The C extension takes bytes only; what is summed here is headers and small control records.
    return _extend(seed, data if type(data) is bytes else bytes(data))  # type: ignore[no-any-return]


def xxh3(buffers: tuple[Buffer, ...], seed: int) -> int:
    """Return the xxh3-64 of all `buffers` in order, seeded with `seed` (taken modulo 2^64)."""
    if sum(map(len, buffers)) <= _SMALL_BYTES:  # a copy costs less than going step by step
        return int(xxhash.xxh3_64_intdigest(b"".join(buffers), seed))
    state = xxhash.xxh3_64(buffers[0], seed)
    for buffer in buffers[1:]:
        state.update(buffer)
    return int(state.intdigest())
