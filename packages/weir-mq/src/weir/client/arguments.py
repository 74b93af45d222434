"""What callers write, checked: where to connect, choices, values, keys and columns, and times.

    weir://localhost                  one host, port 6800
    weir://broker1:6800,broker2:6801  several of one system: whichever answers
    weir://[::1]:6800                 an IPv6 address, in brackets
    weirs://broker1?ca=ca.pem         by TLS: see `weir.tls.dialling`

A time from now is counted by the broker's clock, as far as it is known here, since the broker
decides by it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, cast, get_args, overload

import msgspec

from weir.client.core.retries import seconds
from weir.codec import Buffer
from weir.errors import BadRequest, TooLarge
from weir.model.limits import DELAY_MS_MAX, KEY_BYTES_MAX, TAG_BYTES_MAX, TAGS_PER_FETCH_MAX
from weir.tls.dialling import SecureHost, client_files

PORT = 6800
_SCHEME, _SECURE = "weir://", "weirs://"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/@\[\],?]+))(?::(\d{1,5}))?")
_PORT_MAX = 65_535

#: How a cluster shares the messages of a topic out.
ConsumerMode = Literal["shared", "keyed", "ordered"]
#: Which nodes have a message once its publish is confirmed.
AckLevel = Literal["replicated", "received", "visible"]
#: How a producer compresses its batches.
CompressionName = Literal["none", "lz4", "zstd"]
#: Which replica of a partition a reader asks.
ReadFrom = Literal["leader", "any"]

#: As many µs before 1970 as after it.
_TIMES = 1 << 63

_json = msgspec.json.Encoder().encode

Delay = str | float
Due = datetime | str | int

_DAYS_MAX = DELAY_MS_MAX // (24 * 3600 * 1_000)
_US_MAX = (1 << 63) - 1


def parse_url(url: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a URL, in its order; those of weirs:// are `SecureHost`s, and
    are reached by TLS. Raises `ValueError` for any other text.
    """
    if not isinstance(url, str):
        raise TypeError(f"an address is text as in weir://host:port, not {type(url).__name__}")
    hosts: list[tuple[str, int]] = []
    places, files = url, None
    if url.startswith(_SECURE):
        places, _, query = url.partition("?")
        places = _SCHEME + places.removeprefix(_SECURE)
        try:
            files = client_files(query)
        except ValueError as error:
            raise ValueError(f"{_without_user(url)!r} is no address: {error}") from None
    if places.startswith(_SCHEME):
        for part in places.removeprefix(_SCHEME).removesuffix("/").split(","):
            found = _HOST.fullmatch(part.strip())
            port = int(found[3] or PORT) if found else 0
            if not found or not 1 <= port <= _PORT_MAX:
                break
            host = found[1] or found[2]
            hosts.append((host if files is None else SecureHost(host, files), port))
        else:
            return hosts
    raise ValueError(
        f"{_without_user(url)!r} is no address{_hint(url)}: write weir://host:port or weir://host1:port,host2"
    )


def _without_user(url: str) -> str:
    """Return what may be shown of it: who types a password into an address has shown it enough."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}...@{rest.rpartition('@')[2]}" if "@" in rest else url


def _hint(url: str) -> str:
    """Return what is most likely wrong, as far as one can tell."""
    scheme, separator, rest = url.rpartition("://")
    if not separator:
        return f" (without the weir:// in front: weir://{url})" if _HOST.fullmatch(url) else ""
    if scheme not in ("weir", "weirs"):
        return f" (weir:// it is, or weirs:// by TLS, not {scheme}://)"
    if scheme == "weir" and "?" in rest:
        return " (files of TLS belong to weirs://)"
    if "@" in rest:
        return " (it takes no user and no password here)"
    if "/" in rest.removesuffix("/"):
        return " (it ends with the port: topics are named where they are used)"
    if rest.count(":") > 1 and "[" not in rest and "," not in rest:
        return f" (an IPv6 address stands in brackets: weir://[{rest}])"
    port = rest.rpartition(":")[2]
    if port.isdecimal() and not 1 <= int(port) <= _PORT_MAX:
        return f" (ports are 1 to {_PORT_MAX:,})"
    return ""


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise `BadRequest`, naming the parameter, unless `value` is one of the `Literal` choices."""
    allowed = get_args(choices)
    if not isinstance(value, str) or value not in allowed:
        *first, last = (f'"{choice}"' for choice in allowed)
        raise BadRequest(f"{name}={value!r}: give {', '.join(first)} or {last}")


