"""When a message is delivered first, and until when: what people write, as columns of a batch.

A time from now is counted by the broker's clock, as far as it is known here, since the broker
decides by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from weir.client.core.duration import seconds
from weir.errors import BadRequest
from weir.model.limits import DELAY_MS_MAX

Delay = str | float
Due = datetime | str | int

_DAYS_MAX = DELAY_MS_MAX // (24 * 3600 * 1_000)
_US_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Timing:
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
            raise BadRequest(f"ttl={ttl!r}: a message lives for more than nothing")
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
