"""An event loop for callers that have none: in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from weir.errors import WeirError

R = TypeVar("R")

#: Seconds that what runs may take to end when it is told to.
_END_WITHIN = 10.0
#: More than a transport takes from its birth to its end.
_LAST_TURNS = 5
#: A Ctrl-C that comes just before a thread begins to wait does not wake it: it looks up so often.
_LOOK_UP_EVERY = 0.5
_CLOSED = "the connection is closed: connect again"


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

        Whoever comes second waits until it is done. Nothing happens in a copy made by a fork.
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
                task.exception()  # it was told to whoever waits, or to nobody
    await loop.shutdown_asyncgens()
    for _ in range(_LAST_TURNS):  # what was aborted, or just accepted, closes in the next ones
        await asyncio.sleep(0)
    loop.stop()


def _error_of(future: Future[R]) -> BaseException | None:
    while True:
        with contextlib.suppress(TimeoutError):  # its own: what runs raises nothing here
            return future.exception(_LOOK_UP_EVERY)
