"""Who is connected to this shard."""

from __future__ import annotations

from dataclasses import dataclass

from weir.broker.admission import ANONYMOUS
from weir.broker.fan_in import Seat
from weir.errors import NoHello


@dataclass(slots=True)
class Session:
    """One connection: its principal, and whether it said hello in either dialect."""

    id: int
    opened_ms: int
    principal: str = ANONYMOUS
    welcomed: bool = False
    seat: Seat | None = None

    @property
    def greeted(self) -> bool:
        """Whether the peer said hello."""
        return self.welcomed or self.seat is not None

    def check_welcomed(self) -> None:
        """Raise `NoHello` unless a client hello came first."""
        if not self.welcomed:
            raise NoHello("say hello first: the first frame of a connection is Hello")
