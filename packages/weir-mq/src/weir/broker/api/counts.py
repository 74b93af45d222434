"""What a shard has done since it started: plain numbers that only grow, kept at batch rate.

They are not replicated and decide nothing. A host reads them whenever it likes, and formats them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

#: Upper ends of the classes of waiting times, in milliseconds; what is above is counted too.
LATENCY_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


class Histogram:
    """Counts values by class: `counts[i]` are those up to `bounds[i]`, the last one the rest."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Take the upper ends of the classes, rising."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


class PartitionCounts:
    """One partition: what was committed here, what was handed out, and what was not kept."""

    __slots__ = ("batches_in", "bytes_in", "bytes_out", "holds_passed", "messages_in",
                 "messages_out", "replies_out")  # fmt: skip

    def __init__(self) -> None:
        """Begin at zero."""
        self.messages_in = 0
        self.batches_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0
        #: Replies to fetches and pulls that held messages.
        self.replies_out = 0
        #: How often a relay needed more than is kept for it: it will be told of a gap.
        self.holds_passed = 0

    def gave(self, messages: int, size: int) -> None:
        """Count a reply that hands out messages, with the `size` bytes of their batches."""
        self.messages_out += messages
        self.replies_out += 1
        self.bytes_out += size


class DeviceCounts:
    """Answers to device publishes."""

    __slots__ = ("confirms", "refused")

    def __init__(self) -> None:
        """Begin at zero."""
        self.confirms = 0
        #: By error number.
        self.refused: Counter[int] = Counter()

    def told(self, codes: list[int]) -> None:
        """Count answers: 0, or the number of the refusal."""
        confirmed = codes.count(0)
        self.confirms += confirmed
        if confirmed < len(codes):
            self.refused.update(code for code in codes if code)


class Counts:
    """One shard: its partitions by group, and what concerns no partition."""

    __slots__ = (
        "_partitions", "bad_frames", "confirms", "devices", "flushed_bytes", "flushes", "holds",
        "latency", "leads_begun", "leads_lost", "reads_cached", "reads_disk",
        "refused", "repeats", "replicas_halted",
    )  # fmt: skip

    def __init__(self) -> None:
        """Begin at zero."""
        self._partitions: dict[int, PartitionCounts] = {}
        #: Milliseconds from the moment a batch is in line to its commit.
        self.latency = Histogram(LATENCY_MS)
        #: By error number, refusals to clients.
        self.refused: Counter[int] = Counter()
        self.devices = DeviceCounts()
        #: Answers to clients' batches, and how many of those came once more.
        self.confirms = 0
        self.repeats = 0
        self.flushes = 0
        self.flushed_bytes = 0
        self.reads_cached = 0
        self.reads_disk = 0
        #: How often reading from peers stopped because the byte budget was used up.
        self.holds = 0
        #: Frames of other nodes that failed a check, and were not used.
        self.bad_frames = 0
        #: Replicas that met what they could not apply, and stopped.
        self.replicas_halted = 0
        #: How often it began to lead a partition, and how often it had to stop.
        self.leads_begun = 0
        self.leads_lost = 0

    def committed(self, group: int, waited_ms: float, messages: int, size: int) -> None:
        """Count a batch that is committed `waited_ms` after it was put in line."""
        latency, found = self.latency, self._partitions.get(group)
        if found is None:
            found = self.partition(group)
        # Written out: each batch comes by here.
        latency.counts[bisect_left(latency.bounds, waited_ms)] += 1
        latency.total += waited_ms
        found.messages_in += messages
        found.batches_in += 1
        found.bytes_in += size

    def forget(self, group: int) -> None:
        """Keep nothing of a partition that is gone for good."""
        self._partitions.pop(group, None)

    def partition(self, group: int) -> PartitionCounts:
        """Return the counts of a partition, new ones if it had none."""
        found = self._partitions.get(group)
        if found is None:
            found = self._partitions[group] = PartitionCounts()
        return found
