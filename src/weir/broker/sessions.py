"""Who is connected to this shard."""

from __future__ import annotations

from dataclasses import dataclass

from weir.broker.admission import ANONYMOUS
from weir.broker.fan_in import Seat
from weir.errors import BadRequest, NoHello
from weir.wire.device import DeviceRequest
from weir.wire.frame import ClientFrame


@dataclass(slots=True)
class Session:
    """One connection: its principal, and whether it said hello in either dialect."""

    id: int
    opened_ms: int
    principal: str = ANONYMOUS
    welcomed: bool = False
    #: Whether another shard passes on what the peer asks.
    passed: bool = False
    #: What a device's hello named.
    hub: int = 0
    seat: Seat | None = None
    #: What came while it has to wait for news of the registry; None while it need not.
    parked: list[ClientFrame | DeviceRequest] | None = None

    @property
    def greeted(self) -> bool:
        """Whether the peer said hello."""
        return self.welcomed or self.seat is not None

    def sit(self, hub: int, boot: int, group: int) -> None:
        """Take a device's hello. Raises `BadRequest` if it changes something too early.

        Replies of two partitions would overtake each other, and the new one could stamp below what
        is about to be confirmed in the old one.
        """
        seat = self.seat
        if seat is None:
            self.seat = Seat(self.id, hub, boot, group)
        elif (seat.hub, seat.boot, seat.group) != (hub, boot, group):
            if seat.in_flight:
                raise BadRequest(
                    f"{seat.in_flight} publishes wait for their replies: say hello again after them"
                )
            seat.hub, seat.boot, seat.group = hub, boot, group

    def check_welcomed(self) -> None:
        """Raise `NoHello` unless a client hello came first."""
        if not self.welcomed:
            raise NoHello("say hello first: the first frame of a connection is Hello")
