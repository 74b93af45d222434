"""The log of one member of the controller: one file, synced before anything of it is answered for.

All of it is in memory too, as it is small: names, failures, and a snapshot in place of old entries.

    8 bytes   "WEIRTOC" and the version of the format, 1
    u32       the member whose file it is, little-endian as all that follows
    records   "REC\\n", u32 length of the body, u32 CRC-32C of the record's position (u64) and body,
              then the body

A body is changes: u8 what it is, u32 its length, and

    1  a hard state: i64 term, i64 vote
    2  entries: i64 index of the first, and all as `weir_raft.codec.encode_entries` gives them
    3  a snapshot, behind which the log begins again, empty: i64 index, i64 term, u32 length of the
       configuration, the configuration, and the state

One write is one record, and the next one begins when that is durable. So a crash can tear the last
record alone, which nobody was told of: the start cuts it off. A damaged record in front of a sound
one was durable, and a vote may be lost with it: the start refuses the file and changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from google_crc32c import extend

import weir_raft as raft
from weir_raft.codec import decode_entries, encode_entries
from weir_toc.errors import LogDamaged, LogInUse

#: A larger file is none of a controller: it is refused before it is read.
FILE_BYTES_MAX = 256 << 20
_MAGIC = b"WEIRTOC\x01"
_MARK = b"REC\n"
_MEMBER = struct.Struct("<I")
_HEAD = struct.Struct("<4sII")
_CHANGE = struct.Struct("<BI")
_POSITION = struct.Struct("<Q")
_HARD_STATE = struct.Struct("<qq")
_FIRST = struct.Struct("<q")
_SNAPSHOT = struct.Struct("<qqI")
_IS_HARD_STATE, _IS_ENTRIES, _IS_SNAPSHOT = 1, 2, 3
_START = len(_MAGIC) + _MEMBER.size


class FileLog(raft.MemoryStorage):
    """A `weir_raft.Storage` in one file, which one process has open. Entries hold bytes.

    An OSError of `write` or `compact` leaves open what the disk holds: end the process then.
    """

    def __init__(self, path: Path, member: int) -> None:
        """Read `path`, or begin a new file there.

        Raises LogDamaged, or LogInUse while another process has it open.
        """
        super().__init__()
        self.path = path
        self.member = member
        #: Bytes of the last torn record that the start cut off.
        self.torn = 0
        self._unkept = 0
        missing = [one for one in (path.parent, *path.parent.parents) if not one.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            _sync_folder(folder.parent)
        # The lock is on a file of its own: a compaction replaces the log.
        self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = self._open()
        except BlockingIOError as error:
            os.close(self._lock)
            raise LogInUse(
                f"{path} is open in another process: each member of a controller needs its own"
            ) from error
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> int:
        path = self.path
        self._new_path.unlink(missing_ok=True)  # of a compaction that a crash cut short
        if path.exists() and path.stat().st_size > FILE_BYTES_MAX:
            raise LogDamaged(
                f"{path} is larger than {FILE_BYTES_MAX} bytes: no controller wrote it"
            )
        known = path.read_bytes() if path.exists() else b""
        if len(known) < _START and _header(self.member).startswith(known):
            # A crash came before the header was durable, so nothing was answered for.
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            _write_all(file, _header(self.member))
            _sync_folder(path.parent)
            self.size = _START
            return file
        self.size = self._recover(known)
        self.torn = len(known) - self.size
        file = os.open(path, os.O_WRONLY)
        os.ftruncate(file, self.size)
        os.lseek(file, self.size, os.SEEK_SET)
        os.fsync(file)
        _sync_folder(path.parent)  # its name may not be durable: a kill came right behind it
        return file

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
        os.close(self._lock)

    # -- what the host asks for ----------------------------------------------------------------

    def write(self, readies: Iterable[raft.Ready]) -> None:
        """Make all of them durable by one sync, in a thread if the loop must not wait.

        Nothing of it is answered for before `keep`.
        """
        readies = tuple(readies)
        self._unkept += len(readies)
        body = b"".join(_changes(one.hard_state, one.snapshot, one.entries) for one in readies)
        if body:
            record = _record(self.size, body)
            _write_all(self._file, record)
            self.size += len(record)

    def keep(self, readies: Iterable[raft.Ready]) -> None:
        """Answer for what `write` made durable: on the loop, and before `Node.persisted`."""
        for ready in readies:
            self._unkept -= 1
            self._keep(ready.hard_state, ready.snapshot, ready.entries)

    def compact(self, snapshot: raft.Snapshot) -> bool:
        """Keep `snapshot` in place of the log through its index, by a new file.

        Return False, and do nothing, while something is written that is not kept yet.
        """
        if self._unkept:
            return False
        if snapshot.term != self.term(snapshot.index):
            raise raft.StorageError(f"no entry {snapshot.index} of term {snapshot.term} to cover")
        first, end = snapshot.index + 1, self.last_index() + 1
        entries = self.entries(first, end, 1 << 62) if first < end else ()
        body = _changes(self.hard_state(), snapshot, entries)
        data = _header(self.member) + _record(_START, body)
        new = os.open(self._new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        _write_all(new, data)
        os.replace(self._new_path, self.path)
        _sync_folder(self.path.parent)
        os.close(self._file)
        self._file, self.size = new, len(data)
        self._keep(None, snapshot, entries)
        return True

    # -- the start -----------------------------------------------------------------------------

    def _recover(self, known: bytes) -> int:
        """Take all sound records from the start on; return where they end."""
        if known[: len(_MAGIC)] != _MAGIC:
            raise LogDamaged(
                f"{self.path} does not begin as the log of a controller of this version: give "
                "`weir-toc controller` the folder that it wrote"
            )
        (member,) = _MEMBER.unpack_from(known, len(_MAGIC))
        if member != self.member:
            raise LogDamaged(
                f"{self.path} is the log of member {member}, not of {self.member}: a member with "
                "another's log would vote twice"
            )
        end = _START
        while (body := _body_at(known, end)) is not None:
            try:
                self._replay(body)
            except (raft.RaftError, struct.error) as error:
                raise LogDamaged(f"{self.path} at {end} is of no known version: {error}") from error
            end += _HEAD.size + len(body)
        behind = known.find(_MARK, end + 1)
        while behind >= 0:
            if _body_at(known, behind) is not None:
                raise LogDamaged(
                    f"{self.path} is damaged at byte {end}, in front of a sound record at {behind}."
                    " A vote may be lost with it: remove this member's folder only if both others"
                    " run, and give the member a new id"
                )
            behind = known.find(_MARK, behind + 1)
        return end

    def _replay(self, body: bytes) -> None:
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
                raise raft.StorageError(f"a change {what} is of a newer version")

    def _keep(
        self,
        hard_state: raft.HardState | None,
        snapshot: raft.Snapshot | None,
        entries: Sequence[raft.Entry],
    ) -> None:
        self.save(hard_state, ())
        if snapshot is not None:
            self.install(snapshot)
        self.save(None, entries)

    @property
    def _new_path(self) -> Path:
        return self.path.with_name(self.path.name + ".new")


def _header(member: int) -> bytes:
    return _MAGIC + _MEMBER.pack(member)


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
        assert isinstance(snapshot.data, bytes | bytearray)
        members = snapshot.configuration.pack() if snapshot.configuration else b""
        head = _SNAPSHOT.pack(snapshot.index, snapshot.term, len(members)) + members
        size = len(head) + len(snapshot.data)
        found += _CHANGE.pack(_IS_SNAPSHOT, size), head, bytes(snapshot.data)
    if entries:
        first = entries[0].index
        rows = _FIRST.pack(first) + encode_entries(entries, first)
        found += _CHANGE.pack(_IS_ENTRIES, len(rows)), rows
    return b"".join(found)


def _snapshot_of(data: bytes) -> raft.Snapshot:
    index, term, size = _SNAPSHOT.unpack_from(data)
    end = _SNAPSHOT.size + size
    members = data[_SNAPSHOT.size : end]
    configuration = raft.Configuration.unpack(members) if members else None
    return raft.Snapshot(index, term, data[end:], configuration)


def _crc(position: int, body: bytes) -> int:
    # With the position, so that no data can look like a record that lies there.
    return int(extend(extend(0, _POSITION.pack(position)), body))


def _record(position: int, body: bytes) -> bytes:
    return _HEAD.pack(_MARK, len(body), _crc(position, body)) + body


def _body_at(known: bytes, position: int) -> bytes | None:
    """The body of the record at a position; None if no whole and sound one lies there."""
    start = position + _HEAD.size
    if start > len(known):
        return None
    mark, size, crc = _HEAD.unpack_from(known, position)
    if mark != _MARK or not 0 < size <= len(known) - start:
        return None
    body = known[start : start + size]
    return body if _crc(position, body) == crc else None


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
    os.fsync(file)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
