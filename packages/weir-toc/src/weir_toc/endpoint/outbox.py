"""The link from a process to the switch of its rack: what is queued carries both barriers.

A barrier speaks of what was queued before, so it is computed as a packet is queued, and the link
is FIFO.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir_toc import packet as wire
from weir_toc.clock import Stamps
from weir_toc.endpoint.flow import Scattering
from weir_toc.packet import Packet

#: So many packets are queued in one piece at most, and so many bytes.
RUN_PACKETS_MAX, RUN_BYTES_MAX = 64, 65_000


class Outbox:
    """The packets that one process has queued, the oldest first."""

    __slots__ = (
        "_epoch",
        "_packets",
        "_process",
        "beaconed_at",
        "beacons",
        "open",
        "sent",
        "sent_at",
        "stamps",
    )

    def __init__(self, process: int, epoch: int, floor: int) -> None:
        self._process = process
        self._epoch = epoch
        self._packets: list[tuple[bytearray, int]] = []
        self.stamps = Stamps(floor)
        #: Reliable scatterings that are not settled, by stamp, the oldest first.
        self.open: dict[int, Scattering] = {}
        #: Packets that were queued since the start, and how many of them were beacons.
        self.sent = self.beacons = 0
        self.sent_at = 0
        self.beaconed_at = 0

    def queue(self, now: int, packet: Packet) -> None:
        """Queue a packet, with the barriers of this moment."""
        stamps = self.stamps
        data = wire.encode(Packet(
            packet.opcode, self._process, packet.to, packet.stamp, stamps.barrier(now),
            stamps.commit(now, next(iter(self.open), None)), packet.psn, packet.flags, self._epoch,
            packet.payload,
        ))  # fmt: skip
        self._packets.append((data, len(data)))
        self.sent += 1
        self.sent_at = now

    def queue_run(
        self, now: int, opcode: int, to: int, psn: int, run: Sequence[tuple[int, bytes]]
    ) -> None:
        """Queue whole messages to one process: the stamps, which rise, and payloads of one size.

        They are the first that carry these stamps, so the barrier of each is its own one.
        """
        stamps = self.stamps
        commit = stamps.commit(now, next(iter(self.open), None))
        size = wire.OVERHEAD_BYTES + len(run[0][1])
        # What leaves in one call is encoded in one piece.
        count = max(1, min(RUN_PACKETS_MAX, RUN_BYTES_MAX // size))
        for at in range(0, len(run), count):
            head = Packet(opcode, self._process, to, 0, stamps.barrier_sent, commit, psn + at,
                          wire.BEGIN | wire.END, self._epoch)  # fmt: skip
            piece = run[at : at + count]
            self._packets.append((wire.encode_run(head, piece), size))
            self.sent += len(piece)
            stamps.barrier_sent = max(stamps.barrier_sent, piece[-1][0])
        self.sent_at = now

    def beacon(self, now: int) -> None:
        """Queue a beacon: both barriers, and nothing else."""
        stamps = self.stamps
        barrier = stamps.barrier(now)
        commit = stamps.commit(now, next(iter(self.open), None))
        data = wire.encode_beacon(self._process, self._epoch, barrier, commit)
        self._packets.append((data, len(data)))
        self.sent += 1
        self.beacons += 1
        self.sent_at = self.beaconed_at = now

    @property
    def commit_moved(self) -> bool:
        """Whether the commit barrier could tell of scatterings that were settled since."""
        oldest = next(iter(self.open), None)
        due = self.stamps.last if oldest is None else oldest - 1
        return due > self.stamps.commit_sent

    def take(self) -> list[tuple[bytearray, int]]:
        """Return what was queued since the last call: packets, each of so many bytes."""
        packets, self._packets = self._packets, []
        return packets
