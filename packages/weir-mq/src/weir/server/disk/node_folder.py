"""The data folder of a node: its identity, where its logs lie, and where it listens now.

node.json      system, BrokerSet and node ids, the nodes it was founded with, and the logs; written
               once, when it is founded
endpoint.json  host, port and pid of the running node
access-mode    the mode of access that the node knew last, as `closed`; not there: open
births.json    by the number of each node, its birth as this one knew it last in a closed set; only
               the owner may read it
lock           held by the running node
life-0 ...     which log lies in the folder of each number
log-0/ ...     the numbered logs, where they have no folders elsewhere

The folder of a log must hold the log that this node wrote there last. A disk may be missing when a
machine starts, be replaced by an empty one, or come back after the log has begun anew elsewhere.
Votes that it held would be cast again, and confirmed messages lost by that. So each log carries a
number drawn when it began, its *life*, and the node's folder remembers which life was the last.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from weir.broker.api.settings import Identity, Member
from weir.errors import WeirError
from weir.model.ids import LIMIT_MAX, NODE_MAX
from weir.model.limits import LOGS_MAX, SET_ID_MAX
from weir.server.disk.file_disk import FileDisk, FolderInUse, foreign_files
from weir.storage.format.checkpoint import begin_lost
from weir.storage.format.segment import segment_number

#: Told host and port once clients may connect.
Started = Callable[[str, int], None]

_NODE = "node.json"
_ENDPOINT = "endpoint.json"
_LOCK = "lock"
_ACCESS_MODE = "access-mode"
_BIRTHS = "births.json"
_BIRTHS_BYTES_MAX = 256 * 1024
#: By node, what can be its birth: 0 on the wire is one that is not known.
_Births = dict[Annotated[int, Meta(ge=1, le=NODE_MAX)], Annotated[int, Meta(ge=1, le=LIMIT_MAX)]]
#: A mode is a short word: whatever else lies there is none.
_MODE_BYTES_MAX = 16
_OF_A_BACKUP = "manifest.json"
log = logging.getLogger(__name__)

#: The file in a log's folder that says which log it is.
LIFE = "life"


class BadFolder(WeirError):
    """The data folder is not one, or not of this release, or not what was asked for."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where a running node listens."""

    host: str
    port: int
    pid: int


class Part(NamedTuple):
    """Which node of which system is to be founded: alone, unless `members` are given.

    `system` 0 draws a new one; every node of a system has the same. `brokerset` is the id of the
    node's BrokerSet in the topology; 0 is that of a system with one set. `join_key` is made of the
    secret that `weir node add` printed.
    """

    node: int = 1
    members: tuple[Member, ...] = ()
    system: int = 0
    brokerset: int = 0
    join_key: bytes = b""


class Founded(msgspec.Struct, frozen=True):
    """What is fixed when a node is founded. `folders` names those logs that lie elsewhere.

    `members` are the nodes that the set began with, of which this one need not be: see `Identity`.
    """

    system: int
    brokerset: int
    node: int
    logs: int
    folders: dict[str, str] = {}
    members: tuple[Member, ...] = ()
    #: Drawn for this folder alone: one that is founded anew, under the same number, has another.
    birth: int = 0
    #: By what it proves that it is the node that was added, until its birth is known; or nothing.
    join_key: bytes = b""

    def identity(self, shard: int) -> Identity:
        """Return who a shard of this node is."""
        return Identity(
            self.system, self.brokerset, self.node, shard, self.members, self.birth, self.join_key
        )


def life_name(log: int) -> str:
    """Return the file that says which log lay last in the folder of a number."""
    return f"life-{log}"


def default_logs() -> int:
    """Return how many logs a node gets: one for each core, so that each may have a shard."""
    return min(max(2, os.cpu_count() or 1), LOGS_MAX)


def new_system() -> int:
    """Draw the id of a new system, or the birth of a folder."""
    return secrets.randbits(62) + 1


