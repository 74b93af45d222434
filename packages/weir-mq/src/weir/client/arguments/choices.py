"""The choices that callers spell out, as types; what is none of them is refused by name."""

from __future__ import annotations

from typing import Literal, cast, get_args

from weir.client.core.durations import seconds
from weir.errors import BadRequest
from weir.model.topic import Order

__all__ = [
    "AckLevel",
    "CompressionName",
    "ConsumerMode",
    "Order",
    "ReadFrom",
    "check_choice",
    "consumer_mode",
    "duration",
    "whole_number",
]

#: How a cluster shares the messages of a topic out.
ConsumerMode = Literal["shared", "keyed", "ordered"]
#: Who has a message once its publish is confirmed.
AckLevel = Literal["replicated", "received", "visible"]
#: How a producer compresses its batches.
CompressionName = Literal["none", "lz4", "zstd"]
#: Which replica of a partition a reader asks.
ReadFrom = Literal["leader", "any"]


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
