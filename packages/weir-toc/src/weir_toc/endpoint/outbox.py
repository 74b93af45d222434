"""The link from a process to the switch of its rack: what is queued carries both barriers.

A barrier speaks of what was queued before, so it is computed as a packet is queued, and the link
is FIFO.
"""

from __future__ import annotations

from weir_toc import packet as wire
from weir_toc.clock import Stamps
from weir_toc.controller.promises import Wait
from weir_toc.endpoint.flow import Batch, Scattering
from weir_toc.packet import Packet


class Outbox:
    """The packets that one process has queued, the oldest first."""

    __slots__ = (
        "_epoch",
        "_packets",
        "_process",
        "beaconed_at",
        "beacons",
        "forwards",
        "open",
        "reliable",
        "sent",
        "sent_at",
        "stamps",
    )

    def __init__(self, process: int, epoch: int, floor: int) -> None:
        self._process = process
        self._epoch = epoch
        self._packets: list[tuple[bytearray, int]] = []
        #: What the controller is to forward, by receiver, requests and answers apart.
        self.forwards: dict[tuple[int, bool], list[bytearray]] = {}
        self.stamps = Stamps(floor)
        #: Reliable scatterings that are not settled, by stamp, the oldest first.
        self.open: dict[int, Scattering | Batch] = {}
        #: The last reliable stamp that was given; 0 before the first one.
        self.reliable = 0
        #: Packets that were queued since the start, and how many of them were beacons.
        self.sent = self.beacons = 0
        self.sent_at = 0
        self.beaconed_at = 0

    def queue(self, now: int, packet: Packet) -> None:
        """Queue a packet, with the barriers of this moment."""
        stamps = self.stamps
        barrier = stamps.barrier(now)
        commit = stamps.commit(now, next(iter(self.open), None))
        data = wire.encode_of(packet, self._process, self._epoch, barrier, commit)
        self._packets.append((data, len(data)))
        self.sent += 1
        self.sent_at = now

    def forward(self, packet: Packet) -> bool:
        """Let the controller forward a packet; return whether it fits in what leaves next.

        It comes by another way than the link, so it carries no barriers: they would promise that
        all before has come, too.
        """
        key = packet.to, packet.opcode in wire.FORWARDED_ANSWERS
        waiting = self.forwards.setdefault(key, [])
        plain = packet._replace(source=self._process, epoch=self._epoch, barrier=0, commit=0)
        data = wire.encode(plain)
        if sum(map(len, waiting)) + len(data) > wire.FORWARD_BYTES_MAX:
            return False
        waiting.append(data)
        return True

    def take_forwards(self) -> list[tuple[int, list[bytearray]]]:
        """Return what the controller is to forward since the last call, by receiver."""
        found, self.forwards = self.forwards, {}
        return [(to, packets) for (to, _), packets in found.items()]

    def queue_batch(self, now: int, batch: Batch) -> None:
        """Queue the packets of a batch, which has left.

        They are the first that carry its stamps, so the barrier of each is its own one.
        """
        stamps, count = self.stamps, len(batch)
        commit = stamps.commit(now, next(iter(self.open), None))
        head = Packet(batch.service.value, self._process, batch.to, batch.stamp,
                      stamps.barrier_sent, commit, batch.first_psn, wire.BEGIN | wire.END,
                      self._epoch)  # fmt: skip
        size = wire.OVERHEAD_BYTES + len(batch.payloads[0])
        self._packets.append((wire.encode_run(head, batch.payloads), size))
        self.sent += count
        stamps.barrier_sent = max(stamps.barrier_sent, batch.stamp + count - 1)
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
        opened, stamps = self.open, self.stamps
        return (next(iter(opened)) - 1 if opened else stamps.last) > stamps.commit_sent

    @property
    def holds(self) -> tuple[Wait, int]:
        """What the commit barrier waits for, and for which process; 0 without one."""
        oldest = next(iter(self.open.values()), None)
        if oldest is None:
            return Wait.NOTHING, 0
        if isinstance(oldest, Batch):
            return Wait.ACK, oldest.to
        if oldest.recalls:
            return Wait.RECALL, min(oldest.recalls)
        if oldest.notes:
            return Wait.NOTE, oldest.aborted_by
        return Wait.ACK, next((part.to for part in oldest.parts if part.unacked), 0)

    def take(self) -> list[tuple[bytearray, int]]:
        """Return what was queued since the last call: packets, each of so many bytes."""
        packets, self._packets = self._packets, []
        return packets
