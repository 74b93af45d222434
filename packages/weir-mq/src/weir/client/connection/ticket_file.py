"""Tickets of logins in files, so that the next command is known by the last one's (ADR 0136).

A ticket alone is no login. Its file has mode 0600 all the same, in a folder of mode 0700 beside the
contexts: a thief would get the place of its user in the queue of logins. There is one for each user
and address, whose name is a digest of both; it has the ticket in base64, in one line. What is wrong
with a file, or with the folder, costs the ticket and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from weir.access.login_tickets import TICKET_SECONDS
from weir.client.connection.credentials import read_first_line
from weir.client.connection.system import now_us
from weir.errors import BadName
from weir.model.topic import split_name
from weir.protocol.client.access import TICKET_BYTES_MAX

#: A ticket of any release is shorter, in base64.
_TEXT_BYTES_MAX = 1_024
_SUFFIX = ".ticket"


def settings_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return where weir keeps what it knows of the user of this machine."""
    given = (os.environ if environment is None else environment).get("XDG_CONFIG_HOME")
    return (Path(given) if given else Path.home() / ".config") / "weir"


class TicketFile:
    """The file with the ticket of one user at one address."""

    __slots__ = ("_now_us", "_path")

    def __init__(
        self, folder: Path, user: str, hosts: Sequence[tuple[str, int]],
        now_us: Callable[[], int] = now_us,
    ) -> None:  # fmt: skip
        """Lie in `folder`, which is made when there is something to keep. `now_us` is the time in
        microseconds since 1970.
        """
        with suppress(BadName):  # the broker says what is wrong with it
            user = "/".join(split_name(user))
        named = "\n".join((user, *(f"{host} {port}" for host, port in sorted(hosts))))
        self._path = folder / f"{hashlib.sha256(named.encode()).hexdigest()[:32]}{_SUFFIX}"
        self._now_us = now_us

    def read(self) -> bytes:
        """Return the ticket; empty if there is none that only its owner could read, or one that is
        longer than any broker takes.
        """
        try:
            text = read_first_line(self._path, "ticket", _TEXT_BYTES_MAX)
            ticket = base64.b64decode(text, validate=True)
        except (OSError, ValueError, binascii.Error):
            return b""
        return ticket if len(ticket) <= TICKET_BYTES_MAX else b""

    def write(self, ticket: bytes) -> None:
        """Keep a ticket, all of it or none; an empty one removes the file."""
        with suppress(OSError):
            if ticket:
                self._replace(base64.b64encode(ticket) + b"\n")
            else:
                self._path.unlink(missing_ok=True)

    def _replace(self, data: bytes) -> None:
        folder = self._path.parent
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if not self._path.exists():
            self._drop_old()
        handle, aside = tempfile.mkstemp(dir=folder, prefix=".ticket-")  # of mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(aside, self._path)
        except BaseException:
            os.unlink(aside)
            raise

    def _drop_old(self) -> None:
        """Remove what was written so long ago that its ticket is over."""
        before = self._now_us() // 1_000_000 - TICKET_SECONDS
        for path in self._path.parent.iterdir():
            with suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()


def ticket_file(user: str, hosts: Sequence[tuple[str, int]]) -> TicketFile | None:
    """Return the ticket file of a user; None without a user, or without a home folder."""
    if not user:
        return None
    try:
        return TicketFile(settings_folder() / "tickets", user, hosts)
    except RuntimeError:  # nobody knows where, as in a container with a user of its own
        return None
