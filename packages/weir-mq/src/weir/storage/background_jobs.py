"""Chores: work on the disk that nobody waits for; one at a time, off the loop."""

from __future__ import annotations

from dataclasses import dataclass

from weir.storage.compaction.copy_piece import CopyPiece
from weir.storage.disk import Disk
from weir.storage.entries.repair import MendPiece
from weir.storage.format.index_file import IndexFile, index_name
from weir.storage.segments.scrub import ScrubPiece


@dataclass(frozen=True, slots=True)
class Removal:
    """Segment files that are too many, to be removed with their index files."""

    names: tuple[str, ...]

    def run(self, disk: Disk) -> None:
        """Remove what of them is there; blocks."""
        there = set(disk.names())
        for segment in self.names:
            for name in (segment, index_name(segment)):
                if name in there:
                    disk.remove(name)


Chore = IndexFile | Removal | ScrubPiece | CopyPiece | MendPiece
