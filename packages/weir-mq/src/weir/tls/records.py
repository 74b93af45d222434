"""The records of a TLS connection, counted as they come: no more of them than do something.

This looks at their headers alone, before OpenSSL does: what is no TLS, and a record that is longer
than any may be, ends a connection before memory is spent on it.
"""

from __future__ import annotations

from weir.errors import RemoteProtocolError
from weir.model.limits import KIB

#: The first byte of a connection that is TLS: a handshake record.
HANDSHAKE = 0x16
#: What a record holds at most.
RECORD_BYTES = 16 * KIB
#: So much may come without a byte for the protocol above: a handshake with chains of certificates
#: fits in, and a flood of key updates does not.
SILENT_BYTES_MAX = 64 * KIB

_HEADER_BYTES = 5
#: A record with what encryption adds, in TLS 1.2, where that is more.
_BODY_BYTES_MAX = RECORD_BYTES + 2_048
_DATA = 0x17
#: Change of cipher, alert, handshake, data.
_KINDS = frozenset((0x14, 0x15, HANDSHAKE, _DATA))
_MAJOR = 3


class Records:
    """Counts the records of one side of a connection, in whatever pieces they come."""

    __slots__ = ("_header", "_left", "partial", "silent")

    def __init__(self) -> None:
        """Begin before the first record."""
        self._header = b""
        self._left = 0
        #: Bytes of a record that is not whole yet.
        self.partial = 0
        #: Bytes since the protocol above got some.
        self.silent = 0

    def take(self, data: bytes | bytearray | memoryview) -> int:
        """Count bytes; return how many records are whole by them.

        Raises `RemoteProtocolError` for what is no record.
        """
        at, size, whole = 0, len(data), 0
        self.silent += size
        while at < size:
            if not self._left:
                more = bytes(data[at : at + _HEADER_BYTES - len(self._header)])
                self._header += more
                at += len(more)
                self.partial += len(more)
                if len(self._header) < _HEADER_BYTES:
                    break
                self._left = self._length()
                self._header = b""
            step = min(self._left, size - at)
            at += step
            self._left -= step
            self.partial += step
            if not self._left:
                whole += 1
                self.partial = 0
        return whole

    def are_alone(self, data: bytes) -> bool:
        """Return whether bytes are one whole record of data, behind whole ones. Count nothing."""
        size = len(data) - _HEADER_BYTES
        return (
            not self.partial
            and 0 < size <= _BODY_BYTES_MAX
            and data[0] == _DATA
            and data[1] == _MAJOR
            and data[3] << 8 | data[4] == size
        )

    def check_flood(self) -> None:
        """Raise `RemoteProtocolError` if too much came that was for TLS alone."""
        if self.silent > SILENT_BYTES_MAX:
            raise RemoteProtocolError(
                f"{self.silent:,} bytes of TLS came without a byte of data in them"
            )

    def _length(self) -> int:
        kind, major, _, *length = self._header
        size = length[0] << 8 | length[1]
        if kind not in _KINDS or major != _MAJOR:
            raise RemoteProtocolError("what came is no TLS")
        if not 0 < size <= _BODY_BYTES_MAX:
            raise RemoteProtocolError(f"a TLS record of {size:,} bytes, which none has")
        return size
