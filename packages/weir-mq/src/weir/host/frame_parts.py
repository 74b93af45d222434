"""Parts of what a client brings: a read with many small frames is served by parts, in line."""

from __future__ import annotations

from weir.codec import U32
from weir.model.limits import KIB
from weir.protocol.connection import Connection
from weir.protocol.frame import CLIENT_HEADER, CLIENT_VERSION

#: Of a client's read that is longer than this, so many frames are served at once; the others wait
#: in line.
_CROWDED_BYTES = 2 * KIB
PART_FRAMES = 64
#: Where the length of the body stands in the header of a client frame.
_SIZE_AT = 4


def first_part(stream: Connection, data: bytes) -> tuple[bytes, bytes]:
    """Return what holds at most as many frames as a part has, and the rest, which is to stay in
    line. `stream` has not taken `data` yet.
    """
    at = 0
    if len(data) <= _CROWDED_BYTES or stream.is_device:
        return data, b""
    if stream.stream is None and data[0] != CLIENT_VERSION:
        return data, b""
    if stream.pending:
        claimed = stream.claimed or CLIENT_HEADER.size
        at = max(claimed - stream.pending, 0)
    for _ in range(PART_FRAMES):
        if at + CLIENT_HEADER.size > len(data):
            return data, b""
        (size,) = U32.unpack_from(data, at + _SIZE_AT)
        at += CLIENT_HEADER.size + size
    return data[:at], data[at:]
