"""Welcomes that wait for the confirm of what came with their hello, to go out with it.

Thousands of devices that come at once get a packet less each, and are woken up once less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from weir.wire.device import DeviceHello, DevicePublishes

#: How long one waits: a device that has published already waits for nothing but the confirm.
TOGETHER_SECONDS = 1.0


def greets(frames: Sequence[object]) -> bool:
    """Whether a device said hello and published at once: the first reply is a welcome then, and a
    confirm follows it soon.
    """
    return (
        len(frames) > 1
        and isinstance(frames[0], DeviceHello)
        and isinstance(frames[1], DevicePublishes)
    )


class Greeted(Protocol):
    """Who has a welcome to send."""

    def let_out(self) -> None:
        """Send it by itself, unless it is out: what it waited for does not come, or not soon."""


class Welcomes:
    """Whose welcomes wait, the first that came first: a look at them costs nothing."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Have none; `now` tells seconds."""
        self._now = now
        self._waiting: deque[tuple[float, Greeted]] = deque()

    def wait(self, greeted: Greeted) -> None:
        """Let one wait."""
        self._waiting.append((self._now() + TOGETHER_SECONDS, greeted))

    def tick(self) -> None:
        """Let those out whose time is up."""
        while self._waiting and self._waiting[0][0] <= self._now():
            self._waiting.popleft()[1].let_out()

    def close(self) -> None:
        """Let all out."""
        while self._waiting:
            self._waiting.popleft()[1].let_out()
