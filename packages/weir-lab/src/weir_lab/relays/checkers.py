"""What must hold at every tier: SameView, marks, and gaps that nobody needed to have.

A tier sees exactly the core's order less what its filter excludes, with no hole that it is not told
of. Each entry is compared with what the core holds when it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.relay.entries import Relayed
from weir.relay.rows import HOLDS_BATCH, RowKind, Tags, within
from weir.relay.state import RelayState
from weir_lab.relays.core import CorePartition, Told, unpacked


def of_range(core: CorePartition, record: Relayed, data: bytes, tags: Tags) -> list[str]:
    """Return what is wrong with a range that a relay stores under a filter."""
    truth = core.truths[record.lineage]
    where = f"[{record.first}, {record.next})"
    if record.next > len(truth):
        return [f"SameView: {where} goes past what is committed, {len(truth)}"]
    found = []
    rows = within(record.first, record.rows, memoryview(data), record.first, record.next)
    for at, row, batch in rows:
        told = truth[at : at + row.count]
        if row.kind in HOLDS_BATCH:
            assert batch is not None
            found += _of_batch(at, row.stamp, told, bytes(batch), tags)
        elif row.kind == RowKind.VOID:
            found += [f"SameView: {at} is told as void"] * (not all(one.is_void for one in told))
        elif any(one.is_void or tags is None or one.tag in tags for one in told):
            found.append(f"SameView: [{at}, {at + row.count}) is told as skipped: {told}")
        ends = row.stamp if row.kind in (RowKind.SKIPPED, RowKind.BATCH) else 0
        if any(one.stamp <= ends and not one.is_void for one in truth[at + row.count :]):
            found.append(f"Stamps: {ends} goes on behind {at + row.count}")
    return found


def _of_batch(at: int, stamp: int, told: Sequence[Told], data: bytes, tags: Tags) -> list[str]:
    batch = unpacked(data)
    held = {batch.first + row: (tag, value) for row, tag, value in batch.rows}
    for offset, one in enumerate(told, at):
        found = held.get(offset)
        wanted = not one.is_void and (tags is None or one.tag in tags)
        if one.is_void or one.stamp != stamp or (found is None and wanted):
            return [f"SameView: {offset} differs: {one} and {found} at {stamp}"]
        if found is not None and found != (one.tag, one.value):
            return [f"SameView: {offset} holds {found}, and not {one}"]
    return []


def of_gap(core: CorePartition, first: int, next_: int) -> list[str]:
    """Return whether a gap was told though the data was held for the relay."""
    if next_ > core.forced:
        return [f"Gap: [{first}, {next_}) was lost though it was held"]
    return []


def of_roster(core: CorePartition, state: RelayState, end: int) -> list[str]:
    """Return what is wrong with the roster of a relay that has all below `end`: it needs each entry
    that lies before a message.
    """
    needed = [entry for entry in core.roster if entry.offset < end]
    held = state.roster
    if list(held[: len(needed)]) != needed or list(core.roster[: len(held)]) != list(held):
        return [f"Roster: {held} and not {needed}"]
    return []


def of_barrier(
    cores: Sequence[CorePartition], ends: Sequence[int], lineages: Sequence[int], stamp: int
) -> list[str]:
    """Return what a reader lacks that was told that all up to a stamp is here: by partition the end
    of what is here. A partition that is not here has end 0.
    """
    found = []
    for partition, core in enumerate(cores):
        if lineages[partition] not in (0, core.lineage):
            continue  # it was promoted, with a loss: the reader will be told
        missing = [
            offset for offset in range(ends[partition], core.end)
            if core.log.truth[offset].stamp <= stamp and not core.log.truth[offset].is_void
        ]  # fmt: skip
        if missing:
            found.append(f"Mark: {stamp} is told before {missing[0]} of partition {partition}")
    return found
