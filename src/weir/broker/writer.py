"""One log of this shard: what waits to be cut into entries, and the one flush in flight."""

from __future__ import annotations

from weir.broker.effects import MakeSpare, SaveCheckpoint, StartFlush
from weir.broker.events import SpareMade
from weir.broker.group import Group, Token
from weir.broker.outbox import Outbox
from weir.broker.partition import Partition
from weir.broker.restore import CHECKPOINT, Opened, decode_checkpoint, encode_checkpoint
from weir.log.flush import Flush
from weir.model.limits import MIB
from weir.order.clock import Time

CHECKPOINT_BYTES = 256 * MIB
CHECKPOINT_MS = 300_000
IDLE_MS = 100


class Writer:
    """Cuts entries when the previous flush is done, never by a timer (DESIGN §5 Flush)."""

    def __init__(
        self,
        number: int,
        opened: Opened,
        outbox: Outbox,
        time: Time,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        """Write to log `number` as the host opened it; save after so many bytes of it."""
        self.number = number
        self._checkpoint_bytes = checkpoint_bytes
        self.log = opened.log
        self.recovered = opened.groups
        self.snapshots = decode_checkpoint(opened.checkpoint)
        self.groups: dict[int, Group] = {}
        self._outbox = outbox
        self._time = time
        self._dirty: dict[int, Partition] = {}
        self._in_flight = False
        self._saving = False
        self._quiet_since = time.monotonic_ms()
        self._saved_at = self._quiet_since
        self._saved_tail = self.log.tail

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing is in flight and nothing is being saved."""
        return not (self._in_flight or self._dirty or self._saving)

    @property
    def clean(self) -> bool:
        """Whether the last checkpoint covers the whole log."""
        return self._saved_tail == self.log.tail

    def mark_dirty(self, partition: Partition) -> None:
        """Cut this partition's next entry when the time comes."""
        self._dirty[partition.group.id] = partition

    def advance(self) -> None:
        """Start the next flush, if none is in flight and there is something to write."""
        if self._in_flight:
            return
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for partition in dirty.values():
                partition.cut()
        flush = self.log.next_flush()
        if flush is not None:
            self._in_flight = True
            self._outbox.put(StartFlush(self.number, flush))
        spare = self.log.wants_spare()
        if spare is not None:
            self._outbox.put(MakeSpare(self.number, spare))

    def flushed(self, flush: Flush) -> None:
        """All of a flush is durable: commit and apply what waited for it."""
        self.log.flushed(flush)
        self._in_flight = False
        self._quiet_since = self._time.monotonic_ms()
        for token in flush.tokens:
            assert isinstance(token, Token)  # what Group gave to append()
            self.groups[token.group].persisted(token.ready)

    def spare_made(self, event: SpareMade) -> None:
        """Take a made segment file into the reserve."""
        if event.made:
            self.log.spare_ready(event.spare)

    def tick(self) -> None:
        """Write an idle mark after a quiet moment, and a checkpoint after much or long."""
        now = self._time.monotonic_ms()
        if self.idle and now - self._quiet_since >= IDLE_MS:
            self.log.mark_idle()
        grown = self.log.tail - self._saved_tail
        if grown > self._checkpoint_bytes or (grown and now - self._saved_at > CHECKPOINT_MS):
            self.checkpoint()

    def checkpoint(self) -> None:
        """Save every group's snapshot, unless that is under way."""
        if self._saving:
            return
        self._saving = True
        self._saved_at = self._time.monotonic_ms()
        self._saved_tail = self.log.tail
        data = encode_checkpoint(list(self.groups.values()))
        self._outbox.put(SaveCheckpoint(self.number, CHECKPOINT, data))

    def saved(self) -> None:
        """The checkpoint is durable."""
        self._saving = False
