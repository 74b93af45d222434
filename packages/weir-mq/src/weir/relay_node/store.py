"""The storage of a relay node: one log of `weir.storage` that holds the groups of all partitions.

A group has the number that it has in the core. Its entries are those of `weir.relay.entries`, in
frames of kind CONTROL, of term 1, with an index of its own. What is damaged is not mended here: the
group begins anew, and is pulled again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from weir.codec import Buffer, total
from weir.errors import Damaged, UnknownVersion
from weir.model.limits import KIB, MIB, RELAY_BYTES_MAX
from weir.relay.entries import decode_entry
from weir.relay.ports import AppendEntry
from weir.relay.state import EntryRefused, RelayState
from weir.storage.disk import Disk
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import Checkpoint
from weir.storage.format.frame import Kind
from weir.storage.format.record import Record
from weir.storage.log import Flush, Log
from weir.storage.log_reader import Reading
from weir.storage.recovery import Recovered, recover
from weir.storage.segment_files import Settings

log = logging.getLogger(__name__)

#: An entry holds what one answer brought, and its head.
ENTRY_BYTES_MAX = RELAY_BYTES_MAX + 256 * KIB
SEGMENT_BYTES = 64 * MIB
#: A checkpoint is saved after so many bytes: a start reads what lies behind it.
CHECKPOINT_BYTES = 64 * MIB
_TERM = 1
_ANY = 1 << 62
#: By group, the snapshot of its state.
_BODY = msgspec.msgpack.Decoder(dict[int, bytes])


def settings_of(system: int) -> Settings:
    """Return the settings of a relay's log."""
    return Settings(0, system, SEGMENT_BYTES, ENTRY_BYTES_MAX)


class RelayStore:
    """The log of a relay node, and which entries of it are durable."""

    def __init__(self, found: Recovered, checkpoint_bytes: int) -> None:
        """Go on with a log as it was recovered; blocks while it is read. A checkpoint is due after
        so many bytes.
        """
        self.log: Log = found.log
        self._checkpoint_bytes = checkpoint_bytes
        #: By group, the state of its entries; the host of the partitions takes them from here.
        self.states: dict[int, RelayState] = {}
        self._checkpointed = self.log.tail
        #: By group, below which index nothing is needed once a checkpoint holds what it said.
        self._dropped: dict[int, int] = {}
        self._covered: dict[int, int] = {}
        snapshots = _snapshots(found.body)
        for group, recovered in found.groups.items():
            snapshot = b"" if recovered.anew else snapshots.get(group, b"")
            try:
                if recovered.damage is not None or recovered.unreadable:
                    raise Damaged(f"entries of group {group} are lost: {recovered.damage}")
                self.states[group] = self._read(group, snapshot, recovered.last_index)
            except (Damaged, UnknownVersion, EntryRefused, LogDamaged) as error:
                log.warning("group %d begins anew, and is pulled again: %s", group, error)
                self.log.drop_group(group)

    @classmethod
    def open(
        cls, disk: Disk, settings: Settings, checkpoint_bytes: int = CHECKPOINT_BYTES
    ) -> RelayStore:
        """Open the log in a folder, or begin one; blocks. Raises what `recover` raises."""
        return cls(recover(disk, settings), checkpoint_bytes)

    def _read(self, group: int, snapshot: bytes, last: int) -> RelayState:
        """Return the state that a snapshot and the entries behind it make."""
        state = RelayState.decode(snapshot) if snapshot else RelayState()
        for index in range(state.index + 1, last + 1):
            stored = self.log.reader.stored(group, index)
            if stored is None:
                raise Damaged(f"entry {index} of group {group} is missing")
            payload = self.log.reader.load(stored)
            state.apply(decode_entry(payload)[0], len(payload))
        return state

    # -- writing -----------------------------------------------------------------------------

    def append(self, group: int, effect: AppendEntry) -> int:
        """Stage an entry; return its bytes. The flush that takes it has (group, index)."""
        size = total(effect.encoded)
        record = Record(group, _TERM, effect.index, Kind.CONTROL, effect.encoded, size)
        self.log.append(record, (group, effect.index))
        return size

    def drop_below(self, group: int, index: int) -> None:
        """Entries below `index` are not needed, once a checkpoint holds what they said."""
        self._dropped[group] = index

    def drop_group(self, group: int) -> None:
        """Nothing of a group is needed any more."""
        self.states.pop(group, None)
        self._dropped.pop(group, None)
        self.log.drop_group(group)

    def next_flush(self) -> Flush | None:
        """Take all that is staged; None if nothing is, or a flush is in flight."""
        return self.log.next_flush()

    # -- checkpoints -------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is worth its bytes."""
        return self.log.tail - self._checkpointed >= self._checkpoint_bytes

    def checkpoint(self, states: Mapping[int, RelayState]) -> Checkpoint | None:
        """Return a checkpoint to be saved, then to be told to `saved`; None while something is not
        durable, for a state must not be ahead of its log.
        """
        if self.log.staged is not None or self.log.reader.durable < self.log.tail:
            return None
        self._checkpointed = self.log.tail
        self._covered = {group: state.index for group, state in states.items() if state.index}
        body = msgspec.msgpack.encode({group: states[group].encode() for group in self._covered})
        return self.log.checkpoint(self._covered, body)

    def saved(self) -> None:
        """The last checkpoint is durable: what it covers, and nobody needs, goes with the next."""
        self.log.checkpoint_saved()
        for group, index in list(self._dropped.items()):
            if self._covered.get(group, 0) >= index - 1:
                del self._dropped[group]
                self.log.drop_below(group, index)

    # -- reading -----------------------------------------------------------------------------

    def cached(self, group: int, indexes: Sequence[int]) -> dict[int, Buffer]:
        """Return by index what is in memory of some entries, durable or not."""
        found: dict[int, Buffer] = {}
        for index in indexes:
            raw = self.log.reader.cached(group, index, index + 1, _ANY)
            if raw:
                payload = raw[0].payload
                found[index] = payload[0] if len(payload) == 1 else b"".join(payload)
        return found

    def reading(self, group: int, indexes: Sequence[int]) -> tuple[Reading | None, list[int]]:
        """Return what reads those of these entries that are durable, up to the first that is not,
        and which these are.
        """
        reading = self.log.reader.read_entries(group, indexes, _ANY, _ANY, Kind.CONTROL)
        if reading is None:
            return None, []
        return reading, list(indexes[: len(reading.entries)])


def _snapshots(body: bytes) -> dict[int, bytes]:
    if not body:
        return {}
    try:
        return _BODY.decode(body)
    except msgspec.DecodeError as error:
        raise UnknownVersion(f"a checkpoint of a relay of another release: {error}") from None
