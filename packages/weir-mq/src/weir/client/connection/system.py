"""What a client takes from the machine that it runs on: clocks, dice, threads and signals.

`connect` looks here once. A host of simulated clients sets `SYSTEM` in the context of each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import os
import secrets
import select
import signal
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from random import Random
from typing import Any, Protocol, TypeVar

import msgspec

from weir.errors import WeirError
from weir.model.ids import is_loopback
from weir.model.limits import VALUE_CHUNK_BYTES
from weir.tls.dialling import SecureHost, dialler_of

R = TypeVar("R")

#: Seconds that what runs may take to end when it is told to.
_END_WITHIN = 10.0
#: More than a transport takes from its birth to its end.
_LAST_TURNS = 5
#: A Ctrl-C that comes just before a thread begins to wait does not wake it: it looks up so often.
_LOOK_UP_EVERY = 0.5
_CLOSED = "the connection is closed: connect again"

_CAUGHT = (signal.SIGTERM, signal.SIGINT)


class Background(ABC):
    """Runs coroutines for code that has no event loop, and waits for them."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether `run` can be used here."""

    @abstractmethod
    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Return what the coroutine does. Raises `RuntimeError` where it cannot be used."""

    @abstractmethod
    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run `last`, and end what still runs."""

    def iterate(self, items: AsyncIterator[R]) -> Iterator[R]:
        """Yield what an async generator yields, each time waiting for the next."""

        async def following() -> R | None:
            return await anext(items, None)

        while (item := self.run(following())) is not None:
            yield item


class BackgroundThread(Background):
    """Runs them in a thread of its own, for all other threads. `stop` ends it.

    A daemon: a program that ends without `stop` is not kept from it.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._stopping = False
        self._calls: dict[Future[Any], Coroutine[Any, Any, Any]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether `run` can be used here: not stopped, and not a copy made by a fork."""
        return not self._stopping and self._thread.is_alive() and self._process == os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Return what the coroutine does; Ctrl-C cancels it. Raises `RuntimeError` where unusable.

        What weir raises comes without the other thread's frames: they say nothing to the caller.
        """
        wrong = self._wrong()
        future = None if wrong else self._begin(coroutine)
        if future is None:
            coroutine.close()
            raise RuntimeError(wrong or _CLOSED)
        return self._result(future)

    def _begin(self, coroutine: Coroutine[Any, Any, R]) -> Future[R] | None:
        """Hand over a coroutine, unless the thread is about to end."""
        with self._lock:  # so that whatever is handed over comes before the end, and is ended
            if self._stopping:
                return None
            return self._hand(coroutine)

    def _hand(self, coroutine: Coroutine[Any, Any, R]) -> Future[R]:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._calls[future] = coroutine
        future.add_done_callback(lambda done: self._calls.pop(done, None))
        return future

    def _result(self, future: Future[R]) -> R:
        try:
            error = _error_of(future)
        except CancelledError:
            if self._stopping:
                raise RuntimeError(_CLOSED) from None
            raise
        except BaseException:
            future.cancel()
            raise
        if error is None:
            return future.result()
        if isinstance(error, WeirError):
            error.__traceback__ = None
        try:
            raise error
        finally:
            del error, future  # else the frame and the traceback hold each other

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run `last`, end what still runs, and the thread; what others wait for ends too.

        A second caller waits until it is done. Nothing happens in a copy made by a fork.
        """
        if self._process != os.getpid():
            return
        # By the thread itself: its number goes to another one when it has ended.
        if threading.current_thread() is self._thread:
            raise RuntimeError(self._wrong())
        with self._lock:
            first, self._stopping = not self._stopping, True
            ending = self._hand(last()) if first and last is not None else None
        try:
            if ending is not None:
                self._result(ending)
        finally:
            if first:
                self._loop.call_soon_threadsafe(self._end)
            self._thread.join()

    def _end(self) -> None:
        self._ending = self._loop.create_task(_end_others())

    def _work(self) -> None:
        """Be the thread."""
        self._loop.run_forever()
        self._loop.close()
        for future, coroutine in [*self._calls.items()]:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
            future.cancel()

    def _wrong(self) -> str:
        if self._process != os.getpid():
            return (
                "this connection belongs to the process that forked this one: connect in each "
                "process by itself, after the fork"
            )
        if not self._thread.is_alive():
            return _CLOSED
        if threading.current_thread() is self._thread:
            return (
                "a callback of weir.sync runs in weir's own thread, where waiting for weir would "
                "last for ever: note what to do, and do it outside"
            )
        return ""


