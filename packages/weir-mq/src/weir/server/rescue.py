"""A login by a file in a node's data folder, good for minutes: to administer, or to promote a set.

`weir access rescue` and `weir topology promote --data` draw a password, and write into the folder
what checks it. The node accepts it for a session that is no user, that may only make an
administrator and promote, and that ends with the file. The node ignores a file that others could
have written, or that is older than some minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from weir.access.credentials import ITERATIONS_MIN, SALT_BYTES, ScramVerifier, make_verifier
from weir.broker.shard import Shard
from weir.server.key_files import write_secret

log = logging.getLogger(__name__)

FILE = "rescue.json"
LOOK_SECONDS = 1.0
#: How long a file counts.
VALID_SECONDS = 120.0
_FILE_BYTES_MAX = 1_024
_PASSWORD_BYTES = 24


@contextlib.contextmanager
def offered(folder: Path) -> Iterator[str]:
    """Let a node of this folder take the password that is yielded, during the block. Raises
    `BadRequest` where the file cannot be written.
    """
    # It is random: guessing is hopeless, so attempts need not be slowed down.
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    verifier = make_verifier(password, secrets.token_bytes(SALT_BYTES), ITERATIONS_MIN)
    file = folder / FILE
    file.unlink(missing_ok=True)
    write_secret(file, msgspec.json.encode(verifier))
    try:
        yield password
    finally:
        file.unlink(missing_ok=True)


def read_offer(folder: Path, user: int, now: float) -> ScramVerifier | None:
    """Return what a file of the folder offers at `now`, in seconds since 1970; None if there is no
    file, or none that only `user` or root could have written.
    """
    try:
        with (folder / FILE).open("rb") as file:
            about = os.fstat(file.fileno())
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError:
        return None
    if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, user):
        return None
    if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or not now - about.st_mtime + 1.0 >= 0:
        return None
    if now - about.st_mtime > VALID_SECONDS or len(data) > _FILE_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(data, type=ScramVerifier)
    except msgspec.DecodeError:
        return None


class RescueWatch:
    """Looks for the file each second while it is entered, and tells the shard."""

    def __init__(self, shard: Shard, folder: Path) -> None:
        """Begin without an offer."""
        self._shard = shard
        self._folder = folder
        self._offered: ScramVerifier | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> RescueWatch:
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        found = read_offer(self._folder, os.geteuid(), time.time())
        if found != self._offered:
            self._offered = found
            self._shard.offer_rescue(found)
            if found is not None:
                log.warning("%s of the data folder lets an administrator in", FILE)
