"""A PostgreSQL server of one's own: a fresh folder, a free port, gone afterwards.

with running_postgres() as postgres:
    engine = create_engine(postgres.url)
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir.errors import WeirError

#: Where Debian puts what is not for everybody's PATH.
_DEBIAN = Path("/usr/lib/postgresql")
_USER = "postgres"
_HOST = "127.0.0.1"
_UP_WITHIN_S = 60.0
_DOWN_WITHIN_S = 20.0
_POLL_S = 0.05
_TRIES = 3


class PostgresFailed(WeirError):
    """It is not installed, did not start, or did not end; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server that runs, and its first process. `user` may do everything, without a password."""

    port: int
    pid: int
    host: str = _HOST
    user: str = _USER
    database: str = "postgres"

    @property
    def url(self) -> str:
        """What SQLAlchemy's `create_engine` and `create_async_engine` take, with psycopg."""
        return f"postgresql+psycopg://{self.user}@{self.host}:{self.port}/{self.database}"


def installed() -> bool:
    """Return whether there is a server to run, and somebody to run it as."""
    if os.geteuid() == 0:
        try:
            pwd.getpwnam(_USER)
        except KeyError:
            return False
    return all(map(_found, ("initdb", "pg_isready", "postgres")))


@contextmanager
def running_postgres(**settings: str | int) -> Iterator[Postgres]:
    """Run a server while the block runs. It syncs what it commits, unless `settings` say otherwise.

    `settings` are those of postgresql.conf, as in `max_connections=200`.
    """
    with tempfile.TemporaryDirectory(prefix="weir-postgres-") as name:
        folder = Path(name)
        _own(folder)
        data = folder / "data"
        initdb = [_path("initdb"), "-D", str(data), "-U", _USER, "-A", "trust", "--no-sync"]
        done = subprocess.run(initdb, capture_output=True, text=True, timeout=120, **_as_user())
        if done.returncode:
            raise PostgresFailed(f"initdb failed: {done.stderr.strip()}")
        process, port = _started(data, folder, settings)
        try:
            yield Postgres(port, process.pid)
        finally:
            _stop(process)


def _started(
    data: Path, folder: Path, settings: dict[str, str | int]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the server on a free port; somebody may take it first, so try again then."""
    said = folder / "postgres.log"
    for _ in range(_TRIES):
        port = _free_port()
        words = [_path("postgres"), "-D", str(data), "-p", str(port), "-k", str(folder)]
        words += ["-c", f"listen_addresses={_HOST}"]
        for setting, value in settings.items():
            words += ["-c", f"{setting}={value}"]
        with said.open("ab") as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                # Ctrl-C is for the process that started it, which then stops the server.
                start_new_session=True, **_as_user(),
            )  # fmt: skip
        try:
            if _is_up(process, port):
                return process, port
        except BaseException:
            _stop(process)
            raise
    raise PostgresFailed(f"PostgreSQL does not start: {said.read_text(errors='replace')[-500:]}")


def _is_up(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until it answers; return False if it has ended."""
    deadline = time.monotonic() + _UP_WITHIN_S
    asking = [_path("pg_isready"), "-q", "-h", _HOST, "-p", str(port)]
    while process.poll() is None:
        if subprocess.run(asking, timeout=_UP_WITHIN_S).returncode == 0:
            return True
        if time.monotonic() > deadline:
            raise PostgresFailed(f"PostgreSQL does not answer within {_UP_WITHIN_S:g} s")
        time.sleep(_POLL_S)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Let it end, without waiting for those who are connected."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(_DOWN_WITHIN_S)
        except subprocess.TimeoutExpired:
            continue


def _own(folder: Path) -> None:
    """PostgreSQL refuses to be root: give the folder to the user that it runs as."""
    if os.geteuid() == 0:
        shutil.chown(folder, _USER, _USER)


def _as_user() -> dict[str, Any]:
    """Return what lets a child run as that user."""
    if os.geteuid() != 0:
        return {}
    return {"user": _USER, "group": _USER, "extra_groups": []}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((_HOST, 0))
        port: int = free.getsockname()[1]
        return port


def _found(program: str) -> str | None:
    newest = sorted(_DEBIAN.glob(f"*/bin/{program}"), key=lambda path: float(path.parts[-3]))
    return str(newest[-1]) if newest else shutil.which(program)


def _path(program: str) -> str:
    found = _found(program)
    if found is None:
        raise PostgresFailed(
            f"{program} is not here: scripts/apt-install $(cat scripts/postgres-packages)"
        )
    return found
