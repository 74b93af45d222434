"""What those who move bytes for a shard know of the driver that feeds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weir.broker import events as ev
from weir.wire.device import DeviceRequest
from weir.wire.frame import ClientFrame


class Lane(Protocol):
    """A connection of another shard or node."""

    def cut(self) -> None:
        """Close at once."""


class Driving(Protocol):
    """A driver, as trunks, links and peers use it: it takes what came in, and keeps the budget."""

    @property
    def held(self) -> bool:
        """Whether the byte budget is used up: only frames that were begun are finished."""

    def handle(self, event: ev.Event) -> None:
        """Feed one event and do what comes of it."""

    def received(self, session: int, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        """Whole frames of a session came in."""

    def arrived(self, event: ev.Arrived) -> None:
        """Devices that another shard let in came at once."""

    def gather(self) -> None:
        """Keep all events until `settle`: they are one to the shard."""

    def settle(self) -> None:
        """Feed what was gathered."""

    def new_session(self) -> int:
        """Return a number that no session ever had."""

    def lane_brought(self, lane: Lane, size: int) -> None:
        """Of the frame under way on a connection of another shard there are `size` bytes now; 0 if
        there is none.
        """

    def release(self, size: int) -> None:
        """Give back bytes of the budget that were sent."""

    def passed_on(self, shard: int, size: int) -> None:
        """Give back bytes of the budget that another shard was sent."""