def _check_part(part: Part) -> None:
    """Raise `BadFolder` for a part that no set has."""
    ids = [member.node for member in part.members]
    if not all(1 <= node <= NODE_MAX for node in (part.node, *ids)):
        raise BadFolder(f"nodes are numbered from 1 to {NODE_MAX:,}")
    if not 0 <= part.brokerset <= SET_ID_MAX:
        raise BadFolder(f"BrokerSets have ids from 0 to {SET_ID_MAX:,}, not {part.brokerset}")
    if len(set(ids)) < len(ids):
        raise BadFolder("a node stands twice in the set: name each of them once")
    if len({(member.host, member.port) for member in part.members}) < len(ids):
        raise BadFolder("two nodes of the set have the same address: give each its own")
    if part.node not in ids and (part.members or part.node > 1) and not part.system:
        raise BadFolder(
            f"node {part.node} is not among the founding nodes of --set: to join an existing set, "
            "name it by --system and --set (`weir node add` prints both)"
        )


class NodeFolder:
    """One node's data folder."""

    def __init__(self, path: str | Path) -> None:
        """Use a folder; `found` makes it if it is not there."""
        self.path = Path(path)

    def log(self, number: int, founded: Founded | None = None) -> Path:
        """Return the folder of a numbered log."""
        elsewhere = founded.folders.get(str(number)) if founded else None
        return Path(elsewhere) if elsewhere else self.path / f"log-{number}"

    def founded(self) -> Founded | None:
        """Return what was fixed here; None if nothing was. Raises `BadFolder`."""
        file = self.path / _NODE
        if not file.exists():
            return None
        try:
            return msgspec.json.decode(file.read_bytes(), type=Founded)
        except msgspec.DecodeError as error:
            raise BadFolder(
                f"{file}: {error}. Restore it from a backup, or use the release that wrote it"
            ) from None

    def found(
        self, logs: int = 0, folders: Mapping[int, str] | None = None, part: Part | None = None
    ) -> Founded:
        """Return what is fixed here, fixing it the first time: so many `logs`, 0 for the default,
        of this `part` of a set.

        Raises `BadFolder`, also if it was founded with another number of logs; `FolderInUse` if
        another process is founding it.
        """
        founded = self.founded()
        if founded is None:
            _check_part(part or Part())
            self._check_free(logs or default_logs(), folders or {})
            with self.held():  # another process may be founding it as well
                if self.founded() is None:
                    return self._draw(logs or default_logs(), folders or {}, part or Part())
            founded = self.founded()
            assert founded is not None
        if logs not in (0, founded.logs) or folders:
            raise BadFolder(
                f"{self.path} was founded with {founded.logs} logs, for good: found another node "
                "for another number, or other places"
            )
        return founded

    def _check_free(self, logs: int, folders: Mapping[int, str]) -> None:
        if not 1 <= logs <= LOGS_MAX:
            raise BadFolder(f"{logs} logs: give 1 to {LOGS_MAX}")
        beyond = [number for number in folders if not 0 <= number < logs]
        if beyond:
            raise BadFolder(f"there is no log {beyond[0]} to place: logs are 0 to {logs - 1}")
        if (self.path / _OF_A_BACKUP).exists():
            raise BadFolder(
                f"{self.path} holds a backup: weir restore {self.path} puts it back, this folder "
                "stays what it is"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BadFolder(
                f"{self.path} is a file, or lies below one: give --data a folder"
            ) from None
        # In this order: a process that founds it now writes node.json before it makes the logs.
        if any(self.path.glob("log-*")) and self.founded() is None:
            raise BadFolder(
                f"{self.path / _NODE} is missing, but there are logs: restore it from a backup"
            )
        foreign = foreign_files(self.path, _NODE)
        if foreign and self.founded() is None:
            raise BadFolder(
                f"{self.path} holds other files ({foreign}) and no node: give --data an empty "
                "folder, or one that does not exist yet"
            )
        for number, place in sorted(folders.items()):
            if foreign := foreign_files(Path(place)):
                raise BadFolder(
                    f"{place} holds other files ({foreign}): give log {number} an empty folder, or "
                    "one that does not exist yet"
                )

    def _draw(self, logs: int, folders: Mapping[int, str], part: Part) -> Founded:
        places = {str(n): os.path.abspath(place) for n, place in folders.items()}
        system = part.system or new_system()
        founded = Founded(
            system, part.brokerset, part.node, logs, places, part.members, new_system(),
            part.join_key,
        )  # fmt: skip
        self._replace(_NODE, msgspec.json.encode(founded))
        return founded

    def life(self, log: int) -> str:
        """Return what tells the log from others that lay, or will lie, in its folder; "" if it has
        never begun.
        """
        try:
            return (self.path / life_name(log)).read_text()
        except FileNotFoundError:
            return ""

    def remember_life(self, log: int, life: str) -> None:
        """Remember durably that the log has begun, and which one it is."""
        self._replace(life_name(log), life.encode())

    def access_mode(self) -> str:
        """Return the mode of access that was noted last; "" if none was."""
        try:
            with (self.path / _ACCESS_MODE).open("rb") as file:
                return file.read(_MODE_BYTES_MAX).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return ""

    def note_access_mode(self, mode: str) -> None:
        """Note the mode of access durably. Raises `OSError`."""
        self._replace(_ACCESS_MODE, f"{mode}\n".encode())

    def births(self) -> dict[int, int]:
        """Return the births of nodes that were noted last, by node; none if none were. Raises
        `BadFolder` for what is no such note, or cannot be read.
        """
        path = self.path / _BIRTHS
        try:
            with path.open("rb") as file:
                data = file.read(_BIRTHS_BYTES_MAX)
            return msgspec.json.decode(data, type=_Births)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise BadFolder(
                f"{path} cannot be read ({error.strerror}): let the user that runs this node own "
                "it, with mode 0600; or remove it, and this node learns the births of nodes anew"
            ) from None
        except msgspec.DecodeError as error:
            raise BadFolder(
                f"{path} does not have the births of nodes ({error}): remove it, and this node "
                "learns them anew"
            ) from None

    def note_births(self, births: Mapping[int, int]) -> None:
        """Note the births of nodes durably, readable by the owner alone: they allow to impersonate
        these nodes. Raises `OSError`.
        """
        self._replace(_BIRTHS, msgspec.json.encode(births), 0o600)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the folder for oneself while it lasts. Raises `FolderInUse`."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderInUse(
                    f"{self.path} is in use by another weir process: stop that one, or give this "
                    "one a folder of its own"
                ) from None
            yield
        finally:
            os.close(lock)

    @contextmanager
    def announced(self, host: str, port: int, started: Started | None) -> Iterator[None]:
        """Tell the world where this node listens while it lasts, `started` first of all."""
        self.announce(host, port)
        try:
            if started is not None:
                started(host, port)
            yield
        finally:
            self.withdraw()

    def announce(self, host: str, port: int) -> None:
        """Write where this node listens."""
        self._replace(_ENDPOINT, msgspec.json.encode(Endpoint(host, port, os.getpid())))

    def withdraw(self) -> None:
        """Remove the announcement."""
        (self.path / _ENDPOINT).unlink(missing_ok=True)

    def endpoint(self) -> Endpoint | None:
        """Return what the running node announced; None if nothing is announced."""
        try:
            return msgspec.json.decode((self.path / _ENDPOINT).read_bytes(), type=Endpoint)
        except FileNotFoundError:
            return None

    def _replace(self, name: str, data: bytes, mode: int = 0o666) -> None:
        aside = self.path / f"{name}.new"
        aside.unlink(missing_ok=True)
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(self.path / name)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def begin_log(folder: NodeFolder, founded: Founded, number: int, disk: FileDisk) -> None:
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
            f"the folder of log {number} does not hold the log that this node wrote last: it is an "
            "older one, or another node's. Mount the right disk; if this one is to be "
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