async def _end_others() -> None:
    """Cancel all other tasks, and stop the loop when they have ended."""
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        ended, _ = await asyncio.wait(others, timeout=_END_WITHIN)
        for task in ended:
            if not task.cancelled():
                task.exception()  # its waiter has the error, if there is one
    await loop.shutdown_asyncgens()
    for _ in range(_LAST_TURNS):  # what was aborted, or just accepted, closes in the next ones
        await asyncio.sleep(0)
    loop.stop()


def _error_of(future: Future[R]) -> BaseException | None:
    while True:
        with contextlib.suppress(TimeoutError):  # its own: what runs raises nothing here
            return future.exception(_LOOK_UP_EVERY)


def now_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


_BEGAN_NS = time.time_ns() - time.monotonic_ns()


def steady_us() -> int:
    """Return microseconds since 1970 by a clock that nobody sets, from the start of the process."""
    return (_BEGAN_NS + time.monotonic_ns()) // 1_000


def start_thread(work: Callable[[], None], name: str) -> None:
    """Do something in a thread that a program which ends does not wait for."""
    threading.Thread(target=work, name=name, daemon=True).start()


class Queue(Protocol):
    """Hands work to threads."""

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


#: How long a name server may take, in seconds: that of the system tries for ten and more.
_LOOKUP_TIMEOUT = 4.0


def dial(host: str, port: int, timeout: float) -> BlockingSocket:
    """Return a connection that is made within `timeout` seconds. Raises `OSError`, and of it
    `socket.gaierror` for a name that has no address, or none within 4 s.
    """
    last: OSError | None = None
    for family, kind, protocol, _, address in _look_up(host, port, min(timeout, _LOOKUP_TIMEOUT)):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(timeout)
            made.connect(address)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            made.close()
            last = error
        else:
            if not isinstance(host, SecureHost):
                return made
            try:
                return dialler_of(host.files).connect_blocking(made, host)
            except BaseException:
                made.close()
                raise
    raise last or socket.gaierror(socket.EAI_NONAME, "the name has no address")


def is_private(sock: BlockingSocket) -> bool:
    """Whether nobody on the way can read along: it is encrypted, or leaves no machine."""
    named = getattr(sock, "getpeername", None)
    if named is None or isinstance(sock, ssl.SSLSocket):
        return True
    peer = named()
    return not isinstance(peer, tuple) or is_loopback(str(peer[0]))


def _look_up(host: str, port: int, timeout: float) -> list[Any]:
    """Return what `socket.getaddrinfo` does. It is called in a thread of its own, because the
    system's look-up has no limit of ours.
    """
    answers: SimpleQueue[Any] = SimpleQueue()

    def work() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)
        except UnicodeError:  # a part of the name has more than 63 characters, or none
            answers.put(socket.gaierror(socket.EAI_NONAME, "it cannot be the name of a host"))

    start_thread(work, "weir look-up")
    try:
        answer = answers.get(timeout=timeout)
    except Empty:
        answer = socket.gaierror(socket.EAI_AGAIN, f"no name server answered in {timeout:g} s")
    if isinstance(answer, OSError):
        raise answer
    found: list[Any] = answer
    return found


class System(msgspec.Struct, frozen=True):
    """Clocks that any thread may read, dice of one's own, how to start a thread, how to hear of
    signals; and for programs without an event loop, how to connect and how to wait.
    """

    #: Seconds that never go back: that of the event loop.
    monotonic: Callable[[], float] = time.monotonic
    #: Microseconds since 1970.
    now_us: Callable[[], int] = now_us
    #: The same by a clock that nobody sets.
    steady_us: Callable[[], int] = steady_us
    dice: Callable[[], Random] = Random
    #: So many bytes that nobody can guess.
    secret_bytes: Callable[[int], bytes] = secrets.token_bytes
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
