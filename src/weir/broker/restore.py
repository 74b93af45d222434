"""From what the disk holds to running groups: checkpoints, and Raft's view of a recovered log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from weir import raft
from weir.broker.entries import read_back
from weir.broker.group import Group
from weir.codec.crc import crc32c
from weir.codec.fields import U32
from weir.errors import Damaged
from weir.log.checkpoint import CHECKPOINT as CHECKPOINT
from weir.log.errors import LogDamaged
from weir.log.frame import Kind
from weir.log.log import Log
from weir.log.recovery import RecoveredGroup

_VERSION = 0
#: Raft refuses proposals beyond this; the shard's byte budget refuses publishes long before.
_PENDING_BYTES_MAX = 1 << 40

_KINDS = {Kind.NOOP: raft.EntryKind.NOOP, Kind.CONFIGURATION: raft.EntryKind.CONFIGURATION}


@dataclass(frozen=True, slots=True)
class Opened:
    """A log as the host opened it: recovered groups, the broker's part of the checkpoint, and the
    places that were found damaged.
    """

    log: Log
    groups: Mapping[int, RecoveredGroup] = field(default_factory=dict)
    checkpoint: bytes = b""
    holes: Sequence[LogDamaged] = ()


def covered(groups: Iterable[Group]) -> dict[int, tuple[int, int]]:
    """Return index and term of the snapshots that `encode_checkpoint` would write, by group."""
    found = {}
    for group in groups:
        if group.damage is None and (index := group.node.applied_index):
            found[group.id] = (index, group.node.term_at(index))
    return found


def encode_checkpoint(groups: Sequence[Group]) -> bytes:
    """Return all groups' snapshots, for `Log.checkpoint`: u32 CRC-32C, then MessagePack.

    Each is (index, term, state) as of its applied index; all of it is durable in the log.
    """
    rows = {}
    for group in groups:
        snapshot = group.snapshot()
        if snapshot is not None:
            rows[group.id] = (snapshot.index, snapshot.term, snapshot.data)
    body = msgspec.msgpack.encode((_VERSION, rows))
    return U32.pack(crc32c(body)) + body


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
        group: raft.Snapshot(index, term, state) for group, (index, term, state) in rows.items()
    }


class LogStorage:
    """One group's durable past, as Raft reads it when it starts (blocks; not for the hot path)."""

    __slots__ = ("_group", "_log", "_recovered", "_snapshot")

    def __init__(
        self, log: Log, group: int, recovered: RecoveredGroup | None, snapshot: raft.Snapshot | None
    ) -> None:
        """See what recovery found of a group; both are None for a new one."""
        self._log = log
        self._group = group
        self._recovered = recovered
        self._snapshot = snapshot

    @property
    def fence(self) -> int:
        """The fence that was durable."""
        state = self._recovered.hard_state if self._recovered else None
        return state.fence if state else 0

    def hard_state(self) -> raft.HardState:
        """Return term and vote."""
        state = self._recovered.hard_state if self._recovered else None
        found = raft.HardState(state.term, state.vote) if state else raft.HardState()
        if self.damage is None:
            return found
        # It is never used, for a damaged group does not vote; but no entry may be of a later term.
        return raft.HardState(max(found.term, self.term(self.last_index())))

    @property
    def damage(self) -> LogDamaged | None:
        """What recovery found the group to have lost that it needs to go on."""
        return self._recovered.damage if self._recovered else None

    def snapshot(self) -> raft.Snapshot | None:
        """Return the newest checkpoint's snapshot of this group; without its state, if that was
        saved by this very process.
        """
        return self._snapshot

    def saved(self, snapshot: raft.Snapshot) -> None:
        """Take note of a newer checkpoint."""
        self._snapshot = snapshot

    def last_index(self) -> int:
        """Return the index of the last entry; the snapshot's, or else 0, if there is none."""
        last = self._recovered.last_index if self._recovered else 0
        return max(last, self._snapshot.index if self._snapshot else 0)

    def term(self, index: int) -> int:
        """Return the term of a stored entry."""
        if self._snapshot and index == self._snapshot.index:
            return self._snapshot.term
        stored = self._log.stored(self._group, index)
        if stored is None:
            raise raft.Unavailable(f"group {self._group} has no entry {index}")
        return stored.term

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[raft.Entry]:
        """Load entries [lo, hi): at least one, then as many as fit in `max_bytes`."""
        found: list[raft.Entry] = []
        size = 0
        for index in range(lo, hi):
            stored = self._log.stored(self._group, index)
            if stored is None:
                raise raft.Unavailable(f"group {self._group} has no entry {index}")
            size += stored.length
            if found and size > max_bytes:
                break
            payload = read_back(stored.kind, self._log.load(stored))
            kind = _KINDS.get(stored.kind, raft.EntryKind.NORMAL)
            found.append(raft.Entry(index, stored.term, kind, payload, stored.length))
        return found


def node_for(node: int, storage: LogStorage) -> raft.Node:
    """Return the Raft node of a group whose only voter is this node.

    One of a damaged group counts all it has as applied: it is only read, and asked for nothing.
    """
    snapshot: Any = storage.snapshot()
    applied = snapshot.index if snapshot else 0
    config = raft.Config(
        id=node,
        voters=(node,),
        fence=storage.fence,
        applied=applied if storage.damage is None else storage.last_index(),
        max_pending_bytes=_PENDING_BYTES_MAX,
    )
    return raft.Node(config, storage)
