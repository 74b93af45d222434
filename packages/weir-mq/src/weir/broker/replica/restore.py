"""From what the disk holds to running groups: a log as it was opened, and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

import weir_raft as raft
from weir.broker.records.snapshots import crc_from, pack_onto, taken
from weir.broker.replica.group import Group
from weir.codec.fields import U32, crc32c
from weir.errors import Damaged
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import CHECKPOINT as CHECKPOINT
from weir.storage.log import Log
from weir.storage.recovery import RecoveredGroup

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Opened:
    """A log as the host opened it: recovered groups, the broker's part of the checkpoint, and the
    places that were found damaged.
    """

    log: Log
    groups: Mapping[int, RecoveredGroup] = field(default_factory=dict)
    checkpoint: bytes = b""
    holes: Sequence[LogDamaged] = ()


def covered(groups: Iterable[Group]) -> Sequence[tuple[Group, raft.Snapshot]]:
    """Return groups and the snapshots that `States` would write, without states."""
    whole = [group for group in groups if group.damage is None]
    found = [(group, group.covered()) for group in whole]
    return [(group, snapshot) for group, snapshot in found if snapshot is not None]


class States:
    """All groups' snapshots, taken now and packed late: u32 CRC-32C, then MessagePack.

    Each is (index, term, state, configuration) as of its applied index; all of it is durable in
    the log.
    """

    __slots__ = ("_rows",)

    def __init__(self, groups: Iterable[Group]) -> None:
        """Take the states of groups, of each through its `kept_index`."""
        self._rows = _rows_of(groups)

    def write(self, out: bytearray) -> None:
        """Append the checkpoint's body, for `Log.checkpoint`; takes long where states are large."""
        start = len(out)
        out += bytes(U32.size)
        pack_onto((_VERSION, self._rows), out)
        U32.pack_into(out, start, crc_from(out, start + U32.size))


def _rows_of(groups: Iterable[Group]) -> dict[int, tuple[int, int, object, bytes]]:
    rows = {}
    for group in groups:
        snapshot = group.snapshot()
        if snapshot is not None:
            known = snapshot.configuration
            packed = known.pack() if known is not None else b""
            rows[group.id] = (snapshot.index, snapshot.term, taken(snapshot.data), packed)
    return rows


def decode_checkpoint(data: bytes) -> dict[int, raft.Snapshot]:
    """Return the snapshots of a checkpoint's body. Raises `Damaged`."""
    if not data:
        return {}
    body = data[U32.size :]
    if len(data) < U32.size or U32.unpack_from(data)[0] != crc32c(body):
        raise Damaged(
            f"the snapshots in the file `{CHECKPOINT}` fail their CRC-32C, though the whole file "
            "does not: weir did not write it. Restore this folder from a backup"
        )
    version, rows = msgspec.msgpack.decode(body, strict=False)
    if version != _VERSION:
        raise Damaged(f"the checkpoint is of version {version}; this release reads {_VERSION}")
    return {
        group: raft.Snapshot(
            index, term, state, raft.Configuration.unpack(packed) if packed else None
        )
        for group, (index, term, state, packed) in rows.items()
    }


def saved_states(opened: Opened) -> dict[int, raft.Snapshot]:
    """Return the checkpoint's snapshots, but for groups that left and began anew behind it: what
    they had been is nothing of theirs. Raises `Damaged`.
    """
    known = opened.groups
    found = decode_checkpoint(opened.checkpoint)
    return {id: at for id, at in found.items() if id not in known or not known[id].anew}
