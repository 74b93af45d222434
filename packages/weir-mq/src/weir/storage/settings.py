"""The settings of one numbered log."""

from __future__ import annotations

from dataclasses import dataclass

from weir.model.limits import BATCH_BYTES_MAX, CACHE_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT
from weir.storage.errors import BadSettings
from weir.storage.format.frame import frame_size
from weir.storage.format.segment import BLOCK, SMALL_FRAME

_ENTRIES_PER_SEGMENT_MIN = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """Which log of which system this is, and its sizes in bytes."""

    log: int
    system: int
    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    entry_bytes_max: int = BATCH_BYTES_MAX
    cache_bytes_max: int = CACHE_BYTES_DEFAULT
    #: Files kept ready, so that a roll and a full disk find room (DESIGN §4: two in reserve).
    spares: int = 2

    def validate(self) -> None:
        """Raise `BadSettings` where the log could not keep its promises."""
        if self.segment_bytes % BLOCK:
            raise BadSettings(
                f"segment_bytes is {self.segment_bytes:,}: give a multiple of {BLOCK:,}"
            )
        # A segment holds its header, the mark that begins a flush, and its END, besides entries.
        least = max(
            _ENTRIES_PER_SEGMENT_MIN * self.entry_bytes_max,
            BLOCK + frame_size(self.entry_bytes_max) + 2 * SMALL_FRAME,
        )
        if self.entry_bytes_max < 1 or self.segment_bytes < least:
            raise BadSettings(
                f"segment_bytes is {self.segment_bytes:,}: with entries of up to "
                f"{self.entry_bytes_max:,} bytes it must be at least {least:,}; raise it, or lower "
                "entry_bytes_max"
            )
