"""The inside of a log and of its folder, for tests that spoil it."""

from __future__ import annotations

from typing import Any

from weir.server.disk.node_folder import NodeFolder
from weir.storage.compaction import Copies
from weir.storage.group_index import GroupTable

#: Methods that tests wrap, for `monkeypatch.setattr`.
END_COPY = Copies, "_end"
KEEP_GROUP = GroupTable, "_kept"
CHECK_FREE = NodeFolder, "_check_free"


def know_no_bound(log: Any) -> None:
    """Let what is flushed next say nothing of bounds, as releases did that knew none."""
    log._next_bound = 0


def places_of(log: Any, group: int) -> list[int]:
    """Return where the entries of a group lie."""
    return list(log.groups.index[group]._places)


def rows_of(index: Any) -> tuple[object, ...]:
    """Return all that an index knows; nothing lies before the first message."""
    columns = [list(column) for column in index.columns if column is not index._behind]
    behind = [max(offset, index.base) for offset in index._behind]
    return (index.first, index.before, index.base, index.total, behind, columns)


def ended_of(saver: Any) -> Any:
    """Return the event that ends a saver of positions."""
    return saver._ended


def use_again(copies: Any, name: str) -> None:
    """Let a segment be written to again, whoever still needs what lies in it."""
    copies.class_segments._spares.recycle([name])
