"""What can go wrong in a log, and what the reader of the message can do about it.

WeirError
├── Damaged
│   └── LogDamaged     durable bytes are gone: from a copy or not at all
├── BadSettings        the log cannot work with these sizes
├── BadRecord          the caller broke the contract of `append`: a bug there
├── BadIndexFile       an index file that is not to be believed: made again from its segment
├── ForeignSegment     a file of another log or another system lies in this folder
└── UnknownKind        a newer release wrote this log
"""

from __future__ import annotations

from weir.errors import Damaged, WeirError


class LogDamaged(Damaged):
    """Bytes below the durable mark are not what was written. Nothing was changed on the disk."""

    def __init__(self, log: int, segment: str, position: int, reason: str) -> None:
        """Name the log's number, the segment's file, the log position and what is wrong there."""
        super().__init__(
            f"log {log} is damaged at position {position:,} in {segment}: {reason}. "
            "These bytes had been durable, so dropping them could lose confirmed messages or a "
            "vote. Check the disk and copy this folder before anything else; then restore it from "
            "a backup. What can still be read, `weir backup` copies while the node runs."
        )
        self.log = log
        self.segment = segment
        self.position = position
        self.reason = reason


class BadSettings(WeirError):
    """A log cannot be opened with these settings; the message names the bound."""


class BadRecord(WeirError):
    """A record that the log cannot hold; nothing was staged."""


class BadIndexFile(WeirError):
    """An index file is missing, damaged, or of another use of its segment: scan that instead."""


class ForeignSegment(WeirError):
    """A segment of another log or system: the wrong folder was given or a file was copied in."""


class UnknownKind(WeirError):
    """A sound frame of a kind or version that this release does not know; upgrade the node."""
