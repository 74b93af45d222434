"""A thread that takes connections of the device dialect, for brokers that tests write."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress


class DeviceBroker(ABC):
    """Serves one connection after the other on a port of its own, until it is told to `end`."""

    def __init__(self) -> None:
        """Serve at once: a subclass has all it needs before it calls this."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0.02)
        self.port = self._socket.getsockname()[1]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(5)
        self._socket.close()

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(TimeoutError):
                connection, _ = self._socket.accept()
                with connection, suppress(ConnectionError):
                    connection.settimeout(0.02)
                    self.serve(connection)

    @abstractmethod
    def serve(self, connection: socket.socket) -> None:
        """Answer what comes; the connection ends when this returns."""

    def pieces(self, connection: socket.socket) -> Iterator[bytes]:
        """Yield what comes, until the device hangs up or the broker ends."""
        while not self._over.is_set():
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                return
            yield data
