"""What a client takes from the machine that it runs on: clocks, dice, threads and signals.

`connect` looks here once. A host of simulated clients sets `SYSTEM` in the context of each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from random import Random
from typing import Any, Protocol, TypeVar

from weir.client.connection.loop_thread import Background, BackgroundThread
from weir.model.limits import VALUE_CHUNK_BYTES

_CAUGHT = (signal.SIGTERM, signal.SIGINT)

R = TypeVar("R")


def now_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


def start_thread(work: Callable[[], None], name: str) -> None:
    """Do something in a thread that a program which ends does not wait for."""
    threading.Thread(target=work, name=name, daemon=True).start()


class Queue(Protocol):
    """What threads are handed work by."""

    def put(self, item: Any) -> None:
        """Put something in line. Never blocks."""

    def get(self) -> Any:
        """Return what is next in line; block until something is."""


def catch_signals(first: Callable[[], None]) -> Callable[[], None]:
    """Have `first` called in the event loop that runs at SIGTERM or Ctrl-C, in the place of what
    these do else; what is returned undoes that.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None  # nobody sends signals to another thread
    loop = asyncio.get_running_loop()
    for number in _CAUGHT:
        loop.add_signal_handler(number, first)

    def release() -> None:
        for number in _CAUGHT:
            loop.remove_signal_handler(number)

    return release


class BlockingSocket(Protocol):
    """A connection for programs without an event loop. All of it raises `OSError`."""

    def settimeout(self, value: float | None, /) -> None:
        """Let no call from now on take more than so many seconds."""

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive some bytes, and return how many; 0 at the end."""

    def close(self) -> None:
        """End the connection."""


def dial(host: str, port: int, timeout: float) -> BlockingSocket:
    """Return a connection that is made within `timeout` seconds. Raises `OSError`."""
    made = socket.create_connection((host, port), timeout)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


@dataclass(frozen=True, slots=True)
class System:
    """Clocks that any thread may read, dice of one's own, how to start a thread, how to hear of
    signals; and for programs without an event loop, how to connect and how to wait.
    """

    #: Seconds that never go back: that of the event loop.
    monotonic: Callable[[], float] = time.monotonic
    #: Microseconds since 1970.
    now_us: Callable[[], int] = now_us
    dice: Callable[[], Random] = Random
    thread: Callable[[Callable[[], None], str], None] = start_thread
    queue: Callable[[], Queue] = SimpleQueue
    #: What `weir.sync` waits by; it gets a name.
    background: Callable[[str], Background] = BackgroundThread
    #: Of a value that is larger, each piece has a message of its own.
    chunk_bytes: int = VALUE_CHUNK_BYTES
    signals: Callable[[Callable[[], None]], Callable[[], None]] = catch_signals
    #: By host, port and a timeout in seconds.
    dial: Callable[[str, int, float], BlockingSocket] = dial
    #: Blocks for so many seconds.
    sleep: Callable[[float], None] = time.sleep
    #: The number of this process.
    process: Callable[[], int] = os.getpid


REAL = System()

SYSTEM: ContextVar[System] = ContextVar("weir system", default=REAL)


async def in_daemon(call: Callable[[], R]) -> R:
    """Return what `call` returns, from a thread of its own.

    `asyncio.to_thread` would keep a program from ending for as long as the call takes: a read of a
    pipe that nobody writes to lasts for ever, whatever Ctrl-C says.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not future.done():  # somebody still waits
            outcome()

    def work() -> None:
        try:
            outcome = partial(future.set_result, call())
        except BaseException as error:
            outcome = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop may have ended before the call
            loop.call_soon_threadsafe(settle, outcome)

    SYSTEM.get().thread(work, "weir read")
    return await future


def read_some(source: Any, size: int) -> Any:
    """Return up to `size` bytes of a file, b"" at its end; wait for some without holding its lock.

    Python cannot end while a thread is inside the reader of standard input: it aborts.
    """
    if isinstance(source, io.BufferedReader) and hasattr(select, "poll"):
        something = select.poll()
        something.register(source.fileno(), select.POLLIN)
        something.poll()
        return source.read1(size)
    return source.read(size)
