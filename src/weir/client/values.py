"""What applications give as a value or key, as bytes."""

from __future__ import annotations

from typing import Any

import msgspec

_json = msgspec.json.Encoder().encode


def value_bytes(value: Any) -> bytes:
    """Return bytes as they are, text as UTF-8, and anything else as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return _json(value)


def key_bytes(key: bytes | str | None) -> bytes | None:
    """Return a key as bytes; None stays None: the message has no key."""
    return key.encode() if isinstance(key, str) else key
