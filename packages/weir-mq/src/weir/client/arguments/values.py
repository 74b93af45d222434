"""What applications give as a value or key, as bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, overload

import msgspec

from weir.codec.fields import Buffer
from weir.errors import BadRequest, TooLarge
from weir.model.limits import KEY_BYTES_MAX, TAG_BYTES_MAX

#: As many µs before 1970 as after it.
_TIMES = 1 << 63

_json = msgspec.json.Encoder().encode


def as_bytes(value: Any) -> Buffer:
    """Return what `value_bytes` does; a large value that is bytes already is not copied."""
    if type(value) is bytes:  # it nearly always is
        return value
    if isinstance(value, memoryview) and value.contiguous:
        return value.cast("B")
    return value if isinstance(value, bytes | bytearray) else value_bytes(value)


def value_bytes(value: Any) -> bytes:
    """Return bytes as they are, text as UTF-8, and anything else as JSON; None is its `null`.

    Raises `ValueError` for NaN and the infinities, for which JSON has no number.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    text = _json(value)
    if b"null" in text:  # what they would become, without a word
        _check_finite(msgspec.to_builtins(value, str_keys=True))
    return text


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(
            f"JSON has no number for {value}: publish None, or bytes of a format that has one"
        )
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return
    for part in value:
        _check_finite(part)


@overload
def key_bytes(key: bytes | str) -> bytes: ...


@overload
def key_bytes(key: None) -> None: ...


def key_bytes(key: bytes | str | None) -> bytes | None:
    """Return a key as bytes; None stays None: the message has no key.

    Raises `TooLarge` here, where it is one message's: later it would spoil a whole batch.
    """
    if key is None:
        return None
    if isinstance(key, str):
        key = key.encode()
    if isinstance(key, bytes):
        if len(key) > KEY_BYTES_MAX:
            raise TooLarge(f"a key is over {KEY_BYTES_MAX:,} bytes: shorten it", KEY_BYTES_MAX)
        return key
    raise TypeError(f"a key is bytes or text, not {type(key).__name__}: give str(key), say")


def check_columns(tag: str | None, time: int | None, headers: Mapping[str, bytes] | None) -> None:
    """Raise `TypeError`, `TooLarge`, `BadRequest`, or `UnicodeEncodeError` for text that is none,
    for what a message cannot have: later it would spoil a whole batch.
    """
    if tag is not None:
        if not isinstance(tag, str):
            raise TypeError(f"a tag is text, not {type(tag).__name__}")
        if (len(tag) if tag.isascii() else len(tag.encode())) > TAG_BYTES_MAX:
            raise TooLarge(
                f"a tag is over {TAG_BYTES_MAX} bytes of UTF-8: shorten it", TAG_BYTES_MAX
            )
    if time is not None:
        if not isinstance(time, int):
            raise TypeError(
                f"time is whole microseconds since 1970, not {type(time).__name__}: give "
                "int(moment.timestamp() * 1_000_000)"
            )
        if not -_TIMES <= time < _TIMES:
            raise BadRequest(f"time={time}: give microseconds since 1970, in 64 bits")
    if headers is not None and not isinstance(headers, Mapping):
        raise TypeError(
            f"headers are a mapping of text to bytes, as in {{'trace': b'1'}}, not "
            f"{type(headers).__name__}"
        )
    for name, value in (headers or {}).items():
        if not (isinstance(name, str) and isinstance(value, bytes)):
            raise TypeError(
                f"headers={{{name!r}: {value!r}}}: give text for names, bytes for values"
            )
        if not name.isascii():
            name.encode()
