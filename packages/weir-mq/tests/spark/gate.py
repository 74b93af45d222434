"""A TCP proxy in front of a broker that counts, cuts and holds back connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

BLOCK = 64 * 1024


class Gate:
    """Forwards connections to `port`; `with Gate(port) as gate:` listens on `gate.port`.

    With `hold_after`, no byte of an answer passes once so many have, and `held` is set.
    """

    def __init__(self, port: int, hold_after: int | None = None) -> None:
        self.accepted = 0
        self.held = threading.Event()
        self._to = port
        self._left = hold_after
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"weir://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End every connection that is open now."""
        with self._lock:
            cut, self._sockets = self._sockets, []
        for end in cut:
            _end(end)

    def __enter__(self) -> Gate:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        _end(self._listener)
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed: the gate is taken down
                return
            broker = socket.create_connection(("127.0.0.1", self._to))
            with self._lock:
                self.accepted += 1
                self._sockets += [client, broker]
            self._spawn(self._forward, client, broker, False)
            self._spawn(self._forward, broker, client, True)

    def _forward(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):  # one side is gone: so is the other, below
            while data := source.recv(BLOCK):
                if answers and self._full(len(data)):
                    return
                target.sendall(data)
        _end(source)
        _end(target)

    def _full(self, size: int) -> bool:
        with self._lock:
            if self._left is None:
                return False
            self._left -= size
            if self._left < 0:
                self.held.set()
            return self._left < 0

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may have ended by itself
        end.shutdown(socket.SHUT_RDWR)
    end.close()
