"""A log of which nothing is left: begun again, it must not be taken for one that never held votes.

DESIGN §4 Damage: who may have lost a vote takes part again only as another voter.
"""

from __future__ import annotations

from weir.storage.disk import Disk
from weir.storage.format.checkpoint import Checkpoint, save

#: Before the first frame that any log holds.
_BEFORE_ALL = 1


def begin_lost(disk: Disk, log: int, system: int) -> None:
    """Say in an empty folder that the log was lost that it held: `recover` finds it damaged for
    each group that anybody knows of, until that begins anew. Durable when it returns; blocks.

    Raises `OSError`, `DiskFailed`.
    """
    save(disk, Checkpoint(log, system, 0, 0, 0, {}, (), b"", lost_at=_BEFORE_ALL))
