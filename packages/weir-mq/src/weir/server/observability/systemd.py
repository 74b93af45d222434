"""Words to systemd (sd_notify(3)): datagrams to the socket that NOTIFY_SOCKET names.

Nothing is sent, and nothing fails, where there is no such socket: systemd may not be there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping


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
