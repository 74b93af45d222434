"""The link from a process to the switch of its rack: what is queued carries both barriers.

A barrier speaks of what was queued before, so it is computed as a packet is queued, and the link
is FIFO.
"""

from __future__ import annotations

from weir_toc import packet as wire
from weir_toc.clock import Stamps
from weir_toc.endpoint.flow import Scattering
from weir_toc.packet import Packet


class Outbox:
    """The packets that one process has queued, the oldest first."""

    __slots__ = ("_epoch", "_packets", "_process", "beaconed_at", "open", "sent_at", "stamps")

    def __init__(self, process: int, epoch: int, floor: int) -> None:
        self._process = process
        self._epoch = epoch
        self._packets: list[bytearray] = []
        self.stamps = Stamps(floor)
        #: Reliable scatterings that are not settled, by stamp, the oldest first.
        self.open: dict[int, Scattering] = {}
        self.sent_at = 0
        self.beaconed_at = 0

    def queue(self, now: int, packet: Packet) -> None:
        """Queue a packet, with the barriers of this moment."""
        stamps = self.stamps
        self._packets.append(wire.encode(packet._replace(
            source=self._process, epoch=self._epoch, barrier=stamps.barrier(now),
            commit=stamps.commit(now, next(iter(self.open), None)),
        )))  # fmt: skip
        self.sent_at = now

    def beacon(self, now: int) -> None:
        """Queue a beacon: both barriers, and nothing else."""
        self.queue(now, Packet(wire.BEACON, 0))
        self.beaconed_at = now

    @property
    def commit_moved(self) -> bool:
        """Whether the commit barrier could tell of scatterings that were settled since."""
        oldest = next(iter(self.open), None)
        due = self.stamps.last if oldest is None else oldest - 1
        return due > self.stamps.commit_sent

    def take(self) -> list[bytearray]:
        """Return what was queued since the last call."""
        packets, self._packets = self._packets, []
        return packets
