"""Whether the folder of a log holds the log that this node wrote there last.

A disk may be missing when a machine starts, be replaced by an empty one, or come back after the log
has begun anew elsewhere. Votes that it held would be cast again, and confirmed messages lost by
that. So each log carries a number drawn when it began, its *life*, and the node's folder remembers
which life was the last.
"""

from __future__ import annotations

import logging
import secrets

from weir.server.disk.file_disk import FileDisk
from weir.server.disk.node_folder import BadFolder, Founded, NodeFolder
from weir.storage.format.checkpoint import begin_lost
from weir.storage.format.segment import segment_number

log = logging.getLogger(__name__)

#: The file in a log's folder that says which log it is.
LIFE = "life"


def begin(folder: NodeFolder, founded: Founded, number: int, disk: FileDisk) -> None:
    """Let log `number` go on in its folder, which `disk` is, or begin in an empty one.

    One that is gone begins anew in a set: what it held comes from the others, and until then this
    node votes in none of its groups. Raises `BadFolder` where there are no others, or where another
    log lies; `OSError`, `DiskFailed`.
    """
    names = disk.names()
    here = disk.read(LIFE, 0, disk.size(LIFE)).decode() if LIFE in names else ""
    last = folder.life(number)
    is_empty = not here and all(segment_number(name) is None for name in names)
    if last and is_empty:
        _begin_anew(folder, founded, number, disk)
    elif last and here != last:
        raise BadFolder(
            f"the folder of log {number} does not hold the log that this node wrote last: that has "
            "begun anew since, or is of another node. Mount the right disk; if this one is to be "
            "used, move away all that lies in it"
        )
    elif not last:
        if not here:
            here = draw_life()
            disk.replace(LIFE, here.encode())
        folder.remember_life(number, here)


def _begin_anew(folder: NodeFolder, founded: Founded, number: int, disk: FileDisk) -> None:
    if all(member.node == founded.node for member in founded.members):
        raise BadFolder(
            f"log {number} of this node has begun, and there is nothing in its folder: mount the "
            "disk that holds it. If that is lost, restore a backup into another folder; or, where "
            "others have joined this node to a set, remove it from that (`weir node remove`), and "
            "add it under another number, in an empty folder"
        )
    log.error(
        "log %d of this node is missing: it begins anew, and other nodes send its contents",
        number,
        extra={"fields": {"log": number}},
    )
    life = draw_life()
    # In this order: after a crash in between it is gone still, and the log before it stays refused.
    folder.remember_life(number, life)
    begin_lost(disk, number, founded.system)
    disk.replace(LIFE, life.encode())


def generation_of(life: str) -> int:
    """Return the number that a durable position has of a log with this life; 0 for one that no
    release has drawn.
    """
    try:
        return int(life, 16) % (1 << 64)
    except ValueError:
        return 0


def draw_life() -> str:
    """Draw what tells a log from all others of its number."""
    return f"{secrets.randbits(62) + 1:x}"
