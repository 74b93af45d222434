"""A Storage in one file: what a host keeps, how it makes it durable, and how it finds it again.

All of it is in memory, too, so this is for logs that fit there. The file is records:

    u32 length of the body, u32 CRC-32 of the record's position (u64) and its body, the body

A body is changes: u8 what it is, u32 its length, and

    1  a hard state: i64 term, i64 vote
    2  entries: i64 index of the first, and all as `weir_raft.codec.encode_entries` gives them
    3  a snapshot, behind whose base the log begins again, empty: i64 index, term, base index and
       base term, u32 length of the configuration, the configuration, and the state

One write is one record, and the next begins when that is durable. So only the last record can be
torn by a crash; it was acknowledged to nobody, and the start cuts it off. A record that is damaged
in front of a sound one was durable: the start raises StorageError and changes nothing, since a vote
may be lost with it. Damage of the very last record looks like a torn one: whoever must tell them
apart keeps elsewhere how far the file is durable.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from zlib import crc32

import weir_raft as raft
from weir_raft.codec import decode_entries, encode_entries

_HEAD = struct.Struct("<II")
_CHANGE = struct.Struct("<BI")
_POSITION = struct.Struct("<Q")
_HARD_STATE = struct.Struct("<qq")
_FIRST = struct.Struct("<q")
_SNAPSHOT = struct.Struct("<qqqqI")
_IS_HARD_STATE, _IS_ENTRIES, _IS_SNAPSHOT = 1, 2, 3


class FileStorage:
    """A `weir_raft.Storage` that outlives its process. Entries and snapshots hold bytes.

    An OSError of `write` or `compact` leaves open what the disk holds: end the process then.
    """

    def __init__(self, path: Path) -> None:
        """Read `path`, which no other process has open, or begin a new file there."""
        self._path = path
        self._kept = raft.MemoryStorage()
        # How many Readies `write` took and `keep` did not.
        self._unkept = 0
        self._new_path().unlink(missing_ok=True)  # of a compaction that a crash cut short
        known = path.read_bytes() if path.exists() else b""
        self._end = self._recover(memoryview(known))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(self._file, self._end)
        os.lseek(self._file, self._end, os.SEEK_SET)
        os.fsync(self._file)
        _sync_folder(path.parent)  # else a power cut may take away the file itself

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    # -- what the host asks for ----------------------------------------------------------------

    def write(self, readies: Iterable[raft.Ready]) -> None:
        """Make all of them durable by one sync, in a thread if the loop must not wait.

        Nothing of it is answered for before `keep`.
        """
        readies = tuple(readies)
        self._unkept += len(readies)
        body = b"".join(_changes(r.hard_state, r.snapshot, r.entries) for r in readies)
        if body:
            record = _record(self._end, body)
            _write_all(self._file, record)
            self._end += len(record)

    def keep(self, readies: Iterable[raft.Ready]) -> None:
        """Answer for what `write` made durable: on the loop, and before `Node.persisted`."""
        for ready in readies:
            self._unkept -= 1
            self._keep(ready.hard_state, ready.snapshot, ready.entries)

    def compact(self, snapshot: raft.Snapshot) -> None:
        """Keep `snapshot`, which lies within the log, and forget the log through its base.

        Not while something is written and not kept yet. `Node.compact` may be told from then on.
        """
        if self._unkept:
            raise raft.OutOfOrder(f"{self._unkept} Readies are written: keep them, then compact")
        if snapshot.term != self.term(snapshot.index):
            raise raft.StorageError(f"no entry {snapshot.index} of term {snapshot.term} to cover")
        first, end = snapshot.base_index + 1, self.last_index() + 1
        entries = self.entries(first, end, 1 << 62) if first < end else ()
        record = _record(0, _changes(self.hard_state(), snapshot, entries))
        new = os.open(self._new_path(), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        _write_all(new, record)
        os.replace(self._new_path(), self._path)
        _sync_folder(self._path.parent)
        os.close(self._file)
        self._file, self._end = new, len(record)
        self._keep(None, snapshot, entries)

    # -- what the node asks for ----------------------------------------------------------------

    def hard_state(self) -> raft.HardState:
        """See `weir_raft.Storage`, here and below."""
        return self._kept.hard_state()

    def snapshot(self) -> raft.Snapshot | None:
        return self._kept.snapshot()

    def configuration(self) -> raft.Configuration | None:
        return self._kept.configuration()

    def configurations(self) -> Sequence[tuple[int, bytes]]:
        return self._kept.configurations()

    def last_index(self) -> int:
        return self._kept.last_index()

    def term(self, index: int) -> int:
        return self._kept.term(index)

    def entries(self, lo: int, hi: int, max_bytes: int) -> Sequence[raft.Entry]:
        return self._kept.entries(lo, hi, max_bytes)

    def cached(self, lo: int, hi: int, max_bytes: int) -> Sequence[raft.Entry] | None:
        return self._kept.cached(lo, hi, max_bytes)

    # -- the start -----------------------------------------------------------------------------

    def _recover(self, known: memoryview) -> int:
        """Take all sound records from the start on; return where they end."""
        end = 0
        while (body := _body_at(known, end)) is not None:
            try:
                self._replay(body)
            except (raft.CodecError, raft.InvalidConfig, struct.error) as error:
                raise raft.StorageError(
                    f"{self._path} at {end} is of no version: {error}"
                ) from error
            end += _HEAD.size + len(body)
        for behind in range(end + 1, len(known)):
            if _body_at(known, behind) is not None:
                raise raft.StorageError(
                    f"{self._path} is damaged at {end}, in front of what is sound at {behind}: a "
                    "vote may be lost, so add this node again under a new id and an empty folder"
                )
        return end

    def _replay(self, body: memoryview) -> None:
        at = 0
        while at < len(body):
            what, size = _CHANGE.unpack_from(body, at)
            at += _CHANGE.size
            data = body[at : at + size]
            at += size
            if what == _IS_HARD_STATE:
                self._keep(raft.HardState(*_HARD_STATE.unpack(data)), None, ())
            elif what == _IS_ENTRIES:
                (first,) = _FIRST.unpack_from(data)
                self._keep(None, None, decode_entries(data[_FIRST.size :], first))
            elif what == _IS_SNAPSHOT:
                self._keep(None, _snapshot_of(data), ())
            else:
                raise raft.StorageError(f"{self._path} holds a change {what} of a newer version")

    def _keep(
        self,
        hard_state: raft.HardState | None,
        snapshot: raft.Snapshot | None,
        entries: Sequence[raft.Entry],
    ) -> None:
        self._kept.save(hard_state, ())
        if snapshot is not None:
            self._kept.install(snapshot)
        self._kept.save(None, entries)

    def _new_path(self) -> Path:
        return self._path.with_name(self._path.name + ".new")


def _changes(
    hard_state: raft.HardState | None,
    snapshot: raft.Snapshot | None,
    entries: Sequence[raft.Entry],
) -> bytes:
    """What one Ready asked for, in the order that its fields demand."""
    found: list[bytes] = []
    if hard_state is not None:
        state = _HARD_STATE.pack(hard_state.term, hard_state.vote)
        found += _CHANGE.pack(_IS_HARD_STATE, len(state)), state
    if snapshot is not None:
        if not isinstance(snapshot.data, bytes | bytearray):
            raise TypeError(f"a snapshot's data are bytes here, not {type(snapshot.data)}")
        members = snapshot.configuration.pack() if snapshot.configuration else b""
        place = (snapshot.index, snapshot.term, snapshot.base_index, snapshot.base_term)
        head = _SNAPSHOT.pack(*place, len(members)) + members
        size = len(head) + len(snapshot.data)
        found += _CHANGE.pack(_IS_SNAPSHOT, size), head, bytes(snapshot.data)
    if entries:
        first = entries[0].index
        rows = _FIRST.pack(first) + encode_entries(entries, first)
        found += _CHANGE.pack(_IS_ENTRIES, len(rows)), rows
    return b"".join(found)


def _snapshot_of(data: memoryview) -> raft.Snapshot:
    index, term, base_index, base_term, size = _SNAPSHOT.unpack_from(data)
    end = _SNAPSHOT.size + size
    members = bytes(data[_SNAPSHOT.size : end])
    configuration = raft.Configuration.unpack(members) if members else None
    return raft.Snapshot(index, term, bytes(data[end:]), configuration, base_index, base_term)


def _crc(position: int, body: bytes | memoryview) -> int:
    # With the position, so that nobody's data can look like a record that lies there.
    return crc32(body, crc32(_POSITION.pack(position)))


def _record(position: int, body: bytes) -> bytes:
    return _HEAD.pack(len(body), _crc(position, body)) + body


def _body_at(known: memoryview, position: int) -> memoryview | None:
    """The body of the record at a position; None if no whole and sound one lies there."""
    start = position + _HEAD.size
    if start >= len(known):
        return None
    size, crc = _HEAD.unpack_from(known, position)
    body = known[start : start + size]
    return body if size and len(body) == size and _crc(position, body) == crc else None


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