def consumer_mode(mode: str) -> ConsumerMode:
    """Return what is a mode. Raises `BadRequest`."""
    check_choice("mode", mode, ConsumerMode)
    return cast(ConsumerMode, mode)


def duration(name: str, value: str | float) -> float:
    """Return a duration in seconds. Raises `ValueError` or `TypeError`, naming the parameter."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{name}={value!r}: give a duration, as text with a unit or in seconds")
    try:
        return seconds(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r}: {error}") from None


def whole_number(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Raise `BadRequest`, naming the parameter, unless `value` is a whole number in the range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{name}={value!r}: give a whole number")
    if value < least or (most is not None and value > most):
        allowed = f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
        raise BadRequest(f"{name}={value!r}: give {allowed}")


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


def check_tags(tags: str | Sequence[str] | None) -> None:
    """Raise `BadRequest` or `TooLarge` unless a cluster may take these tags alone."""
    if tags is None:
        return
    given = (tags,) if isinstance(tags, str) else tags
    if not isinstance(given, Sequence) or not given:
        raise BadRequest(f"tags={tags!r}: give a tag or several, or leave it out for all messages")
    if len(given) > TAGS_PER_FETCH_MAX:
        raise BadRequest(f"tags: {len(given):,} tags; a cluster takes at most {TAGS_PER_FETCH_MAX}")
    for tag in given:
        check_columns(tag, None, None)


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


class Timing(msgspec.Struct, frozen=True):
    """Microseconds from now on: until it is due, or `due` since 1970; and what it lives."""

    delay: int = 0
    due: int = 0
    ttl: int = 0

    @property
    def needs_clock(self) -> bool:
        """Whether it counts from now on."""
        return bool(self.delay or self.ttl)

    def columns(self, now: int) -> tuple[int | None, int | None]:
        """Return DUE and EXPIRES in µs since 1970, None where a message needs none.

        Raises `BadRequest` for a due time over a year ahead of `now`, and for one that comes when
        the message has expired.
        """
        due = self.due or now + self.delay
        if due - now > DELAY_MS_MAX * 1_000:
            raise BadRequest(f"due is over {_DAYS_MAX} days ahead: give a time within a year")
        expires = now + self.ttl if self.ttl else None
        if expires is not None and due >= expires:
            raise BadRequest(
                "the message would expire before it is due: give a longer ttl, which counts from "
                "publishing on, or a shorter delay"
            )
        return due if due > now else None, expires


def timing(delay: Delay | None, due: Due | None, ttl: Delay | None) -> Timing | None:
    """Return what is asked for; None if nothing is. Raises `BadRequest`, `ValueError`."""
    if delay is None and due is None and ttl is None:
        return None
    if delay is not None and due is not None:
        raise BadRequest("give delay= or due=, not both: each says when it is delivered")
    lives = 0
    if ttl is not None:
        lives = _microseconds("ttl", ttl)
        if not lives:
            raise BadRequest(f"ttl={ttl!r}: give more than 0")
    if due is not None:
        return Timing(due=_moment(due), ttl=lives)
    found = Timing(delay=0 if delay is None else _microseconds("delay", delay), ttl=lives)
    found.columns(0)  # what is wrong whenever now is
    return found


def delay_ms(delay: Delay) -> int:
    """Return a delay in whole milliseconds, rounded up. Raises `BadRequest`, `ValueError`."""
    return -(-_microseconds("delay", delay) // 1_000)


def _microseconds(name: str, duration: Delay) -> int:
    found = math.ceil(seconds(duration) * 1_000_000)
    if found > DELAY_MS_MAX * 1_000:
        raise BadRequest(f"{name}={duration!r}: give {_DAYS_MAX} days at most")
    return found


def _moment(due: Due) -> int:
    """Return µs since 1970; a time without a zone is local, as Python has it."""
    if isinstance(due, str):
        try:
            due = datetime.fromisoformat(due)
        except ValueError:
            raise BadRequest(
                f'due={due!r} is no time: write "2026-11-22T10:00" or "2026-11-22T10:00+01:00"'
            ) from None
    if isinstance(due, datetime):
        due = round(due.timestamp() * 1_000_000)
    if not isinstance(due, int):
        raise TypeError(
            f"due is a datetime, or whole microseconds since 1970, not {type(due).__name__}"
        )
    if not 0 < due <= _US_MAX:
        raise BadRequest(f"due={due}: give microseconds since 1970")
    return due
