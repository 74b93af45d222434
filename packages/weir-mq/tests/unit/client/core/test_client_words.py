"""Durations, addresses, backoff, values, acks: the small pure parts."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from weir.client.arguments import check_columns, key_bytes, parse_url, value_bytes
from weir.client.client import connect
from weir.client.connection.pool import why_unreachable
from weir.client.core.grants import Acks
from weir.client.core.retries import Backoff, seconds
from weir.errors import BadRequest, TooLarge
from weir.model.limits import ACK_RANGES_MAX, KEY_BYTES_MAX


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5ms", 0.005),
        ("2s", 2),
        ("1h", 3600),
        ("1.5 s", 1.5),
        ("10us", 1e-5),
        (3, 3),
        ("1d", 86400),
    ],
)
def test_durations(text: str | float, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["5", "ms", "-1s", "5 parsecs", -1, float("nan"), float("inf")])
def test_what_is_no_duration_names_the_units(text: str | float) -> None:
    with pytest.raises(ValueError, match="5ms"):
        seconds(text)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("weir://localhost", [("localhost", 6800)]),
        ("weir://a:1,b,c:65535/", [("a", 1), ("b", 6800), ("c", 65535)]),
        ("weir://a, b:2", [("a", 6800), ("b", 2)]),
        ("weir://[::1]:7000", [("::1", 7000)]),
    ],
)
def test_urls(url: str, hosts: list[tuple[str, int]]) -> None:
    assert parse_url(url) == hosts


@pytest.mark.parametrize(
    "url",
    ["", "localhost:6800", "http://a", "weir://", "weir://a,", "weir://a:0", "weir://a:70000"],
)
def test_what_is_no_url_says_what_to_write(url: str) -> None:
    with pytest.raises(ValueError, match="weir://host:port"):
        parse_url(url)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("localhost:6800", "weir://localhost:6800"),
        ("kafka://localhost:9092", "not kafka://"),
        ("weir://me:secret@host", "no password"),
        ("weir://host/flights", "named where they are used"),
        ("weir://::1", "weir://[::1]"),
        ("weir://host:70000", "1 to 65,535"),
    ],
)
def test_a_url_that_is_nearly_right_is_told_what_is_wrong(url: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        parse_url(url)


def test_an_address_is_text() -> None:
    with pytest.raises(TypeError, match="not NoneType"):
        parse_url(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "h has no address"),
        (ConnectionRefusedError(111, "refused"), "nobody listens at h:1"),
        (TimeoutError(), "h:1: no answer in time"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
    ],
)
def test_an_unreachable_host_is_told_why(error: Exception, words: str) -> None:
    assert words in why_unreachable("h", 1, error)


@pytest.mark.parametrize(
    "options", [{"first": -1}, {"first": 6}, {"factor": 0.5}, {"jitter": 2}, {"attempts": 0}]
)
def test_a_backoff_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"give|no duration"):
        Backoff(**options)


def test_connecting_takes_some_time() -> None:
    with pytest.raises(ValueError, match="request_timeout=0"):
        connect(request_timeout=0)
    with pytest.raises(ValueError, match="5ms"):
        connect(request_timeout="soon")


def test_backoff_grows_to_its_most_and_is_jittered_in_full() -> None:
    backoff = Backoff(first=1, most=5, factor=2, attempts=3)
    assert [backoff.delay(n, 1.0) for n in (1, 2, 3, 4, 10_000)] == [1, 2, 4, 5, 5]
    assert backoff.delay(3, 0.0) == 0
    assert [backoff.spent(n) for n in (3, 4)] == [False, True]
    assert not Backoff().spent(10**9)


def test_values_and_keys_become_bytes() -> None:
    assert value_bytes(b"raw") == b"raw"
    assert value_bytes(bytearray(b"raw")) == b"raw"
    assert value_bytes("größe") == "größe".encode()
    assert value_bytes({"a": [1, None]}) == b'{"a":[1,null]}'
    assert value_bytes([1, "x"]) == b'[1,"x"]'
    assert key_bytes("k") == b"k"
    assert key_bytes(b"k") == b"k"
    assert key_bytes(None) is None


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"tag": 5}, "a tag is text, not int"),
        ({"time": 1.5}, "microseconds since 1970, not float"),
        ({"headers": {"a": "b"}}, "bytes for values"),
        ({"headers": {b"a": b"b"}}, "text for names"),
    ],
)
def test_columns_of_another_type_are_told(column: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        check_columns(**{"tag": None, "time": None, "headers": None, **column})
    check_columns("x", 1, {"a": b"b"})


@pytest.mark.parametrize(
    ("column", "error"),
    [
        ({"tag": "t" * 256}, TooLarge),
        ({"tag": "ü" * 128}, TooLarge),
        ({"tag": "\udc80"}, UnicodeEncodeError),
        ({"time": 1 << 63}, BadRequest),
        ({"time": -(1 << 63) - 1}, BadRequest),
        ({"headers": {"\udc80": b""}}, UnicodeEncodeError),
    ],
)
def test_what_no_batch_can_hold_is_told_before_it_is_in_one(
    column: dict[str, Any], error: type[Exception]
) -> None:
    """It was told to all who had messages in the same batch, and none of these was sent."""
    with pytest.raises(error):
        check_columns(**{"tag": None, "time": None, "headers": None, **column})
    check_columns("ü" * 127 + "t", (1 << 63) - 1, {"ü": b""})
    check_columns("t" * 255, -(1 << 63), None)


def test_a_key_that_is_too_long_is_told_before_it_is_in_a_batch() -> None:
    assert len(key_bytes("k" * KEY_BYTES_MAX)) == KEY_BYTES_MAX
    for key in ("k" * (KEY_BYTES_MAX + 1), b"k" * (KEY_BYTES_MAX + 1)):
        with pytest.raises(TooLarge, match="shorten it"):
            key_bytes(key)


def test_a_key_of_another_type_is_told() -> None:
    with pytest.raises(TypeError, match="not int"):
        key_bytes(5)  # type: ignore[call-overload]


def test_acks_gather_into_ranges() -> None:
    acks = Acks()
    acks.done(1, 0, 1)
    acks.done(1, 1, 5)
    acks.done(1, 7, 8)  # a hole
    acks.done(2, 8, 9)  # another grant
    taken = acks.take()
    assert taken == [(1, 0, 5), (1, 7, 8), (2, 8, 9)]
    acks.done(2, 9, 10)
    acks.put_back(taken)
    assert acks.take() == [*taken, (2, 9, 10)]
    assert len(acks) == 0


def test_one_request_carries_a_bounded_number_of_ranges() -> None:
    acks = Acks()
    for i in range(ACK_RANGES_MAX + 1):
        acks.done(1, 2 * i, 2 * i + 1)
    assert len(acks.take()) == ACK_RANGES_MAX
    assert len(acks.take()) == 1
