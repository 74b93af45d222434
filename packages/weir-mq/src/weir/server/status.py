"""What a node says of itself while it runs: lines for people, JSON objects for programs, and words
to systemd.

Never a message's content or a credential: only what a call names is written, under these fields:
`ts` (UTC), `level`, `event` (the sentence), `from` (who says it), and the fields of the event. An
event gives fields as `extra={"fields": {...}}`.

Words to systemd (sd_notify(3)) are datagrams to the socket that NOTIFY_SOCKET names. Nothing is
sent, and nothing fails, where there is no such socket: systemd may not be there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from weir.server.config import StatusConfig

_AGAIN_SECONDS = 60.0


class Reminder:
    """Remembers when each trouble was told last. Threads may share it if no two share a trouble."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        """Begin with nothing told."""
        self._told: dict[Hashable, float] = {}

    def is_due(self, trouble: Hashable, is_there: bool = True) -> bool:
        """Return whether to tell of a trouble now; one that ended and returns is told at once."""
        if not is_there:
            self._told.pop(trouble, None)
            return False
        now = time.monotonic()
        if now - self._told.get(trouble, float("-inf")) < _AGAIN_SECONDS:
            return False
        self._told[trouble] = now
        return True


class Notifier:
    """Tells the service manager how the node is."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Take NOTIFY_SOCKET, and WATCHDOG_USEC if it is meant for this process."""
        address = environment.get("NOTIFY_SOCKET", "")
        #: A name that begins with @ lies in the abstract name space.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        meant = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "")
        self._every = int(usec) / 2e6 if self._address and meant and usec.isdecimal() else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """Say that clients may connect. From here on the loop answers the watchdog, if there is
        one: a loop that stands still lets it bark.
        """
        self._send(f"READY=1\nSTATUS={status}")
        self._watch()

    def status(self, status: str) -> None:
        """Say what the node does, in a line for `systemctl status`."""
        self._send(f"STATUS={status}")

    def stopping(self, seconds: float) -> None:
        """Say that the node stops, and that this may take so long."""
        self._send(f"STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def close(self) -> None:
        """Say nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        if self._every:
            self._send("WATCHDOG=1")
            self._timer = asyncio.get_running_loop().call_later(self._every, self._watch)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # A manager that does not listen must not stop the node.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as one,
        ):
            one.setblocking(False)
            one.sendto(text.encode(), self._address)


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def __init__(self, shard: int | None = None) -> None:
        """Name the shard in each object, if the node has several."""
        super().__init__()
        self._more = {} if shard is None else {"shard": shard}

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        fields: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "from": record.name,
        }
        more = {**self._more, **_fields(record)}
        fields |= {k: v for k, v in more.items() if k not in fields}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


class TextLines(logging.Formatter):
    """One line a person reads: time, level, sentence, and those fields that it does not say."""

    def __init__(self, shard: int | None = None) -> None:
        """Write the local time, and the shard, if the node has several."""
        who = "" if shard is None else f"shard {shard}: "
        super().__init__(f"%(asctime)s %(levelname)s {who}%(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line, fields behind."""
        line = super().formatMessage(record)
        words = record.message.replace(":", " ").split()
        fields = [
            f"{name}={value}"
            for name, value in _fields(record).items()
            if str(value) not in (*words, *record.message.split())
        ]
        return " ".join([line, *fields])


def configure(config: StatusConfig, stream: TextIO | None = None, shard: int | None = None) -> None:
    """Send all that is told to `stream`, stderr by default, in the form that is asked for.

    `shard` is the one that this process is, where a node has several.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(shard) if config.format == "json" else TextLines(shard))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields
